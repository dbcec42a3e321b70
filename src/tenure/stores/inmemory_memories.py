"""The memories of one owner in RAM: the reference for every other driver.

It keeps the JSON that the others keep in their rows. Everything is done in a thread of asyncio's, behind a
lock, since making terms and searching take longer than an event loop should wait.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from tenure.errors import StoreClosedError
from tenure.memory import (
    ALL,
    Memory,
    MemoryChanges,
    MemoryFilter,
    NewMemory,
    Order,
    OrderBy,
    Owner,
    passes,
    sameness,
)
from tenure.stores.checks import checked_count, checked_limit
from tenure.stores.index_source import micros
from tenure.stores.inmemory_drawers import Cabinet, Drawer, DrawerSource, Kept
from tenure.stores.memory_base import (
    Embedded,
    EmbedderRecord,
    Found,
    MemoryQuery,
    MemoryStore,
    Unembedded,
)
from tenure.stores.memory_checks import (
    checked_dimensions,
    checked_order,
    checked_order_by,
    checked_owner,
    checked_query,
    other_dimensions,
    refuse_writing,
)
from tenure.stores.memory_records import (
    Prepared,
    from_record,
    next_version,
    prepared,
    prepared_memories,
)

if TYPE_CHECKING:
    from tenure.clock import Clock
    from tenure.memory import Vector

T = TypeVar("T")


class InMemoryMemoryStore(MemoryStore):
    """Made by `InMemoryStore.memories`."""

    def __init__(self, owner: Owner, *, tenant: str, clock: Clock, cabinet: Cabinet) -> None:
        self.owner = checked_owner(owner)
        self._tenant = tenant
        self._clock = clock
        self._cabinet = cabinet

    async def add(self, new: Sequence[NewMemory], *, deduplicate: bool = True) -> list[Memory]:
        refuse_writing(self.owner)
        owner, tenant, clock = self.owner, self._tenant, self._clock
        ready = await prepared_memories(new, owner, tenant=tenant, clock=clock)
        return await self._done(lambda: self._add(ready, deduplicate=deduplicate))

    async def get(self, memory_id: str) -> Memory | None:
        return await self._done(lambda: self._get(memory_id))

    async def list(
        self,
        filter_: MemoryFilter = ALL,
        *,
        limit: int | None = None,
        offset: int = 0,
        order_by: OrderBy = "created_at",
        order: Order = "desc",
    ) -> list[Memory]:
        limit = checked_limit(limit)
        offset = checked_count(offset, "offset")
        checked_order_by(order_by)
        checked_order(order)
        wanted = filter_.checked()
        end = None if limit is None else offset + limit

        def listed() -> list[Memory]:
            found = [memory for _, _, memory in self._passing(wanted)]
            found.sort(key=lambda m: (getattr(m, order_by), m.id), reverse=order == "desc")
            return found[offset:end]

        return await self._done(listed)

    async def count(self, filter_: MemoryFilter = ALL) -> int:
        wanted = filter_.checked()
        return await self._done(lambda: sum(1 for _ in self._passing(wanted)))

    async def update(
        self, memory_id: str, changes: MemoryChanges, *, expected_version: int | None = None
    ) -> Memory | None:
        refuse_writing(self.owner)
        return await self._done(lambda: self._update(memory_id, changes, expected_version))

    async def delete(self, memory_id: str) -> bool:
        refuse_writing(self.owner)

        def deleted() -> bool:
            drawer, number = self._place(memory_id)
            if drawer is None or number is None:
                return False
            self._remove(drawer, [number])
            return True

        return await self._done(deleted)

    async def clear(self, filter_: MemoryFilter = ALL) -> int:
        refuse_writing(self.owner)
        wanted = filter_.checked()

        def cleared() -> int:
            found = [(drawer, number) for drawer, number, _ in self._passing(wanted)]
            for drawer, number in found:
                self._remove(drawer, [number])
            return len(found)

        return await self._done(cleared)

    async def history(self, memory_id: str) -> list[Memory]:
        def versions() -> list[Memory]:
            drawer, number = self._place(memory_id)
            if drawer is None or number is None:
                return []
            kept = drawer.kept[number]
            return [self._memory(drawer, r) for r in (*kept.versions, kept.item.record)]

        return await self._done(versions)

    async def search(self, query: MemoryQuery) -> Found:
        query = checked_query(query)
        return await self._done(lambda: self._search(query))

    async def embedder(self) -> EmbedderRecord | None:
        def answering() -> EmbedderRecord | None:
            identities = [drawer.identity for drawer in self._drawers() if drawer.identity]
            return self._cabinet.embedders[self._tenant, identities[0]] if identities else None

        return await self._done(answering)

    async def use_embedder(self, record: EmbedderRecord) -> bool:
        refuse_writing(self.owner)

        def used() -> bool:
            self._know(record)
            drawer = self._drawer()
            vectors = drawer.vectors.get(record.identity, {})
            if drawer.kept.keys() - vectors.keys():
                return False
            drawer.identity = record.identity
            drawer.vectors = {record.identity: vectors}
            return True

        return await self._done(used)

    async def unembedded(
        self, identity: str, *, limit: int | None = None, after: str | None = None
    ) -> list[Unembedded]:
        limit = checked_limit(limit)

        def pending() -> list[Unembedded]:
            found = [memory for memory in self._unembedded(identity) if memory.id > (after or "")]
            return [
                Unembedded(id=m.id, content=m.content, content_hash=m.content_hash)
                for m in sorted(found, key=lambda m: m.id)[:limit]
            ]

        return await self._done(pending)

    async def count_unembedded(self, identity: str) -> int:
        return await self._done(lambda: len(self._unembedded(identity)))

    async def set_vectors(self, record: EmbedderRecord, embedded: Sequence[Embedded]) -> int:
        refuse_writing(self.owner)
        checked_dimensions(record, embedded)
        return await self._done(lambda: self._set_vectors(record, embedded))

    def forget(self) -> int:
        """Remove all there is of this owner; returns how many memories. See `Store.forget`."""
        with self._cabinet.lock:
            key = (self._tenant, self.owner.agent_id, self.owner.user_id)
            drawer = self._cabinet.drawers.pop(key, None)
            self._cabinet.indexes.clear()
            return len(drawer.kept) if drawer is not None else 0

    def add_prepared(self, ready: Sequence[Prepared]) -> builtins.list[Memory]:
        """Add what `prepared_memories` made; what says the same as one that is there is not added."""
        with self._cabinet.lock:
            return self._add(ready, deduplicate=True)

    # --- pieces, behind the lock ---

    async def _done(self, operation: Callable[[], T]) -> T:
        """Do an operation in a thread, behind the lock; if the caller is cancelled, all the same."""

        def locked() -> T:
            with self._cabinet.lock:
                if self._cabinet.is_closed:
                    raise StoreClosedError
                return operation()

        doing = asyncio.ensure_future(asyncio.to_thread(locked))
        try:
            return await asyncio.shield(doing)
        except asyncio.CancelledError:
            await asyncio.wait({doing})  # so that the next read tells
            raise

    def _add(self, ready: Sequence[Prepared], *, deduplicate: bool) -> list[Memory]:
        drawer = self._drawer()
        added: list[Memory] = []
        for item in ready:
            if deduplicate and (same := drawer.same.get(sameness(item.memory))):
                added.append(self._whole(drawer, same[0]))
                continue
            revision = self._next_revision()
            drawer.put(revision, Kept(item, revision))
            added.append(self._memory(drawer, item.record))
        return added

    def _get(self, memory_id: str) -> Memory | None:
        drawer, number = self._place(memory_id)
        return None if drawer is None or number is None else self._whole(drawer, number)

    def _update(
        self, memory_id: str, changes: MemoryChanges, expected_version: int | None
    ) -> Memory | None:
        drawer, number = self._place(memory_id)
        if drawer is None or number is None:
            return None
        kept, before = drawer.kept[number], self._whole(drawer, number)
        now = self._clock.now()
        after = next_version(before, changes, now, expected_version=expected_version)
        if after is before:
            return before
        versions = [*kept.versions, kept.item.record]
        kept = Kept(prepared(after), self._next_revision(), versions)
        drawer.put(number, kept)
        for vectors in drawer.vectors.values():
            if number in vectors:
                if after.content_hash == before.content_hash:
                    vectors[number] = (kept.revision, vectors[number][1])
                else:
                    del vectors[number]
        return after

    def _remove(self, drawer: Drawer, numbers: Iterable[int]) -> None:
        for number in numbers:
            drawer.take(number)
            for vectors in drawer.vectors.values():
                vectors.pop(number, None)
            drawer.removed.append((self._next_revision(), number))

    def _search(self, query: MemoryQuery) -> Found:
        drawers = self._drawers()
        source = DrawerSource(self._cabinet, drawers)
        key = (self._tenant, self.owner, len(drawers))
        with self._cabinet.indexes.index(key) as index:
            index.refresh(source, query.identity if query.vector is not None else None)
            hits, pending = index.search(query, source, now=micros(self._clock.now()))
        of_number = {number: drawer for drawer in drawers for number in drawer.kept}
        memories = [
            replace(
                self._whole(of_number[hit.number], hit.number),
                score=hit.score,
                signals=hit.signals if query.explain else None,
            )
            for hit in hits
        ]
        return Found(memories=memories, pending=pending)

    def _set_vectors(self, record: EmbedderRecord, embedded: Sequence[Embedded]) -> int:
        drawers = self._drawers()
        if not drawers or not embedded:
            return 0
        self._know(record)
        drawer, stored = drawers[0], 0
        for each in embedded:
            number = drawer.numbers.get(each.id)
            if number is None:
                continue
            if drawer.kept[number].item.memory.content_hash == each.content_hash:
                vectors = drawer.vectors.setdefault(record.identity, {})
                vectors[number] = (self._next_revision(), each.vector.astype("<f4").tobytes())
                stored += 1
        if stored and drawer.identity is None:
            drawer.identity = record.identity
        return stored

    def _unembedded(self, identity: str) -> list[Memory]:
        return [
            kept.item.memory
            for drawer in self._drawers()
            for number, kept in drawer.kept.items()
            if number not in drawer.vectors.get(identity, {})
        ]

    def _know(self, record: EmbedderRecord) -> None:
        known = self._cabinet.embedders.setdefault((self._tenant, record.identity), record)
        if known.dimensions != record.dimensions:
            raise other_dimensions(record, known.dimensions)

    def _drawer(self) -> Drawer:
        key = (self._tenant, self.owner.agent_id, self.owner.user_id)
        return self._cabinet.drawers.setdefault(key, Drawer(self.owner.user_id))

    def _drawers(self) -> list[Drawer]:
        return [
            drawer
            for (tenant, agent_id, user_id), drawer in self._cabinet.drawers.items()
            if (tenant, agent_id) == (self._tenant, self.owner.agent_id)
            and (self.owner.all_users or user_id == self.owner.user_id)
        ]

    def _place(self, memory_id: str) -> tuple[Drawer | None, int | None]:
        for drawer in self._drawers():
            if memory_id in drawer.numbers:
                return drawer, drawer.numbers[memory_id]
        return None, None

    def _passing(self, wanted: MemoryFilter) -> list[tuple[Drawer, int, Memory]]:
        return [
            (drawer, number, memory)
            for drawer in self._drawers()
            for number in drawer.kept
            if passes(memory := self._whole(drawer, number), wanted)
        ]

    def _whole(self, drawer: Drawer, number: int) -> Memory:
        found = drawer.vectors.get(drawer.identity or "", {}).get(number)
        record = drawer.kept[number].item.record
        return self._memory(drawer, record, None if found is None else found[1])

    def _memory(self, drawer: Drawer, record: str, vector: bytes | None = None) -> Memory:
        embedding: Vector | None = None
        if vector is not None:
            import numpy as np

            embedding = np.frombuffer(vector, "<f4")
        return from_record(
            record,
            tenant=self._tenant,
            agent_id=self.owner.agent_id,
            user_id=drawer.user_id,
            embedding=embedding,
        )

    def _next_revision(self) -> int:
        self._cabinet.revision += 1
        return self._cabinet.revision
