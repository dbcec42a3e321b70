"""Histories of the SQLite driver: how they hang together, and how they are read.

A history is a *lineage* of segments: the entries of a branch, before them those of its parent up to where
the branch began, and so on; in a fork the parent is another conversation's. `sqlite_log.py` writes them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tenure.memory import Owner
from tenure.messages import Message, Usage
from tenure.stores.base import Branch, Conversation, Entry
from tenure.stores.checks import unknown, unknown_revision
from tenure.stores.sqlite_media import Packed, unpack
from tenure.stores.sqlite_rows import Rows, Value

MESSAGE = "message"
FAILED = "failed"
"""The kinds of entry: of an ordinary run, and of one that failed and was kept."""

END = 2**62
"""Behind every entry."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The entries of one branch with `low < seq <= high`."""

    conversation_id: str
    branch: int
    low: int
    high: int

    @property
    def params(self) -> dict[str, str | int]:
        return {
            "conversation_id": self.conversation_id,
            "branch": self.branch,
            "low": self.low,
            "high": self.high,
        }


@dataclass(slots=True)
class Head:
    """A conversation's row, as it is or is going to be."""

    session_id: str
    conversation_id: str
    branch: int
    last_seq: int
    message_count: int
    revision: int
    created_at: str | None = None  # of one that is made in this operation

    @property
    def params(self) -> dict[str, str | int]:
        return {
            "session_id": self.session_id,
            "conversation_id": self.conversation_id,
            "branch": self.branch,
            "last_seq": self.last_seq,
            "message_count": self.message_count,
            "revision": self.revision,
        }


def find(rows: Rows, session_id: str) -> Head | None:
    """Return a conversation's row, or None."""
    row = rows.one("find_conversation", {"session_id": session_id})
    return None if row is None else _head(row)


def known(rows: Rows, session_id: str) -> Head:
    """Return a conversation's row.

    Raises:
        UnknownConversationError: There is none.
    """
    head = find(rows, session_id)
    if head is None:
        raise unknown(session_id)
    return head


def lineage(rows: Rows, head: Head) -> Iterator[Segment]:
    """Yield the segments of a history, the newest first; each is looked for only when it is asked for."""
    conversation_id, branch, high = head.conversation_id, head.branch, head.last_seq
    while high > 0:
        yield Segment(conversation_id, branch, 0, high)  # all entries of a branch are its own
        place = {"conversation_id": conversation_id, "branch": branch}
        found = rows.one("find_branch", place)
        assert found is not None, place
        if found["parent_branch"] is None:
            return
        conversation_id = found["parent_conversation_id"] or conversation_id
        branch, high = found["parent_branch"], min(high, found["parent_seq"])


def head_at(rows: Rows, head: Head, revision: int) -> Head | None:
    """The head as it was at a revision, but for `message_count`; None when that is not recorded."""
    if revision == 0:
        return replace(head, last_seq=0)
    if not 0 < revision <= head.revision:
        return None
    found = rows.one("find_commit", head.params, revision=revision)
    if found is None:
        return None
    return replace(head, branch=found["branch"], last_seq=found["last_seq"])


def read(rows: Rows, session_id: str, *, last: int | None, revision: int | None) -> list[Message]:
    """See `Store.read`."""
    head = find(rows, session_id)
    if head is None and not revision:
        return []
    if revision is not None:
        head = head_at(rows, head, revision) if head is not None else None
    if head is None:
        raise unknown_revision(session_id, revision or 0)
    bodies: list[str] = []
    for segment in lineage(rows, head):
        left = -1 if last is None else last - len(bodies)
        if left == 0:
            break
        found = rows.all("read_backward", segment.params, limit=left)
        bodies.extend(row["body"] for row in found)
    return [unpack(rows, body) for body in reversed(bodies)]


