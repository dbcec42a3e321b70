"""What the store in RAM keeps: logs, and who has which conversation. `inmemory.py` works on them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime

from tenure.codec import from_json, to_json
from tenure.marks import covered_ids
from tenure.memory import Owner, is_of
from tenure.messages import Message, Usage
from tenure.stores.base import Appended, Conversation, Entry, Forgotten, Redaction
from tenure.stores.checks import (
    checked_message_ids,
    checked_name,
    checked_redacted,
    checked_session_id,
    reply_usage,
)
from tenure.stores.inmemory_drawers import Cabinet
from tenure.stores.run_records import CallRecord, CheckpointRecord, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One logged message."""

    seq: int
    message_id: str
    body: str
    run_id: str | None
    is_failed: bool = False


@dataclass(slots=True)
class LogBranch:
    """One version of a history."""

    parent: int | None
    parent_seq: int
    run_id: str | None
    rows: list[LogRow]  # the whole history, what it shares with its parent included

    @property
    def own(self) -> list[LogRow]:
        """The rows that it does not share with its parent."""
        return [row for row in self.rows if row.seq > self.parent_seq]


@dataclass(slots=True)
class RunNotes:
    """What is recorded of one run beside its branch."""

    record: RunRecord | None = None  # when it has begun by `begin_run`
    checkpoints: list[CheckpointRecord] = field(default_factory=list[CheckpointRecord])
    calls: list[CallRecord] = field(default_factory=list[CallRecord])
    last_version: int = 0  # of all checkpoints that it has ever had
    last_call: int = 0

    @property
    def is_closed(self) -> bool:
        """Whether the run has begun and cannot be resumed any more."""
        return self.record is not None and self.record.input is None

    def drop(self) -> bool:
        """Remove what the run can be resumed from; returns whether there was something."""
        found = bool(self.checkpoints or self.calls)
        self.checkpoints.clear()
        self.calls.clear()
        if self.record is not None:
            self.record = replace(self.record, input=None)
        return found


@dataclass(slots=True)
class Log:
    """One conversation."""

    created_at: datetime
    updated_at: datetime
    branches: dict[int, LogBranch]
    branch: int = 1
    last_seq: int = 0
    revision: int = 0
    usage: Usage = field(default_factory=Usage)
    metadata: str = "{}"
    runs: dict[str, Owner] = field(default_factory=dict[str, Owner])
    """Whose the runs are that have written to it."""
    notes: dict[str, RunNotes] = field(default_factory=dict[str, RunNotes])
    """By run id; those that have begun in the order in which they did."""
    commits: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    """Revision -> the branch that was the history, and where it ended."""

    def history_at(self, revision: int) -> list[LogRow]:
        branch, last_seq = self.commits[revision]
        return [row for row in self.branches[branch].rows if row.seq <= last_seq]

    def commit(self, now: datetime) -> None:
        self.revision += 1
        self.updated_at = now
        self.commits[self.revision] = (self.branch, self.last_seq)

    def branch_off(self, after: int) -> None:
        shared = [row for row in self.branches[self.branch].rows if row.seq <= after]
        number = max(self.branches) + 1
        self.branches[number] = LogBranch(self.branch, after, None, shared)
        self.branch, self.last_seq = number, after

    def run_branch(self, run_id: str) -> int | None:
        found = (number for number, branch in self.branches.items() if branch.run_id == run_id)
        return next(found, None)

    def notes_of(self, run_id: str) -> RunNotes:
        return self.notes.setdefault(run_id, RunNotes())

    def end_run(self, run_id: str, now: datetime) -> bool:
        """Remove all but the record of a run; returns whether there was something, or it had not ended."""
        number = self.run_branch(run_id)
        if number is not None:
            del self.branches[number]
        notes = self.notes.get(run_id, RunNotes())
        found = notes.drop() or number is not None
        if notes.record is not None and notes.record.ended_at is None:
            notes.record = replace(notes.record, ended_at=now)
            found = True
        return found

    def drop_notes(self) -> None:
        """Remove what runs can be resumed from, which may hold text that was erased."""
        for notes in self.notes.values():
            notes.drop()


@dataclass(slots=True)
class Turn:
    """Who has a conversation, and who stands in line for it."""

    token: int = 0
    holder: str | None = None
    expires_at: datetime | None = None
    line: dict[str, datetime] = field(default_factory=dict[str, datetime])  # holder -> expiry


class Shelf:
    """What the handles of all tenants share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_closed = False
        self.last_token = 0
        self.logs: dict[tuple[str, str], Log] = {}
        self.turns: dict[tuple[str, str], Turn] = {}
        self.cabinet = Cabinet()


def new_rows(
    session_id: str,
    messages: Sequence[Message],
    *,
    run_id: str | None,
    is_failed: bool = False,
) -> list[LogRow]:
    """Return the rows of messages that are to be logged, without their place.

    Raises:
        InvalidValueError: Something of them cannot be stored.
    """
    checked_session_id(session_id)
    checked_message_ids(messages)
    if run_id is not None:
        checked_name(run_id, "run id")
    return [
        LogRow(seq=0, message_id=m.id, body=to_json(m), run_id=run_id, is_failed=is_failed)
        for m in messages
    ]


def _messages_of(logs: Iterable[Log], owner: Owner) -> set[str]:
    """Return the ids of what an owner's runs have written."""
    return {
        row.message_id
        for log in logs
        for branch in log.branches.values()
        for row in branch.rows
        if row.run_id is not None and log.runs.get(row.run_id) == owner
    }


