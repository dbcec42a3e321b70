"""What every driver checks in the same way, and the errors that all of them raise in the same words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import NoneType
from typing import cast

from tenure.errors import (
    ConflictError,
    ConversationBusyError,
    ConversationExistsError,
    InvalidValueError,
    LeaseLostError,
    UnknownConversationError,
)
from tenure.messages import (
    AssistantMessage,
    Json,
    Message,
    SystemMessage,
    ToolMessage,
    Usage,
    UserMessage,
)
from tenure.stores.base import Lease, OnConflict


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


def checked_name(name: str, what: str) -> str:
    """Return the name of a tenant, a run or a holder, if every driver can keep it; it may be empty.

    Raises:
        InvalidValueError: It has a NUL or half a surrogate pair.
    """
    if "\0" in name or not _is_utf8(name):
        raise InvalidValueError(
            f"The {what} {name!a} has a NUL or half a surrogate pair; leave it out."
        )
    return name


def checked_message_ids(messages: Iterable[Message]) -> None:
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


def checked_metadata(metadata: Mapping[str, Json]) -> str:
    """Return the canonical JSON of a conversation's metadata.

    Raises:
        InvalidValueError: It would not come back as it is; the text names what.
    """
    try:
        value = dict(metadata)
        _require_exact(value, "it")
        text = json.dumps(value, ensure_ascii=True, sort_keys=True, allow_nan=False)
        if json.loads(text) != value:
            raise ValueError("it has the halves of a surrogate pair side by side")
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidValueError(f"The metadata cannot be stored: {exc}; give JSON values.") from exc
    return text


def _require_exact(value: object, where: str) -> None:
    """Refuse what JSON would turn into something else in silence."""
    if type(value) is dict:
        for key, item in cast("dict[object, object]", value).items():
            if type(key) is not str:
                raise TypeError(f"{where} has the key {key!r} of type {type(key).__qualname__}")
            _require_exact(item, f"{where}[{key!r}]")
    elif type(value) is list:
        for index, item in enumerate(cast("list[object]", value)):
            _require_exact(item, f"{where}[{index}]")
    elif type(value) not in (str, int, float, bool, NoneType):
        raise TypeError(f"{where} is of type {type(value).__qualname__}")


def checked_after(after: int, last_seq: int) -> int:
    """Return a place in a history that ends at `last_seq`.

    Raises:
        InvalidValueError: It is before the beginning or behind the end.
    """
    if not 0 <= after <= last_seq:
        raise InvalidValueError(
            f"after={after!r} is not in this history, whose entries go from 1 to {last_seq}."
        )
    return after


MOST = 2**63 - 1
"""No history has so many entries; databases know no larger numbers."""


def checked_count(count: int, what: str) -> int:
    """Return how many of something a caller wants, as a number that every driver takes.

    Raises:
        InvalidValueError: It is negative.
    """
    if count < 0:
        raise InvalidValueError(f"{what}={count!r} must not be negative; leave it out for all.")
    return min(count, MOST)


def checked_limit(limit: int | None, what: str = "limit") -> int | None:
    """The same, where None is all."""
    return None if limit is None else checked_count(limit, what)


def checked_lease(lease: Lease | None, session_id: str) -> Lease | None:
    """Return the lease that a write is given, if it is one of this conversation.

    Raises:
        InvalidValueError: It is another conversation's.
    """
    if lease is not None and lease.session_id != session_id:
        raise InvalidValueError(
            f"The lease is for conversation {lease.session_id!r}, and this write is to {session_id!r}."
        )
    return lease


def checked_on_conflict(on_conflict: OnConflict) -> OnConflict:
    """Return what to do about a conflict.

    Raises:
        InvalidValueError: It is none of what there is.
    """
    if on_conflict not in ("raise", "rebase", "fork"):
        raise InvalidValueError(f"on_conflict={on_conflict!r} must be 'raise', 'rebase' or 'fork'.")
    return on_conflict


def checked_redacted(message: object) -> Message | None:
    """Return what a redaction returned.

    Raises:
        InvalidValueError: It is no message.
    """
    kinds = (SystemMessage, UserMessage, AssistantMessage, ToolMessage)
    if message is None or isinstance(message, kinds):
        return message
    raise InvalidValueError(
        f"The redaction returned an object of type {type(message).__name__}; return a message, or "
        "None to remove it."
    )


def conflict(session_id: str, *, expected_revision: int, revision: int) -> ConflictError:
    """The error of a write that expected another revision."""
    return ConflictError(
        f"The conversation {session_id!r} is at revision {revision}, and not at "
        f"{expected_revision} as expected: somebody else has written; read it again, or append "
        "with on_conflict='rebase' or 'fork'.",
        expected_revision=expected_revision,
        revision=revision,
    )


def lease_lost(lease: Lease) -> LeaseLostError:
    """The error of a write under a lease that is somebody else's now."""
    return LeaseLostError(
        f"The lease on conversation {lease.session_id!r} was lost to another run, so nothing was "
        "written; run again."
    )


def unknown(session_id: str) -> UnknownConversationError:
    """The error of a write to a conversation that must be there."""
    return UnknownConversationError(
        f"There is no conversation {session_id!r}; append to it to create it."
    )


def unknown_revision(session_id: str, revision: int) -> InvalidValueError:
    """The error of a read of a history that never was."""
    return InvalidValueError(
        f"The conversation {session_id!r} has never been at revision {revision}; `conversation` says "
        "at which it is now."
    )


def existing(session_id: str) -> ConversationExistsError:
    """The error of a name that is taken."""
    return ConversationExistsError(
        f"There is a conversation {session_id!r} already; choose another name."
    )


def busy(session_id: str) -> ConversationBusyError:
    """The error of a conversation that a run is using."""
    return ConversationBusyError(
        f"Another run is using the conversation {session_id!r}; wait for it and try again."
    )


def reply_usage(messages: Iterable[Message]) -> Usage:
    """The tokens of the replies among some messages, without the providers' own counters."""
    total = Usage()
    for message in messages:
        if isinstance(message, AssistantMessage) and message.usage is not None:
            total += replace(message.usage, details={})
    return total


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
