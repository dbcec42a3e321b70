"""Long-term memories for code without async: the same names as `tenure.Memories`, blocking."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Self, Unpack

from tenure.embedding import CheckedEmbedder, EmbedderSpec
from tenure.generations import EmbeddingOutcome
from tenure.memories import Memories as AsyncMemories
from tenure.memories import Role
from tenure.memory import (
    DEFAULT_IMPORTANCE,
    FilterFields,
    Memory,
    Metric,
    NewMemory,
    Order,
    OrderBy,
    Owner,
    Provenance,
)
from tenure.messages import Json
from tenure.portal import PORTAL
from tenure.stores import Store

if TYPE_CHECKING:
    from types import TracebackType

    from tenure.memory import Vector
    from tenure.retrieval import Weights


class Memories:
    """The long-term memories of one owner.

    May be used from several threads at once. See `tenure.Memories`.
    """

    def __init__(self, memories: AsyncMemories) -> None:
        """Work on the same memories as `tenure.Memories` do; `open` is how one gets there."""
        self._memories = memories

    @classmethod
    def open(
        cls,
        store: Store | str,
        *,
        agent_id: str,
        user_id: str | None = None,
        tenant: str | None = None,
        all_users: bool = False,
        embedder: EmbedderSpec = "auto",
    ) -> Self:
        """Return the memories of an owner, for a `with` block; nothing is read or written yet.

        Args and errors are those of `tenure.Memories.open`.
        """
        memories = AsyncMemories.open(
            store,
            agent_id=agent_id,
            user_id=user_id,
            tenant=tenant,
            all_users=all_users,
            embedder=embedder,
        )
        return cls(memories)

    @property
    def owner(self) -> Owner:
        """Whose they are."""
        return self._memories.owner

    @property
    def embedder(self) -> CheckedEmbedder | None:
        """What makes the vectors; None for words only."""
        return self._memories.embedder

    def __enter__(self) -> Self:
        PORTAL.call(self._memories.__aenter__())
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the background work of this event loop; the store stays open. A second call does nothing.

        See `tenure.Memories.close`.
        """
        PORTAL.call(self._memories.close())

    def add(
        self,
        content: str,
        metadata: Mapping[str, Json] | None = None,
        *,
        graph_id: str | None = None,
        task_id: str | None = None,
        session_id: str | None = None,
        position: int | None = None,
        speaker: str | None = None,
        importance: float = DEFAULT_IMPORTANCE,
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        created_at: datetime | None = None,
        provenance: Provenance | None = None,
        deduplicate: bool = True,
    ) -> Memory:
        """Remember a text, for good when this returns.

        See `tenure.Memories.add`.
        """
        return PORTAL.call(
            self._memories.add(
                content,
                metadata,
                graph_id=graph_id,
                task_id=task_id,
                session_id=session_id,
                position=position,
                speaker=speaker,
                importance=importance,
                valid_from=valid_from,
                valid_to=valid_to,
                created_at=created_at,
                provenance=provenance,
                deduplicate=deduplicate,
            )
        )

    def add_many(
        self, new: Iterable[NewMemory | str], *, deduplicate: bool = True
    ) -> builtins.list[Memory]:
        """Remember several, all or none; returns them in order. See `add`.

        See `tenure.Memories.add_many`.
        """
        return PORTAL.call(self._memories.add_many(new, deduplicate=deduplicate))

    def remember_conversation(
        self,
        content: str,
        role: Role = "user",
        *,
        graph_id: str | None = None,
        task_id: str | None = None,
        session_id: str | None = None,
    ) -> Memory:
        """Remember what was said in a conversation, with `{"type": "conversation", "role": role}`.

        See `tenure.Memories.remember_conversation`.
        """
        return PORTAL.call(
            self._memories.remember_conversation(
                content, role, graph_id=graph_id, task_id=task_id, session_id=session_id
            )
        )

    def get(self, memory_id: str) -> Memory | None:
        """Return a memory, or None when this owner has none of that id.

        See `tenure.Memories.get`.
        """
        return PORTAL.call(self._memories.get(memory_id))

    def search(
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

        See `tenure.Memories.search`.
        """
        return PORTAL.call(
            self._memories.search(
                query,
                limit=limit,
                offset=offset,
                use_embedding=use_embedding,
                embedding=embedding,
                order_by=order_by,
                order=order,
                weights=weights,
                page_size=page_size,
                explain=explain,
                **filters,
            )
        )

    def search_by_similarity(
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

        See `tenure.Memories.search_by_similarity`.
        """
        return PORTAL.call(
            self._memories.search_by_similarity(
                query,
                limit=limit,
                offset=offset,
                similarity_threshold=similarity_threshold,
                metric=metric,
                embedding=embedding,
                page_size=page_size,
                **filters,
            )
        )

    def list(
        self,
        *,
        limit: int | None = 100,
        offset: int = 0,
        order_by: OrderBy = "created_at",
        order: Order = "desc",
        **filters: Unpack[FilterFields],
    ) -> builtins.list[Memory]:
        """Return memories by a time, the newest first; equal ones by id, in the same direction.

        See `tenure.Memories.list`.
        """
        return PORTAL.call(
            self._memories.list(
                limit=limit, offset=offset, order_by=order_by, order=order, **filters
            )
        )

    def count(self, **filters: Unpack[FilterFields]) -> int:
        """Return how many memories there are, of those that pass the filters.

        See `tenure.Memories.count`.
        """
        return PORTAL.call(self._memories.count(**filters))

    def history(self, memory_id: str) -> builtins.list[Memory]:
        """Return all versions of a memory, the oldest first; empty when there is none.

        See `tenure.Memories.history`.
        """
        return PORTAL.call(self._memories.history(memory_id))

    def update(
        self,
        memory_id: str,
        *,
        content: str | None = None,
        metadata: Mapping[str, Json] | None = None,
        importance: float | None = None,
        valid_from: datetime | None = None,
        valid_to: datetime | None = None,
        expected_version: int | None = None,
    ) -> Memory | None:
        """Change a memory; what is not given stays. What it was is an earlier version in `history`.

        See `tenure.Memories.update`.
        """
        return PORTAL.call(
            self._memories.update(
                memory_id,
                content=content,
                metadata=metadata,
                importance=importance,
                valid_from=valid_from,
                valid_to=valid_to,
                expected_version=expected_version,
            )
        )

    def delete(self, memory_id: str, *, sync_with_context: bool = True) -> bool:
        """Remove a memory with its earlier versions, for good; returns whether there was one.

        See `tenure.Memories.delete`.
        """
        deleting = self._memories.delete(memory_id, sync_with_context=sync_with_context)
        return PORTAL.call(deleting)

    def clear(self, *, sync_with_context: bool = True, **filters: Unpack[FilterFields]) -> int:
        """Remove all memories of this owner that pass the filters, for good; returns how many.

        See `tenure.Memories.clear`.
        """
        clearing = self._memories.clear(sync_with_context=sync_with_context, **filters)
        return PORTAL.call(clearing)

    def generate_embedding(self, memory_id: str) -> EmbeddingOutcome:
        """Give a memory its vector now, if it has none; failures are told, not raised.

        See `tenure.Memories.generate_embedding`.
        """
        return PORTAL.call(self._memories.generate_embedding(memory_id))

    def reembed(
        self,
        embedder: EmbedderSpec = "auto",
        *,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Give every memory a vector of an embedder, and use that one from then on.

        See `tenure.Memories.reembed`.
        """
        return PORTAL.call(self._memories.reembed(embedder, on_progress=on_progress))
