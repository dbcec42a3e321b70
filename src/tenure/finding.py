"""How memories are found: the part of `Memories` that changes nothing."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from tenure.errors import EmbeddingError, InvalidValueError
from tenure.memory import (
    FilterFields,
    Memory,
    MemoryFilter,
    Metric,
    Order,
    OrderBy,
)
from tenure.stores.memory_base import MemoryQuery

if TYPE_CHECKING:
    from tenure.embedding import CheckedEmbedder
    from tenure.generations import Generations
    from tenure.memory import Vector
    from tenure.retrieval import Weights
    from tenure.stores.memory_base import MemoryStore

_log = logging.getLogger(__name__)


class Finding:
    """Looks into the memories of one owner."""

    _memories: MemoryStore
    _vectors: Generations

    @property
    def embedder(self) -> CheckedEmbedder | None:
        """What makes the vectors; None for words only."""
        return self._vectors.embedder

    async def get(self, memory_id: str) -> Memory | None:
        """Return a memory, or None when this owner has none of that id."""
        return await self._memories.get(memory_id)

    async def search(
        self,
        query: str,
        *,
        limit: int = 10,
        offset: int = 0,
        use_embedding: bool = True,
        embedding: Sequence[float] | Vector | None = None,
        order_by: OrderBy = "relevance",
        order: Order = "desc",
        weights: Weights | None = None,
        page_size: int = 100,
        explain: bool = False,
        **filters: Unpack[FilterFields],
    ) -> builtins.list[Memory]:
        """Find memories by words, meaning and time, the best first.

        The result is exact. `.score` compares within this result only. Without an embedder, and when it
        fails, the words alone decide. An empty query finds nothing.

        Args:
            query: What is looked for, in any language; no character of it is an operator.
            limit: At most so many.
            offset: Leave out so many of the best.
            use_embedding: Whether meaning counts, too.
            embedding: The query's vector, when it is there already; the text still counts by its words.
            order_by: List all that matches by a time instead, before `offset` and `limit` count.
            order: The direction of that time.
            weights: Of the signals.
            page_size: Accepted, and changes nothing: a search looks at everything in RAM.
            explain: Whether to tell in `.signals` what each score is the sum of.
            **filters: Which memories are candidates: the fields of `MemoryFilter`.

        Raises:
            InvalidValueError: A filter or a number is wrong; the text says which.
        """
        asked = MemoryQuery(
            text=query,
            filter=_filter(filters, page_size),
            limit=limit,
            offset=offset,
            order_by=order_by,
            order=order,
            weights=weights,
            explain=explain,
        )
        if not use_embedding:
            return (await self._memories.search(asked)).memories
        found, _ = await self._found(asked, embedding)
        return found

    async def _found(
        self, asked: MemoryQuery, embedding: Sequence[float] | Vector | None = None
    ) -> tuple[builtins.list[Memory], EmbeddingError | None]:
        """What a search finds, and what the embedder failed with, if it did: then words alone decided."""
        failure: EmbeddingError | None = None
        if embedding is not None or (self.embedder and asked.text.strip()):
            try:
                return await self._vectors.search(asked, embedding), None
            except EmbeddingError as exc:
                _log.warning("A search went by words only, since the embedder failed: %s", exc)
                failure = exc
        return (await self._memories.search(asked)).memories, failure

    async def search_by_similarity(
        self,
        query: str,
        *,
        limit: int = 10,
        offset: int = 0,
        similarity_threshold: float | None = None,
        metric: Metric = "cosine",
        embedding: Sequence[float] | Vector | None = None,
        page_size: int = 100,
        **filters: Unpack[FilterFields],
    ) -> builtins.list[Memory]:
        """Find memories by meaning alone, the most similar first.

        Args:
            query: What is looked for.
            limit: At most so many.
            offset: Leave out so many of the best.
            similarity_threshold: The least score; 0.7 by default, or what the embedder says. Embedders
                like the local one give even unrelated texts more than 0.7.
            metric: `"cosine"` clamped to 0..1, or `"euclidean"`: 1 / (1 + distance).
            embedding: The query's vector, when it is there already.
            page_size: Accepted, and changes nothing.
            **filters: The fields of `MemoryFilter`.

        Raises:
            EmbeddingError: There is no embedder, or it failed.
            InvalidValueError: A filter or a number is wrong; the text says which.
        """
        if similarity_threshold is None:
            similarity_threshold = self._vectors.threshold
        asked = MemoryQuery(
            text=query,
            filter=_filter(filters, page_size),
            limit=limit,
            offset=offset,
            metric=metric,
            threshold=similarity_threshold,
        )
        return await self._vectors.search(asked, embedding)

    async def list(
        self,
        *,
        limit: int | None = 100,
        offset: int = 0,
        order_by: OrderBy = "created_at",
        order: Order = "desc",
        **filters: Unpack[FilterFields],
    ) -> builtins.list[Memory]:
        """Return memories by a time, the newest first; equal ones by id, in the same direction.

        Args:
            limit: At most so many; None for all.
            offset: Leave out so many of the first.
            order_by: The time; `"relevance"` is `"created_at"` here.
            order: The direction.
            **filters: Which memories: the fields of `MemoryFilter`.

        Raises:
            InvalidValueError: A filter or a number is wrong; the text says which.
        """
        if order_by == "relevance":
            order_by = "created_at"
        return await self._memories.list(
            MemoryFilter(**filters), limit=limit, offset=offset, order_by=order_by, order=order
        )

    async def count(self, **filters: Unpack[FilterFields]) -> int:
        """Return how many memories there are, of those that pass the filters."""
        return await self._memories.count(MemoryFilter(**filters))

    async def history(self, memory_id: str) -> builtins.list[Memory]:
        """Return all versions of a memory, the oldest first; empty when there is none."""
        return await self._memories.history(memory_id)


def _filter(filters: FilterFields, page_size: int) -> MemoryFilter:
    if page_size < 1:
        raise InvalidValueError(f"page_size={page_size!r} must be at least 1.")
    return MemoryFilter(**filters)
