"""Checkpoints and tool calls of the SQLite driver. `run_base.py` says what the operations promise."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime

from tenure.clock import Clock
from tenure.stores.base import Lease
from tenure.stores.run_checks import known_checkpoint, unknown_version
from tenure.stores.run_records import CallRecord, CheckpointRecord, NewCall, NewCheckpoint
from tenure.stores.sqlite_history import find
from tenure.stores.sqlite_leases import check_lease
from tenure.stores.sqlite_log import create, now
from tenure.stores.sqlite_media import Packed
from tenure.stores.sqlite_rows import Rows, Value
from tenure.stores.sqlite_runs import as_bytes, as_text, logged


def save_checkpoint(
    rows: Rows,
    session_id: str,
    run_id: str,
    checkpoint: NewCheckpoint,
    packed: Sequence[Packed],
    *,
    keep_last: int | None,
    lease: Lease | None,
    clock: Clock,
) -> CheckpointRecord:
    """See `RunStore.save_checkpoint`."""
    check_lease(rows, lease)
    head = find(rows, session_id) or create(rows, session_id, clock)
    place: dict[str, Value] = {**head.params, "run_id": run_id}
    name = checkpoint.checkpoint_id
    if rows.one("has_checkpoint", place, checkpoint_id=name) is not None:
        raise known_checkpoint(name)
    is_closed = _is_closed(rows, place)
    saved = CheckpointRecord(
        checkpoint_id=name,
        version=_next(rows, "next_version", place),
        node_path=checkpoint.node_path,
        scope=checkpoint.scope,
        state=checkpoint.state,
        logged=0 if is_closed else logged(rows, head, run_id, packed, clock=clock),
        created_at=clock.now(),
    )
    if is_closed:
        return saved
    rows.run(
        "add_checkpoint",
        place,
        version=saved.version,
        checkpoint_id=name,
        node_path=as_bytes(saved.node_path),
        scope=as_bytes(saved.scope),
        state=as_bytes(saved.state),
        logged=saved.logged,
        now=saved.created_at.isoformat(timespec="microseconds"),
    )
    if keep_last is not None:
        rows.run("prune_checkpoints", place, keep_last=keep_last)
    return saved


def checkpoints(rows: Rows, session_id: str, run_id: str) -> list[CheckpointRecord]:
    """See `RunStore.checkpoints`."""
    found = (
        rows.all("list_checkpoints", place) if (place := _found(rows, session_id, run_id)) else []
    )
    return [
        CheckpointRecord(
            checkpoint_id=row["checkpoint_id"],
            version=row["version"],
            node_path=as_text(row["node_path"]),
            scope=as_text(row["scope"]),
            state=as_text(row["state"]),
            logged=row["logged"],
            created_at=datetime.fromisoformat(row["created_at"]),
        )
        for row in found
    ]


def roll_back(
    rows: Rows, session_id: str, run_id: str, *, version: int, lease: Lease | None
) -> None:
    """See `RunStore.roll_back`."""
    check_lease(rows, lease)
    place = _found(rows, session_id, run_id)
    if version != 0 and (place is None or rows.one("has_version", place, version=version) is None):
        raise unknown_version(run_id, version)
    if place is not None:
        rows.run("delete_later_checkpoints", place, version=version)
        rows.run("roll_back_calls", place, version=version)


def begin_call(
    rows: Rows,
    session_id: str,
    run_id: str,
    call: NewCall,
    *,
    lease: Lease | None,
    clock: Clock,
) -> CallRecord:
    """See `RunStore.begin_call`."""
    check_lease(rows, lease)
    head = find(rows, session_id) or create(rows, session_id, clock)
    place: dict[str, Value] = {**head.params, "run_id": run_id}
    highest = rows.one("highest_version", place)
    assert highest is not None
    begun = CallRecord(
        number=_next(rows, "next_call", place),
        call=call,
        after=highest["version"] or 0,
        outcome=None,
        is_rolled_back=False,
        is_undone=False,
        started_at=clock.now(),
        finished_at=None,
    )
    if _is_closed(rows, place):
        return begun
    rows.run(
        "begin_call",
        place,
        number=begun.number,
        node_path=as_bytes(call.node_path),
        position=call.position,
        origin=as_bytes(call.origin),
        place=call.place,
        tool=as_bytes(call.tool),
        args=as_bytes(call.args),
        after_version=begun.after,
        now=begun.started_at.isoformat(timespec="microseconds"),
    )
    return begun


def end_call(
    rows: Rows,
    session_id: str,
    run_id: str,
    number: int,
    *,
    outcome: str,
    lease: Lease | None,
    clock: Clock,
) -> None:
    """See `RunStore.end_call`."""
    check_lease(rows, lease)
    if (place := _found(rows, session_id, run_id)) is not None:
        rows.run("end_call", place, number=number, outcome=as_bytes(outcome), now=now(clock))


def mark_undone(
    rows: Rows, session_id: str, run_id: str, number: int, *, lease: Lease | None
) -> None:
    """See `RunStore.mark_undone`."""
    check_lease(rows, lease)
    if (place := _found(rows, session_id, run_id)) is not None:
        rows.run("mark_undone", place, number=number)


def calls(rows: Rows, session_id: str, run_id: str) -> list[CallRecord]:
    """See `RunStore.calls`."""
    found = rows.all("list_calls", place) if (place := _found(rows, session_id, run_id)) else []
    return [_call(row) for row in found]


# --- pieces --------------------------------------------------------------------------------------


def _found(rows: Rows, session_id: str, run_id: str) -> dict[str, Value] | None:
    """Where the rows of a run are, if there is the conversation."""
    head = find(rows, session_id)
    return {**head.params, "run_id": run_id} if head is not None else None


def _is_closed(rows: Rows, place: dict[str, Value]) -> bool:
    """Whether a run has begun and cannot be resumed any more."""
    found = rows.one("find_run", place)
    return found is not None and found["ordinal"] is not None and found["input"] is None


def _next(rows: Rows, query: str, place: dict[str, Value]) -> int:
    """The next number of a run; it is given once, whatever is removed later."""
    row = rows.one(query, place)
    assert row is not None
    return row["number"]


def _call(row: sqlite3.Row) -> CallRecord:
    outcome, finished_at = row["outcome"], row["finished_at"]
    return CallRecord(
        number=row["number"],
        call=NewCall(
            node_path=as_text(row["node_path"]),
            position=row["position"],
            origin=as_text(row["origin"]),
            place=row["place"],
            tool=as_text(row["tool"]),
            args=as_text(row["args"]),
        ),
        after=row["after_version"],
        outcome=as_text(outcome) if outcome is not None else None,
        is_rolled_back=bool(row["is_rolled_back"]),
        is_undone=bool(row["is_undone"]),
        started_at=datetime.fromisoformat(row["started_at"]),
        finished_at=datetime.fromisoformat(finished_at) if finished_at is not None else None,
    )
