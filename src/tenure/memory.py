"""What one long-term memory is, whose it is, and how memories are asked for: values that know no storage.

`memories.py` is what one works with; `stores/memory_base.py` says how they are kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, cast

from tenure.clock import in_utc
from tenure.conditions import Condition, condition
from tenure.errors import InvalidValueError
from tenure.mappings import empty
from tenure.messages import Json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector: TypeAlias = NDArray[np.float32]

DEFAULT_IMPORTANCE = 0.5

OrderBy: TypeAlias = Literal["relevance", "created_at", "updated_at"]
Order: TypeAlias = Literal["asc", "desc"]
Metric: TypeAlias = Literal["cosine", "euclidean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose memories a handle reads and writes, inside a store's tenant.

    Args:
        agent_id: The agent.
        user_id: Its user; None is the owner without one, who never sees a user's memories.
        all_users: All owners of the agent at once, to read only.
    """

    agent_id: str
    user_id: str | None = None
    all_users: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a memory came from.

    Args:
        run_id: The run in which it was made.
        message_ids: The messages that say it.
    """

    run_id: str | None = None
    message_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMemory:
    """A memory to be added; what is None is filled in, or left open.

    Args:
        content: Its text, not empty.
        metadata: JSON values.
        graph_id: A label.
        task_id: A label.
        session_id: A label: the conversation that it belongs to.
        position: Its place in that conversation; neighbours lift each other in a search.
        speaker: Who said it.
        importance: 0 to 1.
        valid_from: Since when it is true; from ever when None.
        valid_to: Until when (then no more); for ever when None.
        created_at: When it was said; now when None.
        provenance: Where it came from.
    """

    content: str
    metadata: Mapping[str, Json] = field(default_factory=empty, hash=False)
    graph_id: str | None = None
    task_id: str | None = None
    session_id: str | None = None
    position: int | None = None
    speaker: str | None = None
    importance: float = DEFAULT_IMPORTANCE
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    created_at: datetime | None = None
    provenance: Provenance = field(default_factory=Provenance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One long-term memory, as it is in the store.

    Args:
        id: Its name; a UUID.
        tenant: Whose it is.
        agent_id: Whose it is.
        user_id: Whose it is.
        content: Its text.
        content_hash: `b2:` and the BLAKE2b hash of the text.
        created_at: When it was said, if that was given, else added.
        updated_at: When it was added, or last changed; its embedding is no change.
        version: 1, and one more after every change.
        embedding: float32 `[d]` of unit norm, read-only; None while there is none.
        score: How well it matched, from a search; comparable within one search only.
        signals: What the score is the sum of, by name, when asked to `explain`.
    """

    id: str
    tenant: str
    agent_id: str
    user_id: str | None
    graph_id: str | None = None
    task_id: str | None = None
    session_id: str | None = None
    position: int | None = None
    speaker: str | None = None
    content: str
    content_hash: str
    metadata: Mapping[str, Json] = field(default_factory=empty, hash=False)
    importance: float = DEFAULT_IMPORTANCE
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    created_at: datetime
    updated_at: datetime
    version: int = 1
    provenance: Provenance = field(default_factory=Provenance)
    embedding: Vector | None = field(default=None, compare=False, repr=False)
    score: float | None = None
    signals: Mapping[str, float] | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChanges:
    """What to change of a memory; None leaves it as it is.

    Args:
        content: Its new text; it is embedded anew.
        metadata: Replaces all of the old one.
        importance: 0 to 1.
        valid_from: Since when it is true.
        valid_to: Until when.
    """

    content: str | None = None
    metadata: Mapping[str, Json] | None = None
    importance: float | None = None
    valid_from: datetime | None = None
    valid_to: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFilter:
    """Which memories are meant; what is None filters nothing, and all that is given has to hold.

    Args:
        graph_id: Only those with this label.
        task_id: Only those with this label.
        session_id: Only those with this label.
        speaker: Only what this one said.
        start_date: Only those created then or later.
        end_date: Only those created then or earlier.
        as_of: Only those that are true then: `valid_from <= as_of < valid_to`.
        where: A condition on the metadata; see `conditions.py`.
    """

    graph_id: str | None = None
    task_id: str | None = None
    session_id: str | None = None
    speaker: str | None = None
    start_date: datetime | None = None
    end_date: datetime | None = None
    as_of: datetime | None = None
    where: Mapping[str, object] | None = None

    def checked(self) -> MemoryFilter:
        """Return the same filter with times in UTC.

        Raises:
            InvalidValueError: A time has no time zone, or the condition is none.
        """
        self.condition()
        return replace(
            self,
            start_date=_utc_or_none(self.start_date),
            end_date=_utc_or_none(self.end_date),
            as_of=_utc_or_none(self.as_of),
        )

    def condition(self) -> Condition | None:
        """Return the condition on metadata, if there is one."""
        return None if self.where is None else condition(self.where)


