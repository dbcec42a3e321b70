"""What stores return: conversations, entries, branches, leases, and what came of a write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tenure.memory import Memory, NewMemory, Owner
from tenure.messages import Json, Message, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a store knows of one conversation, without its messages.

    Args:
        session_id: The user's name for it.
        created_at: When its first message was appended.
        updated_at: When its history last changed.
        revision: 1 after the first commit, and one more after each further one.
        branch: The branch that is its history now.
        last_seq: The highest sequence number of its history so far; the next entry gets the next one.
        message_count: How many messages a read of all would return.
        usage: The tokens of all replies ever appended to it, on whatever branch.
        metadata: The application's own notes; JSON values.
    """

    session_id: str
    created_at: datetime
    updated_at: datetime
    revision: int
    branch: int
    last_seq: int
    message_count: int
    usage: Usage = field(default_factory=Usage)
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json], hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One logged message, with its place.

    Args:
        seq: Its sequence number. Rising along a history; with gaps where something was removed.
        message: The message.
        run_id: The run that it came from, or None.
        is_failed: Whether that run failed, and was kept all the same.
    """

    seq: int
    message: Message
    run_id: str | None
    is_failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One version of a conversation's history.

    Args:
        branch: Its number in the conversation, from 1.
        parent: The branch that it continues, or None. (A fork's first branch has none here.)
        parent_seq: The last entry that the two share.
        run_id: Set while a run writes to it and it is not part of the history.
    """

    branch: int
    parent: int | None
    parent_seq: int
    run_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """What came of a write.

    Args:
        session_id: Where it went: the conversation asked for, or the fork made of it.
        revision: That conversation's revision afterwards; 0 when there is none.
        last_seq: That conversation's `last_seq` afterwards.
        written: How many messages were written; those that were there already do not count.
        memories: What was to be remembered with it, as it is in the store, in order.
    """

    session_id: str
    revision: int
    last_seq: int
    written: int
    memories: tuple[Memory, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """Who writes to a conversation in a run, and what they remember of it.

    Args:
        owner: Who; `Store.forget` removes what they wrote.
        memories: Added to the owner's in the same transaction as the messages; what says the same as
            one that is there is not added again.
        ends_run: Whether the run has ended with this; see `run_base.py`. Also when there is no message
            to write.
    """

    owner: Owner
    memories: Sequence[NewMemory] = ()
    ends_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What `Store.forget` removed.

    Args:
        memories: How many memories.
        conversations: The session ids of the conversations that are gone.
        messages: How many messages were in their histories, or were taken out of others'.
        shared: The session ids of the conversations that others took part in, too, and go on.
    """

    memories: int = 0
    conversations: tuple[str, ...] = ()
    messages: int = 0
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to run on a conversation, until it is released, or expires and somebody takes it.

    Args:
        session_id: The conversation.
        holder: Who has it.
        token: Rises with every new holder, so that a late write of an earlier one is told apart.
    """

    session_id: str
    holder: str
    token: int
