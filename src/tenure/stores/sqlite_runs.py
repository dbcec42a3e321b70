"""Branches of runs in the SQLite driver: what a run logs before it is part of any history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tenure.clock import Clock
from tenure.stores.base import Appended, Entry, Lease
from tenure.stores.checks import reply_usage
from tenure.stores.sqlite_history import (
    END,
    FAILED,
    MESSAGE,
    Head,
    Segment,
    count,
    find,
    forward,
    has_message,
    lineage,
    unknown_to,
)
from tenure.stores.sqlite_leases import check_lease
from tenure.stores.sqlite_log import add, appended, commit, create, new_branch
from tenure.stores.sqlite_media import Packed, drop_unused, unpack
from tenure.stores.sqlite_rows import Rows


def append_to_run(
    rows: Rows,
    session_id: str,
    run_id: str,
    packed: Sequence[Packed],
    *,
    lease: Lease | None,
    clock: Clock,
) -> int:
    """See `Store.append_to_run`."""
    check_lease(rows, lease)
    head = find(rows, session_id) or create(rows, session_id, clock)
    found = _run_branch(rows, head, run_id)
    if found is None:
        number = new_branch(rows, head, parent_seq=head.last_seq, run_id=run_id, clock=clock)
        low = head.last_seq
    else:
        number, low = found
    place = {"conversation_id": head.conversation_id, "branch": number}
    highest = rows.one("highest_seq", place)
    run = replace(head, branch=number, last_seq=(highest and highest["seq"]) or low)
    segments = lineage(rows, run)
    add(rows, run, unknown_to(rows, segments, packed), run_id=run_id, kind=MESSAGE)
    own = Segment(head.conversation_id, number, low, run.last_seq)
    return count(rows, [own])


def run_entries(rows: Rows, session_id: str, run_id: str) -> list[Entry]:
    """See `Store.run_entries`."""
    head = find(rows, session_id)
    found = _run_branch(rows, head, run_id) if head is not None else None
    if head is None or found is None:
        return []
    number, low = found
    return forward(rows, [Segment(head.conversation_id, number, low, END)], limit=None)


def commit_run(
    rows: Rows,
    session_id: str,
    run_id: str,
    *,
    is_failed: bool,
    lease: Lease | None,
    clock: Clock,
) -> Appended:
    """See `Store.commit_run`."""
    check_lease(rows, lease)
    head = find(rows, session_id)
    found = _run_branch(rows, head, run_id) if head is not None else None
    if head is None or found is None:
        return appended(session_id, head, 0)
    number, low = found
    place = {"conversation_id": head.conversation_id, "branch": number}
    segments = list(lineage(rows, head))
    logged = rows.all("list_branch_entries", place)
    new = [row for row in logged if not has_message(rows, segments, row["message_id"])]
    target = {"new_branch": head.branch, "kind": FAILED if is_failed else MESSAGE}
    if new and new[-1]["seq"] - low == len(logged) == len(new):
        shift = head.last_seq - low
        rows.run("move_media_uses", place, **target, shift=shift)
        rows.run("move_entries", place, **target, shift=shift)
    else:  # something was redacted, or got into the history by another way
        for new_seq, row in enumerate(new, head.last_seq + 1):
            moved = {**place, "seq": row["seq"]}
            rows.run("move_media_use", moved, **target, new_seq=new_seq)
            rows.run("move_entry", moved, **target, new_seq=new_seq)
    _remove_branch(rows, place)
    if not new:
        return appended(session_id, head, 0)
    head.last_seq += len(new)
    head.message_count += len(new)
    commit(rows, head, clock, reply_usage(unpack(rows, row["body"]) for row in new))
    return appended(session_id, head, len(new))


def discard_run(rows: Rows, session_id: str, run_id: str) -> bool:
    """See `Store.discard_run`, but for the journal, which is emptied afterwards."""
    head = find(rows, session_id)
    return head is not None and remove_run_branch(rows, head, run_id)


def remove_run_branch(rows: Rows, head: Head, run_id: str) -> bool:
    """Remove what a run was logging; returns whether there was something."""
    found = _run_branch(rows, head, run_id)
    if found is None:
        return False
    _remove_branch(rows, {"conversation_id": head.conversation_id, "branch": found[0]})
    return True


def _remove_branch(rows: Rows, place: dict[str, str | int]) -> None:
    """Remove a branch with the entries and media that are only on it."""
    used = [str(use["digest"]) for use in rows.all("media_of_branch", place)]
    for query in ("remove_branch_media_uses", "remove_branch_entries", "delete_branch"):
        rows.run(query, place)
    drop_unused(rows, used)


def _run_branch(rows: Rows, head: Head, run_id: str) -> tuple[int, int] | None:
    """The branch that a run writes to, and the entry behind which it begins."""
    for row in rows.all("list_branches", {"conversation_id": head.conversation_id}):
        if row["run_id"] == run_id:
            return row["branch"], row["parent_seq"]
    return None