def entries(
    rows: Rows, session_id: str, *, after: int, limit: int | None, branch: int | None
) -> list[Entry]:
    """See `Store.entries`."""
    head = find(rows, session_id)
    if head is None:
        return []
    if branch is not None and branch != head.branch:
        head = replace(head, branch=branch, last_seq=END)
        if rows.one("find_branch", head.params) is None:
            return []
    segments = [
        replace(segment, low=max(segment.low, after))
        for segment in reversed(list(lineage(rows, head)))
        if segment.high > after
    ]
    return forward(rows, segments, limit=limit)


def branches(rows: Rows, session_id: str) -> list[Branch]:
    """See `Store.branches`."""
    head = find(rows, session_id)
    if head is None:
        return []
    return [
        Branch(
            branch=row["branch"],
            parent=None if row["parent_conversation_id"] is not None else row["parent_branch"],
            parent_seq=0 if row["parent_conversation_id"] is not None else row["parent_seq"],
            run_id=row["run_id"],
        )
        for row in rows.all("list_branches", {"conversation_id": head.conversation_id})
    ]


def conversation(rows: Rows, session_id: str) -> Conversation | None:
    """See `Store.conversation`."""
    row = rows.one("find_conversation", {"session_id": session_id})
    return None if row is None else _described(row)


def conversations(
    rows: Rows, *, limit: int | None, after: Conversation | None, owner: Owner | None
) -> list[Conversation]:
    """See `Store.conversations`."""
    params: dict[str, Value] = {"limit": -1 if limit is None else limit}
    params["agent_id"] = params["user_id"] = None
    if owner is not None:
        params["agent_id"] = owner.agent_id
        params["user_id"] = None if owner.all_users else owner.user_id or ""
    if after is None:
        found = rows.all("list_conversations", params)
    else:
        params["updated_at"] = after.updated_at.isoformat(timespec="microseconds")
        params["session_id"] = after.session_id
        found = rows.all("list_conversations_after", params)
    return [_described(row) for row in found]


def count(rows: Rows, segments: Iterable[Segment]) -> int:
    """Return how many entries there are in some segments."""
    counts = (rows.one("count_entries", segment.params) for segment in list(segments))
    return sum(int(row["count"]) for row in counts if row is not None)


def forward(rows: Rows, segments: Iterable[Segment], *, limit: int | None) -> list[Entry]:
    """Return the entries of some segments, the oldest segment first, at most `limit` of them."""
    found: list[sqlite3.Row] = []
    for segment in segments:
        left = -1 if limit is None else limit - len(found)
        if left == 0:
            break
        found.extend(rows.all("read_forward", segment.params, limit=left))
    return [
        Entry(
            seq=row["seq"],
            message=unpack(rows, row["body"]),
            run_id=row["run_id"],
            is_failed=row["kind"] == FAILED,
        )
        for row in found
    ]


def has_message(rows: Rows, segments: Iterable[Segment], message_id: str) -> bool:
    """Whether a message of this id is in one of some segments."""
    return any(
        rows.one("has_message", segment.params, message_id=message_id) is not None
        for segment in segments
    )


def unknown_to(rows: Rows, segments: Iterable[Segment], packed: Sequence[Packed]) -> list[Packed]:
    """The messages whose ids the history has not, each id once, in order."""
    segments = list(segments)
    unique = {p.message.id: p for p in reversed(packed)}
    return [p for p in reversed(unique.values()) if not has_message(rows, segments, p.message.id)]


def _head(row: sqlite3.Row) -> Head:
    return Head(
        session_id=row["session_id"],
        conversation_id=row["conversation_id"],
        branch=row["branch"],
        last_seq=row["last_seq"],
        message_count=row["message_count"],
        revision=row["revision"],
    )


def _described(row: sqlite3.Row) -> Conversation:
    return Conversation(
        session_id=row["session_id"],
        created_at=datetime.fromisoformat(row["created_at"]),
        updated_at=datetime.fromisoformat(row["updated_at"]),
        revision=row["revision"],
        branch=row["branch"],
        last_seq=row["last_seq"],
        message_count=row["message_count"],
        usage=Usage(
            input_tokens=row["input_tokens"],
            output_tokens=row["output_tokens"],
            requests=row["requests"],
        ),
        metadata=json.loads(row["metadata"]),
    )
