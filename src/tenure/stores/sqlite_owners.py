"""Owners in the SQLite driver: who takes part in conversations, and how all of one owner is removed."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from tenure.clock import Clock
from tenure.marks import covered_ids
from tenure.memory import Owner
from tenure.messages import Usage
from tenure.stores import sqlite_memories as memories
from tenure.stores import sqlite_runs as runs
from tenure.stores.memory_records import Prepared
from tenure.stores.records import Appended, Forgotten, Lease
from tenure.stores.sqlite_history import Head, count, find, known, lineage
from tenure.stores.sqlite_log import commit, delete, detach_forks, detached, remove_entry
from tenure.stores.sqlite_media import Packed, drop_unused, unpack
from tenure.stores.sqlite_rows import Rows, Value

_MEMORY_TABLES = ("postings", "vectors", "versions", "memories", "removals", "owner")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedParticipant:
    """A `Participant` whose memories have their terms already."""

    owner: Owner
    memories: Sequence[Prepared]


def take_part(rows: Rows, session_id: str, run_id: str, owner: Owner) -> None:
    """Record whose run writes to a conversation, if there is one."""
    if (head := find(rows, session_id)) is not None:
        place = {"conversation_id": head.conversation_id, "run_id": run_id}
        rows.run("add_run", place, **_names(owner))


def taken_part(
    rows: Rows, written: Appended, run_id: str, by: PreparedParticipant, *, clock: Clock
) -> Appended:
    """Record who has written, and add what they remember of it."""
    take_part(rows, written.session_id, run_id, by.owner)
    added = memories.add(rows, by.owner, by.memories, deduplicate=True, clock=clock)
    return replace(written, memories=tuple(added))


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
    """See `Store.append_to_run`."""
    logged = runs.append_to_run(rows, session_id, run_id, packed, lease=lease, clock=clock)
    if owner is not None:
        take_part(rows, session_id, run_id, owner)
    return logged


def forget(rows: Rows, owner: Owner, *, clock: Clock) -> Forgotten:
    """See `Store.forget`, but for the journal, which is emptied afterwards."""
    forgotten = Forgotten(memories=_forget_memories(rows, owner))
    # Of all conversations: a fork may have a summary of messages that only the other one has.
    said = {str(row["message_id"]) for row in rows.all("messages_of_owner", _names(owner))}
    for found in rows.all("conversations_of_owner", _names(owner)):
        session_id = str(found["session_id"])
        head = known(rows, session_id)
        if rows.one("other_owner", head.params, **_names(owner)) is None:
            forgotten = replace(
                forgotten,
                conversations=(*forgotten.conversations, session_id),
                messages=forgotten.messages + head.message_count,
            )
            delete(rows, session_id)
        else:
            removed = _take_out(rows, head, owner, said, clock)
            forgotten = replace(
                forgotten,
                shared=(*forgotten.shared, session_id),
                messages=forgotten.messages + removed,
            )
    return forgotten


def _forget_memories(rows: Rows, owner: Owner) -> int:
    removed = 0
    for row in memories.owners(rows, owner):
        place: dict[str, Value] = {"owner": row.owner}
        counts = {table: rows.run(f"forget_{table}", place) for table in _MEMORY_TABLES}
        removed += counts["memories"]
    return removed


def _take_out(rows: Rows, head: Head, owner: Owner, said: AbstractSet[str], clock: Clock) -> int:
    """Remove what an owner's runs have written to a conversation that goes on, and summaries of what
    the owner has said; return how much.
    """
    own = {"conversation_id": head.conversation_id}
    run_ids = {str(row["run_id"]) for row in rows.all("runs_of_owner", own, **_names(owner))}
    detach_forks(rows, head.conversation_id)
    detached(rows, head.conversation_id, 1)
    gone: set[str] = set()
    media: set[str] = set()
    for row in rows.all("list_entries", own):
        message = unpack(rows, row["body"])
        is_summary_of_it = any(i in said or i in gone for i in covered_ids(message))
        if row["run_id"] in run_ids or is_summary_of_it:
            gone.add(message.id)
            media |= remove_entry(rows, {**own, "branch": row["branch"], "seq": row["seq"]})
    drop_unused(rows, media)
    for run_id in run_ids:
        runs.remove_run_branch(rows, head, run_id)
    rows.run("delete_runs_of_owner", own, **_names(owner))
    if gone:
        head.message_count = count(rows, lineage(rows, head))
        commit(rows, head, clock, Usage())
    return len(gone)


def _names(owner: Owner) -> dict[str, Value]:
    return {"agent_id": owner.agent_id, "user_id": owner.user_id or ""}
