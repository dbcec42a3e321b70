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
from tenure.stores.records import Appended, Forgotten
from tenure.stores.sqlite_history import Head, count, find, known, lineage
from tenure.stores.sqlite_log import (
    commit,
    delete,
    detach_forks,
    detached,
    drop_notes,
    remove_entry,
)
from tenure.stores.sqlite_media import drop_unused, unpack
from tenure.stores.sqlite_rows import Rows, Value

_MEMORY_TABLES = ("postings", "vectors", "versions", "memories", "removals", "owner")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedParticipant:
    """A `Participant` whose memories have their terms already."""

    owner: Owner
    memories: Sequence[Prepared]
    ends_run: bool


def taken_part(
    rows: Rows,
    written: Appended,
    session_id: str,
    run_id: str,
    by: PreparedParticipant,
    *,
    clock: Clock,
) -> Appended:
    """Record who has written, end the run if they say so, and add what they remember of it.

    What was written to `session_id` may have gone to a fork of it, where the run has never begun.
    """
    if (head := find(rows, written.session_id)) is not None:
        runs.take_part(rows, head, run_id, by.owner)
    if by.ends_run and (head := find(rows, session_id)) is not None:
        runs.end_run(rows, head, run_id, clock=clock)
    added = memories.add(rows, by.owner, by.memories, deduplicate=True, clock=clock)
    return replace(written, memories=tuple(added))


def forget(rows: Rows, owner: Owner, *, clock: Clock) -> Forgotten:
    """See `Store.forget`, but for the journal, which is emptied afterwards."""
    forgotten = Forgotten(memories=_forget_memories(rows, owner))
    # Of all conversations: a fork may have a summary of messages that only the other one has.
    said = {str(row["message_id"]) for row in rows.all("messages_of_owner", runs.names(owner))}
    for found in rows.all("conversations_of_owner", runs.names(owner)):
        session_id = str(found["session_id"])
        head = known(rows, session_id)
        if rows.one("other_owner", head.params, **runs.names(owner)) is None:
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
    run_ids = {str(row["run_id"]) for row in rows.all("runs_of_owner", own, **runs.names(owner))}
    detach_forks(rows, head.conversation_id)
    detached(rows, head.conversation_id, 1)
    logged = rows.all("list_entries", own)
    gone = {str(row["message_id"]) for row in logged if row["run_id"] in run_ids}
    media: set[str] = set()
    for row in logged:
        covered = covered_ids(unpack(rows, row["body"]))
        if row["message_id"] in gone or any(i in said or i in gone for i in covered):
            gone.add(str(row["message_id"]))
            media |= remove_entry(rows, {**own, "branch": row["branch"], "seq": row["seq"]})
    drop_unused(rows, media)
    for run_id in run_ids:
        runs.end_run(rows, head, run_id, clock=clock)
    rows.run("delete_runs_of_owner", own, **runs.names(owner))
    if gone:
        drop_notes(rows, head)
        head.message_count = count(rows, lineage(rows, head))
        commit(rows, head, clock, Usage())
    return len(gone)