def unknown_to(rows: Iterable[LogRow], new: Iterable[LogRow]) -> list[LogRow]:
    """The new rows whose ids are not there yet, each id once."""
    known = {row.message_id for row in rows}
    unique = {row.message_id: row for row in reversed(list(new))}
    return [row for row in reversed(unique.values()) if row.message_id not in known]


def add_rows(rows: list[LogRow], new: Iterable[LogRow], last_seq: int) -> list[LogRow]:
    """Append new rows behind `last_seq` and return them."""
    added = [replace(row, seq=seq) for seq, row in enumerate(unknown_to(rows, new), last_seq + 1)]
    rows.extend(added)
    return added


def as_first_logged(new: Iterable[LogRow], rows: Iterable[LogRow]) -> list[LogRow]:
    """New rows, with the run of those that a history has already: it is still whose they are."""
    known = {row.message_id: row for row in rows}
    return [
        replace(row, run_id=first.run_id, is_failed=first.is_failed)
        if (first := known.get(row.message_id)) is not None
        else row
        for row in new
    ]


def redacted(row: LogRow, redaction: Redaction) -> LogRow | None:
    """Return a row as a redaction leaves it: itself, changed, or None."""
    message = from_json(row.body)
    kept = checked_redacted(redaction(message))
    if kept is None:
        return None
    body = to_json(replace(kept, id=message.id))
    return row if body == row.body else replace(row, body=body)


def _without_runs(log: Log, run_ids: Iterable[str], said: AbstractSet[str], now: datetime) -> int:
    """Take out of a log what some runs have written, and summaries of that and of what was said in other
    logs; return how much.
    """
    gone: set[str] = set()
    for run_id in run_ids:
        number = log.run_branch(run_id)
        if number is not None:
            gone |= {
                row.message_id for row in log.branches.pop(number).rows if row.run_id == run_id
            }
        del log.runs[run_id]
        log.notes.pop(run_id, None)
        for branch in log.branches.values():
            gone |= {row.message_id for row in branch.rows if row.run_id == run_id}
    for branch in log.branches.values():
        kept: list[LogRow] = []
        for row in branch.rows:
            covered = covered_ids(from_json(row.body))
            if row.message_id in gone or any(i in said or i in gone for i in covered):
                gone.add(row.message_id)
            else:
                kept.append(row)
        branch.rows = kept
    if gone:
        log.drop_notes()
        log.commit(now)
    return len(gone)


def forgotten(shelf: Shelf, tenant: str, owner: Owner, now: datetime) -> Forgotten:
    """Remove what an owner's runs have written; returns what that was, but for memories."""
    gone = Forgotten()
    mine = {session_id: log for (whose, session_id), log in shelf.logs.items() if whose == tenant}
    said = _messages_of(mine.values(), owner)
    for session_id, log in sorted(mine.items()):
        own = [run_id for run_id, participant in log.runs.items() if participant == owner]
        if not own:
            continue
        if len(own) == len(log.runs):
            messages = len(log.branches[log.branch].rows)
            gone = replace(gone, conversations=(*gone.conversations, session_id))
            del shelf.logs[tenant, session_id]
            shelf.turns.pop((tenant, session_id), None)
        else:
            messages = _without_runs(log, own, said, now)
            gone = replace(gone, shared=(*gone.shared, session_id))
        gone = replace(gone, messages=gone.messages + messages)
    return gone


def entry_of(row: LogRow) -> Entry:
    """Return a row as callers see it."""
    return Entry(
        seq=row.seq, message=from_json(row.body), run_id=row.run_id, is_failed=row.is_failed
    )


def appended(session_id: str, log: Log | None, written: int) -> Appended:
    """Return what a caller is told of a write."""
    return Appended(
        session_id=session_id,
        revision=log.revision if log is not None else 0,
        last_seq=log.last_seq if log is not None else 0,
        written=written,
    )


def add_aside(log: Log, aside: Iterable[LogRow]) -> None:
    """Log rows that the history has not on a branch of their own behind it."""
    shared = log.branches[log.branch].rows
    branch = LogBranch(log.branch, log.last_seq, None, list(shared))
    added = add_rows(branch.rows, aside, log.last_seq)
    if added:
        log.branches[max(log.branches) + 1] = branch
        log.usage += reply_usage(from_json(row.body) for row in added)


def extended(session_id: str, log: Log, new: Iterable[LogRow], now: datetime) -> Appended:
    """Commit new rows behind a history; returns what a caller is told."""
    added = add_rows(log.branches[log.branch].rows, new, log.last_seq)
    log.last_seq += len(added)
    log.usage += reply_usage(from_json(row.body) for row in added)
    log.commit(now)
    return appended(session_id, log, len(added))


def described(session_id: str, log: Log) -> Conversation:
    """Return what is known of a conversation."""
    return Conversation(
        session_id=session_id,
        created_at=log.created_at,
        updated_at=log.updated_at,
        revision=log.revision,
        branch=log.branch,
        last_seq=log.last_seq,
        message_count=len(log.branches[log.branch].rows),
        usage=log.usage,
        metadata=json.loads(log.metadata),
    )


def listed(shelf: Shelf, tenant: str, owner: Owner | None) -> list[Conversation]:
    """Return a tenant's conversations, or those in which an owner took part, in the order of lists."""
    found = [
        described(session_id, log)
        for (whose, session_id), log in shelf.logs.items()
        if whose == tenant
        and (owner is None or any(is_of(run, owner) for run in log.runs.values()))
    ]
    return sorted(found, key=place_in_list)


def place_in_list(conversation: Conversation) -> tuple[float, str]:
    """Sorts the last updated first, equal ones by session id."""
    return -conversation.updated_at.timestamp(), conversation.session_id
