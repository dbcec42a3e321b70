"""Memories as the drivers keep them: checked, filled in, and as canonical JSON both ways.

`memory_checks.py` checks everything else that they are given.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from tenure.clock import Clock, in_utc
from tenure.errors import ConflictError, InvalidValueError
from tenure.memory import (
    Memory,
    MemoryChanges,
    NewMemory,
    Owner,
    Provenance,
    changed,
    checked_content,
    checked_importance,
    checked_validity,
    content_hash,
)
from tenure.stores.checks import checked_metadata
from tenure.stores.index_source import IndexedMemory, micros
from tenure.stores.memory_checks import checked_labels

if TYPE_CHECKING:
    from tenure.memory import Vector
    from tenure.messages import Json

_TIMES = ("valid_from", "valid_to", "created_at", "updated_at")
_LABELS = ("graph_id", "task_id", "session_id", "speaker")


def made(new: NewMemory, owner: Owner, *, tenant: str, clock: Clock, now: datetime) -> Prepared:
    """Return what is to be stored for a new memory.

    Raises:
        InvalidValueError: Something of it cannot be stored; the text says what.
    """
    content = checked_content(new.content)
    checked_labels(**{label: getattr(new, label) for label in _LABELS})
    if new.position is not None and not _is_place(new.position):
        raise InvalidValueError(f"position={new.position!r} must be a whole number of 64 bits.")
    valid_from = None if new.valid_from is None else in_utc(new.valid_from)
    valid_to = None if new.valid_to is None else in_utc(new.valid_to)
    checked_validity(valid_from, valid_to)
    created_at = now if new.created_at is None else in_utc(new.created_at)
    memory = Memory(
        id=clock.new_id(),
        tenant=tenant,
        agent_id=owner.agent_id,
        user_id=owner.user_id,
        graph_id=new.graph_id,
        task_id=new.task_id,
        session_id=new.session_id,
        position=new.position,
        speaker=new.speaker,
        content=content,
        content_hash=content_hash(content),
        metadata=_copied(new.metadata),
        importance=checked_importance(new.importance),
        valid_from=valid_from,
        valid_to=valid_to,
        created_at=created_at,
        updated_at=now,
        provenance=new.provenance,
    )
    return prepared(memory)


async def prepared_memories(
    new: Sequence[NewMemory], owner: Owner, *, tenant: str, clock: Clock
) -> list[Prepared]:
    """Return what is to be stored for new memories, in order; terms are made in a thread of asyncio's.

    Raises:
        InvalidValueError: Something of them cannot be stored; the text says what.
    """
    if not new:
        return []
    now = clock.now()
    return await asyncio.to_thread(
        lambda: [made(each, owner, tenant=tenant, clock=clock, now=now) for each in new]
    )


def next_version(
    memory: Memory, changes: MemoryChanges, now: datetime, *, expected_version: int | None
) -> Memory:
    """Return a memory as it is after an update; the same object when that changes nothing.

    Raises:
        ConflictError: It is not at the version that was expected.
        InvalidValueError: A change cannot be stored.
    """
    if expected_version is not None and expected_version != memory.version:
        raise ConflictError(
            f"The memory {memory.id!r} is at version {memory.version}, and not at "
            f"{expected_version} as expected: somebody else has changed it; read it again.",
            expected_revision=expected_version,
            revision=memory.version,
        )
    if changes.metadata is not None:
        changes = replace(changes, metadata=_copied(changes.metadata))
    after = changed(memory, changes, now)
    same = replace(after, updated_at=memory.updated_at, version=memory.version)
    return memory if to_record(same) == to_record(memory) else after


def to_record(memory: Memory) -> str:
    """Return the canonical JSON of a memory, but for its owner, its vector, and what a search says of it.

    Raises:
        InvalidValueError: Its provenance cannot be written.
    """
    data: dict[str, object] = {
        "id": memory.id,
        "content": memory.content,
        "content_hash": memory.content_hash,
        "importance": memory.importance,
        "version": memory.version,
    }
    for name in (*_LABELS, "position"):
        if (value := getattr(memory, name)) is not None:
            data[name] = value
    for name in _TIMES:
        if (moment := getattr(memory, name)) is not None:
            data[name] = moment.isoformat(timespec="microseconds")
    if memory.metadata:
        data["metadata"] = memory.metadata
    if memory.provenance != Provenance():
        data["provenance"] = {
            "run_id": memory.provenance.run_id,
            "message_ids": list(memory.provenance.message_ids),
        }
    try:
        return json.dumps(data, ensure_ascii=True, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise InvalidValueError(f"The memory cannot be stored: {exc}.") from exc


def from_record(
    record: str,
    *,
    tenant: str,
    agent_id: str,
    user_id: str | None,
    embedding: Vector | None = None,
) -> Memory:
    """Return the memory that `to_record` wrote."""
    data = cast("dict[str, Any]", json.loads(record))
    for name in _TIMES:
        if name in data:
            data[name] = datetime.fromisoformat(data[name])
    if "provenance" in data:
        run_id, ids = data["provenance"]["run_id"], data["provenance"]["message_ids"]
        data["provenance"] = Provenance(run_id=run_id, message_ids=tuple(ids))
    return Memory(**data, tenant=tenant, agent_id=agent_id, user_id=user_id, embedding=embedding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A memory, and what is stored of it.

    Args:
        memory: The memory.
        record: Its canonical JSON.
        counts: How often each term is in it: those of its text, and of its date as words.
        terms: The JSON of these.
        length: The sum of these.
        asks: Whether it has a question.
    """

    memory: Memory
    record: str
    counts: Mapping[str, int]
    terms: str
    length: int
    asks: bool


