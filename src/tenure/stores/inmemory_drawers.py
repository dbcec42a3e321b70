"""Where the store in RAM keeps memories. `inmemory_memories.py` works on it."""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tenure.memory import sameness
from tenure.stores.index_cache import IndexCache
from tenure.stores.memory_base import EmbedderRecord
from tenure.stores.memory_records import Prepared, indexed

if TYPE_CHECKING:
    from tenure.stores.index_source import IndexedMemory


@dataclass(slots=True)
class Kept:
    """One memory, with what it was before."""

    item: Prepared
    revision: int
    versions: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Drawer:
    """The memories of one owner, by number."""

    user_id: str | None
    kept: dict[int, Kept] = field(default_factory=dict[int, Kept])
    removed: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Revision and number, in order."""
    vectors: dict[str, dict[int, tuple[int, bytes]]] = field(
        default_factory=dict[str, dict[int, tuple[int, bytes]]]
    )
    """Identity -> number -> revision and vector."""
    identity: str | None = None
    """Of the embedder whose vectors answer."""
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    """By id."""
    same: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Which say the same, the oldest first."""

    def put(self, number: int, kept: Kept) -> None:
        """Keep a memory that is new, or has changed."""
        if number in self.kept:
            self.take(number)
        self.kept[number] = kept
        self.numbers[kept.item.memory.id] = number
        insort(self.same.setdefault(sameness(kept.item.memory), []), number)

    def take(self, number: int) -> None:
        """Keep a memory no more."""
        memory = self.kept.pop(number).item.memory
        del self.numbers[memory.id]
        self.same[sameness(memory)].remove(number)


class Cabinet:
    """What the handles of all owners share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_closed = False
        self.revision = 0
        self.drawers: dict[tuple[str, str, str | None], Drawer] = {}
        self.embedders: dict[tuple[str, str], EmbedderRecord] = {}
        self.indexes = IndexCache()


class DrawerSource:
    """What an index is told, from some drawers."""

    def __init__(self, cabinet: Cabinet, drawers: Sequence[Drawer]) -> None:
        self._cabinet = cabinet
        self._drawers = drawers

    def renew(self) -> None:
        """Do nothing: there is only one state."""

    def latest(self) -> int:
        return self._cabinet.revision

    def told_since(self) -> int:
        return 0

    def removed(self, after: int) -> Iterable[int]:
        return [n for drawer in self._drawers for rev, n in drawer.removed if rev > after]

    def changed(self, after: int) -> Iterator[IndexedMemory]:
        for drawer in self._drawers:
            for number, kept in drawer.kept.items():
                if kept.revision > after:
                    item = kept.item
                    yield indexed(
                        number,
                        item.record,
                        terms=item.terms,
                        length=item.length,
                        asks=item.asks,
                    )

    def vectors(self, identity: str, after: int) -> Iterator[tuple[int, bytes]]:
        for drawer in self._drawers:
            for number, (revision, vector) in drawer.vectors.get(identity, {}).items():
                if revision > after:
                    yield number, vector

    def postings(self, term: str) -> Iterator[tuple[int, int]]:
        for drawer in self._drawers:
            for number, kept in drawer.kept.items():
                if term in kept.item.counts:
                    yield number, kept.item.counts[term]
