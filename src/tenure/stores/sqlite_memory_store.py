"""The memories of one owner in an SQLite file. `memory_base.py` says what the operations promise.

What they do is in `sqlite_memories.py` and `sqlite_memory_search.py`, on the store's own threads; terms
are made in a thread of asyncio's, since a transaction would keep others waiting for that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from tenure.memory import ALL, Memory, MemoryChanges, MemoryFilter, NewMemory, Order, OrderBy, Owner
from tenure.stores import sqlite_memories as memories
from tenure.stores import sqlite_memory_search as vectors
from tenure.stores.checks import checked_count, checked_limit
from tenure.stores.memory_base import (
    Embedded,
    EmbedderRecord,
    Found,
    MemoryQuery,
    MemoryStore,
    Unembedded,
)
from tenure.stores.memory_checks import (
    checked_order,
    checked_order_by,
    checked_owner,
    checked_query,
    refuse_writing,
)
from tenure.stores.memory_records import prepared_memories

if TYPE_CHECKING:
    from tenure.clock import Clock
    from tenure.stores.index_cache import IndexCache
    from tenure.stores.sqlite_rows import Rows

T = TypeVar("T")
P = ParamSpec("P")


class Runner(Protocol):
    """How a store runs an operation: in a transaction, returning what it returned."""

    def __call__(
        self, operation: Callable[Concatenate[Rows, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]: ...


class SQLiteMemoryStore(MemoryStore):
    """Made by `SQLiteStore.memories`."""

    def __init__(
        self,
        owner: Owner,
        *,
        tenant: str,
        clock: Clock,
        cache: IndexCache,
        write: Runner,
        read: Runner,
        erase: Runner,
    ) -> None:
        self.owner = checked_owner(owner)
        self._tenant = tenant
        self._clock = clock
        self._cache = cache
        self._write = write
        self._read = read
        self._erase = erase

    async def add(self, new: Sequence[NewMemory], *, deduplicate: bool = True) -> list[Memory]:
        refuse_writing(self.owner)
        ready = await prepared_memories(new, self.owner, tenant=self._tenant, clock=self._clock)
        return await self._write(
            memories.add, self.owner, ready, deduplicate=deduplicate, clock=self._clock
        )

    async def get(self, memory_id: str) -> Memory | None:
        return await self._read(memories.get, self.owner, memory_id)

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
        return await self._read(
            memories.listed,
            self.owner,
            filter_.checked(),
            limit=limit,
            offset=offset,
            order_by=checked_order_by(order_by),
            order=checked_order(order),
        )

    async def count(self, filter_: MemoryFilter = ALL) -> int:
        return await self._read(memories.count, self.owner, filter_.checked())

    async def update(
        self, memory_id: str, changes: MemoryChanges, *, expected_version: int | None = None
    ) -> Memory | None:
        refuse_writing(self.owner)
        return await self._write(
            memories.update,
            self.owner,
            memory_id,
            changes,
            expected_version=expected_version,
            now=self._clock.now(),
        )

    async def delete(self, memory_id: str) -> bool:
        refuse_writing(self.owner)
        return await self._erase(memories.delete, self.owner, memory_id)

    async def clear(self, filter_: MemoryFilter = ALL) -> int:
        refuse_writing(self.owner)
        return await self._erase(memories.clear, self.owner, filter_.checked())

    async def history(self, memory_id: str) -> list[Memory]:
        return await self._read(memories.history, self.owner, memory_id)

    async def search(self, query: MemoryQuery) -> Found:
        query, now = checked_query(query), self._clock.now()
        while True:
            found = await self._read(vectors.search, self.owner, query, cache=self._cache, now=now)
            if found is not None:
                return found
            await self._write(memories.reindex, self.owner)

    async def embedder(self) -> EmbedderRecord | None:
        return await self._read(vectors.embedder, self.owner)

    async def use_embedder(self, record: EmbedderRecord) -> bool:
        refuse_writing(self.owner)
        return await self._write(vectors.use_embedder, self.owner, record, clock=self._clock)

    async def unembedded(
        self, identity: str, *, limit: int | None = None, after: str | None = None
    ) -> list[Unembedded]:
        limit = checked_limit(limit)
        return await self._read(vectors.unembedded, self.owner, identity, limit=limit, after=after)

    async def count_unembedded(self, identity: str) -> int:
        return await self._read(vectors.count_unembedded, self.owner, identity)

    async def set_vectors(self, record: EmbedderRecord, embedded: Sequence[Embedded]) -> int:
        refuse_writing(self.owner)
        return await self._write(vectors.set_vectors, self.owner, record, embedded)
