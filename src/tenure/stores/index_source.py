"""What an `OwnerIndex` is told by a driver: the memories of an owner, and what has changed of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tenure.messages import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedMemory:
    """What the index needs to know of one memory.

    Times are in microseconds since 1970. `terms` is JSON: how often each term is in it, `length` the sum.
    `asks` is whether it has a question.
    """

    number: int
    id: str
    graph_id: str | None
    task_id: str | None
    session_id: str | None
    position: int | None
    speaker: str | None
    importance: float
    created: int
    updated: int
    valid_from: int | None
    valid_to: int | None
    metadata: Mapping[str, Json]
    length: int
    terms: str
    asks: bool


class Source(Protocol):
    """Where an index learns what there is: one state of the store, newer than what it was told before."""

    def renew(self) -> None:
        """Look at the newest state; the one before may have been read while another search went on."""
        ...

    def latest(self) -> int:
        """Return the newest revision."""
        ...

    def told_since(self) -> int:
        """Return the revision up to which removals are forgotten: an older index must begin anew."""
        ...

    def removed(self, after: int) -> Iterable[int]:
        """Return the numbers of the memories removed after a revision."""
        ...

    def changed(self, after: int) -> Iterable[IndexedMemory]:
        """Return the memories added or changed after a revision."""
        ...

    def vectors(self, identity: str, after: int) -> Iterable[tuple[int, bytes]]:
        """Return number and vector (float32, little-endian) of what was embedded, or of the memories
        changed, after a revision.
        """
        ...

    def postings(self, term: str) -> Iterable[tuple[int, int]]:
        """Return the numbers of the memories that have a term, and how often."""
        ...


def micros(moment: datetime) -> int:
    """Return a time as whole microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
