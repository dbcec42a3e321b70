"""The written contract of a store: what every driver does, word for word.

A store keeps conversations. A conversation is a log of messages under a session id; it is only ever
appended to. What holds for every operation, in every driver:

- **Order.** Messages come back in the order in which they were appended, whatever their times say.
  Appends of several callers are each whole: no caller's messages stand between another's.
- **Atomicity.** An operation happens completely or not at all, also when the process is killed in it.
- **Durability.** When an append has returned, its messages survive the death of the process. Whether
  they survive a power loss too is the driver's to say (SQLite: with `durable=True`).
- **Cancellation.** A cancelled write is either done or not done, and the next read tells which.
- **Missing ids.** Reading a conversation that does not exist gives an empty list or None; appending to
  it creates it.
- **Copies.** What is read shares nothing with what was appended: a change of one is not seen in the other.
- **Where.** A store may be used from any thread and any event loop, one after another or at once, and
  blocks none of them.

Errors are `StoreError`s. After `close()` every operation raises `StoreClosedError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tenure.errors import InvalidValueError
from tenure.messages import Message

DEFAULT_TENANT = ""
"""The tenant of everything that was given no other one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a store knows of one conversation, without its messages.

    Args:
        session_id: The user's name for it.
        created_at: When its first message was appended.
        updated_at: When its last message was appended.
        revision: 1 after the first append that wrote something, and one more after each further one.
        message_count: How many messages a read of all would return.
    """

    session_id: str
    created_at: datetime
    updated_at: datetime
    revision: int
    message_count: int


class Store(ABC):
    """Keeps conversations; see the module for what holds for every operation."""

    @abstractmethod
    async def append(
        self, session_id: str, messages: Sequence[Message], *, run_id: str | None = None
    ) -> int:
        """Append messages to a conversation, creating it when there is none.

        A message whose id the conversation has already is skipped, so that a second call with the
        same messages changes nothing. When nothing is left to write, neither the revision nor
        `updated_at` changes, and no conversation is created.

        Args:
            session_id: The conversation.
            messages: In order.
            run_id: The agent run that they come from, or None.

        Returns:
            The conversation's revision afterwards; 0 when there is none.

        Raises:
            InvalidValueError: The session id or a message cannot be stored; nothing was.
            StoreError: The database failed; nothing was stored.
        """

    @abstractmethod
    async def read(self, session_id: str, *, last: int | None = None) -> list[Message]:
        """Return a conversation's messages in order; empty when there is none.

        Args:
            session_id: The conversation.
            last: Only the last so many messages (their results' calls may be before them); all when
                None. Costs as much as it returns, whatever the conversation's length.

        Raises:
            StoreError: The database failed, or a row cannot be read.
        """

    @abstractmethod
    async def conversation(self, session_id: str) -> Conversation | None:
        """Return what is known of one conversation, or None when there is none."""

    @abstractmethod
    async def conversations(self, *, limit: int | None = None) -> list[Conversation]:
        """Return the conversations, the last updated first, at most `limit` of them."""

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Whether `close()` was called."""

    @abstractmethod
    async def close(self) -> None:
        """Release files and threads, after the writes under way are done. A second call is a no-op."""


def checked_session_id(session_id: str) -> str:
    """Return a session id that every driver can keep.

    Any text will do, verbatim, that is not empty and that UTF-8 can encode without a NUL.

    Raises:
        InvalidValueError: It cannot be kept; the text says why.
    """
    if not isinstance(session_id, str):  # pyright: ignore[reportUnnecessaryIsInstance] # users err
        raise InvalidValueError(
            f"A session id is a text, not {session_id!r} of type {type(session_id).__name__}."
        )
    if not session_id:
        raise InvalidValueError(
            "The session id is empty; give each conversation a name, such as the user's id."
        )
    if "\0" in session_id:
        raise InvalidValueError(f"The session id {session_id!r} has a NUL character; leave it out.")
    if not _is_utf8(session_id):
        raise InvalidValueError(
            f"The session id {session_id!a} has half a surrogate pair; leave it out."
        )
    return session_id


def checked_message_ids(messages: Sequence[Message]) -> None:
    """Check that every message's id can be a key.

    Raises:
        InvalidValueError: One is empty, or has half a surrogate pair.
    """
    for message in messages:
        if not message.id or not _is_utf8(message.id):
            raise InvalidValueError(
                f"A {message.role} message has the id {message.id!a}, which cannot be stored; "
                "leave id= out to get one made."
            )


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