def prepared(memory: Memory) -> Prepared:
    """Return what is to be stored of a memory; about 0.3 ms of work.

    Raises:
        InvalidValueError: It cannot be written.
    """
    from tenure.terms import date_terms, has_question, terms  # which loads the stemmers

    counts = Counter([*terms(memory.content), *date_terms(memory.created_at)])
    return Prepared(
        memory=memory,
        record=to_record(memory),
        counts=counts,
        terms=json.dumps(counts, sort_keys=True),
        length=counts.total(),
        asks=has_question(memory.content),
    )


def metadata_of(record: str) -> Mapping[str, Json]:
    """Return the metadata in a record."""
    return cast("dict[str, Any]", json.loads(record)).get("metadata", {})


def content_of(record: str) -> tuple[str, str]:
    """Return the text in a record, and its hash."""
    data = cast("dict[str, Any]", json.loads(record))
    return data["content"], data["content_hash"]


def indexed(number: int, record: str, *, terms: str, length: int, asks: bool) -> IndexedMemory:
    """Return what an index needs of a memory; `terms`, `length` and `asks` are those of `Prepared`."""
    data = cast("dict[str, Any]", json.loads(record))
    times = {name: micros(datetime.fromisoformat(data[name])) for name in _TIMES if name in data}
    return IndexedMemory(
        number=number,
        id=data["id"],
        graph_id=data.get("graph_id"),
        task_id=data.get("task_id"),
        session_id=data.get("session_id"),
        position=data.get("position"),
        speaker=data.get("speaker"),
        importance=data["importance"],
        created=times["created_at"],
        updated=times["updated_at"],
        valid_from=times.get("valid_from"),
        valid_to=times.get("valid_to"),
        metadata=data.get("metadata", {}),
        length=length,
        terms=terms,
        asks=asks,
    )


def _copied(metadata: Mapping[str, Json]) -> Mapping[str, Json]:
    """Check metadata, and share nothing that can be changed with the caller."""
    return cast("dict[str, Json]", json.loads(checked_metadata(metadata)))


def _is_place(position: object) -> bool:
    return isinstance(position, int) and not isinstance(position, bool) and abs(position) < 2**63
