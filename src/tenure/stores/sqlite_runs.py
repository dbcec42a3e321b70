"""Runs of the SQLite driver: that they have begun, what they log before it is part of any history, their
end. `sqlite_checkpoints.py` has their checkpoints and tool calls.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tenure.clock import Clock
from tenure.memory import Owner
from tenure.stores.base import Appended, Entry, Lease
from tenure.stores.checks import reply_usage
from tenure.stores.run_records import RunRecord
from tenure.stores.sqlite_history import (
    END,
    FAILED,
    MESSAGE,
    Head,
    Segment,
    find,
    forward,
    has_message,
    lineage,
    unknown_to,
)
from tenure.stores.sqlite_leases import check_lease
from tenure.stores.sqlite_log import add, appended, commit, create, new_branch, now
from tenure.stores.sqlite_media import Packed, drop_unused, unpack
from tenure.stores.sqlite_rows import Rows, Value


def begin_run(
    rows: Rows,
    session_id: str,
    run_id: str,
    *,
    owner: Owner,
    input: bytes,  # noqa: A002 # what it is called everywhere
    lease: Lease | None,
    clock: Clock,
) -> RunRecord:
    """See `RunStore.begin_run`."""
    check_lease(rows, lease)
    head = find(rows, session_id) or create(rows, session_id, clock)
    place: dict[str, Value] = {**head.params, "run_id": run_id}
    take_part(rows, head, run_id, owner)
    found = rows.one("find_run", place)
    if found is None or found["ordinal"] is None:
        counted = rows.one("next_run", {})
        assert counted is not None
        ordinal = counted["value"]
        rows.run("begin_run", place, ordinal=ordinal, input=input, now=now(clock))
        found = rows.one("find_run", place)
    assert found is not None
    return _record(found)


def runs(rows: Rows, session_id: str, *, unfinished: bool) -> list[RunRecord]:
    """See `RunStore.runs`."""
    head = find(rows, session_id)
    if head is None:
        return []
    query = "list_unfinished_runs" if unfinished else "list_runs"
    return [_record(row) for row in rows.all(query, head.params)]


def append_to_run(
    rows: Rows,
    session_id: str,
    run_id: str,
    packed: Sequence[Packed],
    *,
    owner: Owner | None,
    lease: Lease | None,
    clock: Clock,
) -> int:
    """See `RunStore.append_to_run`."""
    check_lease(rows, lease)
    head = find(rows, session_id) or create(rows, session_id, clock)
    if owner is not None:
        take_part(rows, head, run_id, owner)
    return logged(rows, head, run_id, packed, clock=clock)


def logged(rows: Rows, head: Head, run_id: str, packed: Sequence[Packed], *, clock: Clock) -> int:
    """Log messages on a run's branch, and make it if need be; returns how many it has of its own."""
    found = _run_branch(rows, head, run_id)
    if found is None:
        last_seq = head.last_seq
        number = new_branch(rows, head, parent_seq=last_seq, run_id=run_id, clock=clock)
        found = RunBranch(branch=number, low=last_seq, logged=0)
    own = Segment(head.conversation_id, found.branch, found.low, END)
    new = unknown_to(rows, [own], packed)
    if not new:
        return found.logged
    highest = rows.one("highest_seq", own.params)
    last_seq = (highest and highest["seq"]) or found.low
    run = replace(head, branch=found.branch, last_seq=last_seq)
    add(rows, run, new, run_id=run_id, kind=MESSAGE)
    rows.run("set_logged", own.params, logged=found.logged + len(new))
    return found.logged + len(new)


def run_entries(rows: Rows, session_id: str, run_id: str) -> list[Entry]:
    """See `RunStore.run_entries`."""
    head = find(rows, session_id)
    found = _run_branch(rows, head, run_id) if head is not None else None
    if head is None or found is None:
        return []
    own = Segment(head.conversation_id, found.branch, found.low, END)
    return forward(rows, [own], limit=None)


def commit_run(
    rows: Rows,
    session_id: str,
    run_id: str,
    *,
    is_failed: bool,
    lease: Lease | None,
    clock: Clock,
) -> Appended:
    """See `RunStore.commit_run`."""
    check_lease(rows, lease)
    head = find(rows, session_id)
    if head is None:
        return appended(session_id, head, 0)
    found = _run_branch(rows, head, run_id)
    new = _moved(rows, head, found, is_failed=is_failed) if found is not None else []
    end_run(rows, head, run_id, clock=clock)
    if not new:
        return appended(session_id, head, 0)
    head.last_seq += len(new)
    head.message_count += len(new)
    commit(rows, head, clock, reply_usage(unpack(rows, row["body"]) for row in new))
    return appended(session_id, head, len(new))