class FilterFields(TypedDict, total=False):
    """The fields of a `MemoryFilter`, as arguments of a method."""

    graph_id: str | None
    task_id: str | None
    session_id: str | None
    speaker: str | None
    start_date: datetime | None
    end_date: datetime | None
    as_of: datetime | None
    where: Mapping[str, object] | None


ALL = MemoryFilter()
"""The filter that everything passes."""


def to_dict(memory: Memory) -> dict[str, Json]:
    """Return a memory as JSON values: all that is set of it, but for its embedding."""
    data: dict[str, Json] = {}
    for each in fields(memory):
        value = getattr(memory, each.name)
        match value:
            case None:
                continue
            case datetime():
                data[each.name] = value.isoformat()
            case Provenance():
                if value != Provenance():
                    data[each.name] = {
                        "run_id": value.run_id,
                        "message_ids": list(value.message_ids),
                    }
            case _ if each.name == "embedding":
                continue
            case _ if isinstance(value, Mapping):
                data[each.name] = dict(cast("Mapping[str, Json]", value))
            case _:
                data[each.name] = value
    return data


def is_of(found: Owner, wanted: Owner) -> bool:
    """Whether an owner is the wanted one, or one of those whom it stands for."""
    if wanted.all_users:
        return found.agent_id == wanted.agent_id
    return found == wanted


def passes(memory: Memory, wanted: MemoryFilter) -> bool:
    """Whether a memory passes a filter."""
    labels = ("graph_id", "task_id", "session_id", "speaker")
    given = {label: value for label in labels if (value := getattr(wanted, label)) is not None}
    start, end, then = wanted.start_date, wanted.end_date, wanted.as_of
    holds = wanted.condition()
    return (
        all(getattr(memory, label) == value for label, value in given.items())
        and (start is None or memory.created_at >= start)
        and (end is None or memory.created_at <= end)
        and (then is None or memory.valid_from is None or memory.valid_from <= then)
        and (then is None or memory.valid_to is None or then < memory.valid_to)
        and (holds is None or holds(memory.metadata))
    )


# --- making and checking ----------------------------------------------------------------------


def content_hash(content: str) -> str:
    """Return the hash of a text, which may have halves of surrogate pairs."""
    digest = blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16)
    return f"b2:{digest.hexdigest()}"


def sameness(memory: Memory) -> str:
    """Return a hash that two memories of one owner share when they say the same in the same place.

    The same text in another conversation, at another place of it, by another speaker, or about
    another time is another memory.
    """
    parts = [
        memory.content_hash,
        memory.graph_id,
        memory.task_id,
        memory.session_id,
        memory.position,
        memory.speaker,
        _iso(memory.valid_from),
        _iso(memory.valid_to),
    ]
    return content_hash(json.dumps(parts))


def checked_content(content: str) -> str:
    """Return the text of a memory.

    Raises:
        InvalidValueError: It is empty, or no text.
    """
    if not isinstance(content, str):  # pyright: ignore[reportUnnecessaryIsInstance] # users err
        raise InvalidValueError(
            f"The content of a memory is a text, not an object of type {type(content).__name__}."
        )
    if not content:
        raise InvalidValueError("The content of a memory is empty; give it a text.")
    return content


def checked_importance(importance: float) -> float:
    """Return an importance.

    Raises:
        InvalidValueError: It is not between 0 and 1.
    """
    if not (isinstance(importance, int | float) and 0 <= importance <= 1):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidValueError(f"importance={importance!r} must be between 0 and 1.")
    return float(importance)


def checked_validity(valid_from: datetime | None, valid_to: datetime | None) -> None:
    """Check that a memory is true for some time.

    Raises:
        InvalidValueError: It would end before it begins.
    """
    if valid_from is not None and valid_to is not None and valid_to <= valid_from:
        raise InvalidValueError(
            f"valid_to={_iso(valid_to)!r} is not after valid_from={_iso(valid_from)!r}."
        )


def changed(memory: Memory, changes: MemoryChanges, now: datetime) -> Memory:
    """Return a memory with some changes, as its next version.

    Raises:
        InvalidValueError: A change is of the wrong value.
    """
    content = memory.content if changes.content is None else checked_content(changes.content)
    importance = changes.importance
    valid_from = _utc_or_none(changes.valid_from) or memory.valid_from
    valid_to = _utc_or_none(changes.valid_to) or memory.valid_to
    checked_validity(valid_from, valid_to)
    return replace(
        memory,
        content=content,
        content_hash=content_hash(content),
        metadata=memory.metadata if changes.metadata is None else changes.metadata,
        importance=memory.importance if importance is None else checked_importance(importance),
        valid_from=valid_from,
        valid_to=valid_to,
        updated_at=now,
        version=memory.version + 1,
        embedding=memory.embedding if content == memory.content else None,
    )


def _utc_or_none(moment: datetime | None) -> datetime | None:
    return None if moment is None else in_utc(moment)


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="microseconds")