def discard_run(
    rows: Rows, session_id: str, run_id: str, *, lease: Lease | None, clock: Clock
) -> bool:
    """See `RunStore.discard_run`, but for the journal, which is emptied afterwards."""
    check_lease(rows, lease)
    head = find(rows, session_id)
    return head is not None and end_run(rows, head, run_id, clock=clock)


# --- pieces --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBranch:
    """The branch that a run writes to."""

    branch: int
    low: int  # the entry behind which it begins
    logged: int  # how many messages are on it


def take_part(rows: Rows, head: Head, run_id: str, owner: Owner) -> None:
    """Record whose run writes to a conversation."""
    rows.run("add_run", head.params, run_id=run_id, **names(owner))


def names(owner: Owner) -> dict[str, Value]:
    """Return an owner as rows hold it."""
    return {"agent_id": owner.agent_id, "user_id": owner.user_id or ""}


def as_bytes(text: str) -> bytes:
    """Return any text as rows hold it; SQLite's own texts end at a NUL and have no half surrogate pairs."""
    return text.encode("utf-8", "surrogatepass")


def as_text(data: bytes) -> str:
    """Return the text that `as_bytes` gave this for."""
    return data.decode("utf-8", "surrogatepass")


def end_run(rows: Rows, head: Head, run_id: str, *, clock: Clock) -> bool:
    """Remove all but the record of a run; returns whether there was something, or it had not ended."""
    place: dict[str, Value] = {**head.params, "run_id": run_id}
    found = _run_branch(rows, head, run_id)
    if found is not None:
        _remove_branch(rows, {"conversation_id": head.conversation_id, "branch": found.branch})
    queries = ("delete_checkpoints_of_run", "delete_calls_of_run", "end_run")
    changed = [rows.run(query, place, now=now(clock)) for query in queries]
    return found is not None or any(changed)


def _moved(rows: Rows, head: Head, found: RunBranch, *, is_failed: bool) -> list[sqlite3.Row]:
    """Move what a run has logged, and the history has not, behind the history; return what that is."""
    place = {"conversation_id": head.conversation_id, "branch": found.branch}
    segments = list(lineage(rows, head))
    logged = rows.all("list_branch_entries", place)
    new = [row for row in logged if not has_message(rows, segments, row["message_id"])]
    target = {"new_branch": head.branch, "kind": FAILED if is_failed else MESSAGE}
    if new and new[-1]["seq"] - found.low == len(logged) == len(new):
        shift = head.last_seq - found.low
        rows.run("move_media_uses", place, **target, shift=shift)
        rows.run("move_entries", place, **target, shift=shift)
    else:  # something was redacted, or got into the history by another way
        for new_seq, row in enumerate(new, head.last_seq + 1):
            moved = {**place, "seq": row["seq"]}
            rows.run("move_media_use", moved, **target, new_seq=new_seq)
            rows.run("move_entry", moved, **target, new_seq=new_seq)
    return new


def _remove_branch(rows: Rows, place: dict[str, str | int]) -> None:
    """Remove a branch with the entries and media that are only on it."""
    used = [str(use["digest"]) for use in rows.all("media_of_branch", place)]
    for query in ("remove_branch_media_uses", "remove_branch_entries", "delete_branch"):
        rows.run(query, place)
    drop_unused(rows, used)


def _run_branch(rows: Rows, head: Head, run_id: str) -> RunBranch | None:
    row = rows.one("find_run_branch", head.params, run_id=run_id)
    if row is None:
        return None
    return RunBranch(branch=row["branch"], low=row["parent_seq"], logged=row["logged"])


def _record(row: sqlite3.Row) -> RunRecord:
    ended_at = row["ended_at"]
    return RunRecord(
        run_id=row["run_id"],
        owner=Owner(agent_id=row["agent_id"], user_id=row["user_id"] or None),
        input=as_text(row["input"]) if row["input"] is not None else None,
        revision=row["revision"],
        started_at=datetime.fromisoformat(row["started_at"]),
        ended_at=datetime.fromisoformat(ended_at) if ended_at is not None else None,
    )
