"""Which embedder's vectors answer, and how the memories of an owner get those of a new one.

The vectors of one embedder are a generation. One generation answers at a time, for all who use the owner's
memories: the store says which. Another one is built beside it, and takes its place when no memory is
without a vector of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tenure.embedding import QueryCache, resolve_embedder
from tenure.embedding_worker import EmbeddingWorker, embed_and_store, record_of
from tenure.errors import EmbeddingError, InvalidValueError, TenureError
from tenure.memory import Memory
from tenure.stores.memory_base import Embedded, MemoryQuery, MemoryStore, Unembedded

if TYPE_CHECKING:
    from tenure.embedding import CheckedEmbedder, EmbedderSpec
    from tenure.memory import Vector

SIMILARITY_THRESHOLD = 0.7
"""The least similarity that matches by default, when the embedder does not say another."""

_BATCH = 64  # memories in one step of `reembed`; a guess

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOutcome:
    """What came of `generate_embedding`.

    Args:
        success: Whether the memory has got its vector now.
        message: What happened, in one of five fixed sentences.
        embedding: The vector, on success.
    """

    success: bool
    message: str
    embedding: Vector | None = None


class Generations:
    """The vectors of one owner's memories."""

    def __init__(self, store: MemoryStore, embedder: CheckedEmbedder | None) -> None:
        self.embedder = embedder
        self._store = store
        self._queries = QueryCache()
        self._workers: dict[asyncio.AbstractEventLoop, EmbeddingWorker] = {}
        self._answering: CheckedEmbedder | None = None  # known after `_look`
        self._is_building = False

    @property
    def threshold(self) -> float:
        """The least similarity that matches, when nobody says another."""
        own = getattr(self.embedder, "threshold", None)
        return SIMILARITY_THRESHOLD if own is None else own

    async def begin(self) -> None:
        """Find out which generation answers, and have what is pending embedded in the background."""
        if self.embedder is None:
            return
        await self._look(is_first=True)
        if not self._store.owner.all_users:
            self._worker().catch_up()

    async def close(self) -> None:
        """End the background work in this event loop."""
        worker = self._workers.pop(asyncio.get_running_loop(), None)
        if worker is not None:
            await worker.close()

    async def embedded(self, memories: Sequence[Memory]) -> list[Memory]:
        """Return memories that were just stored, with those vectors that come in time."""
        pending = [_unembedded(memory) for memory in memories if memory.embedding is None]
        if self.embedder is None or not pending:
            return list(memories)
        if self._answering is None:
            await self._look(is_first=True)
        vectors = await self._worker().embed(pending)
        return [replace(m, embedding=vectors[m.id]) if m.id in vectors else m for m in memories]

    async def generate(self, memory_id: str) -> EmbeddingOutcome:
        """See `Memories.generate_embedding`."""
        memory = await self._store.get(memory_id)
        if memory is None:
            return _failure("Memory not found")
        if memory.embedding is not None:
            return _failure("Memory already has embedding")
        try:
            embedder = self._known()
            [vector] = await embedder.embed([memory.content], kind="document")
        except EmbeddingError:
            return _failure("Failed to generate embedding")
        embedded = Embedded(id=memory.id, content_hash=memory.content_hash, vector=vector)
        try:
            stored = await self._store.set_vectors(record_of(embedder), [embedded])
        except TenureError:
            stored = 0
        if not stored:  # it was changed meanwhile, or the store failed
            return _failure("Failed to store embedding")
        return EmbeddingOutcome(
            success=True, message="Embedding generated successfully", embedding=vector
        )

    async def search(
        self, asked: MemoryQuery, embedding: Sequence[float] | Vector | None
    ) -> list[Memory]:
        """Search with a query's vector.

        Raises:
            EmbeddingError: There is no embedder, or it failed.
        """
        if self._answering is None:
            await self._look(is_first=True)
        found = await self._store.search(await self._with_vector(asked, embedding))
        if found.pending and self.embedder is not None and not self._store.owner.all_users:
            if await self._look(is_first=False):  # another one answers since a moment ago
                found = await self._store.search(await self._with_vector(asked, embedding))
            self._worker().catch_up()
        return found.memories

    async def reembed(
        self, spec: EmbedderSpec, on_progress: Callable[[int, int], None] | None
    ) -> int:
        """See `Memories.reembed`."""
        target = self._known() if spec == "auto" else resolve_embedder(spec)
        if target is None:
            raise EmbeddingError("There is no embedder to embed anew with; give one.")
        if self._answering is None:
            await self._look(is_first=True)
        done = 0
        while True:
            after: str | None = None
            total = done + await self._store.count_unembedded(target.identity)
            while batch := await self._store.unembedded(target.identity, limit=_BATCH, after=after):
                after = batch[-1].id
                await embed_and_store(self._store, target, batch)
                done += len(batch)
                if on_progress is not None:
                    on_progress(done, max(done, total))
            if target.dimensions is None or await self._store.use_embedder(record_of(target)):
                break  # else some were added or changed meanwhile
        await self.close()
        self.embedder = self._answering = target
        return done

    # --- pieces ---

    def _known(self) -> CheckedEmbedder:
        if self.embedder is None:
            raise EmbeddingError(
                "There is no embedder: give one, such as embedder='local', or search by words."
            )
        return self.embedder

    async def _look(self, *, is_first: bool) -> bool:
        """Find out which generation answers; returns whether another one does than before.

        What a handle is opened with is what it builds. Whoever finds later that another embedder
        answers was overtaken, and goes over to that one, if it can be made from its name.
        """
        before = self._answering
        record = await self._store.embedder()
        own = self.embedder
        if own is None or record is None or record.identity == own.identity:
            self._answering = own
        elif before is None or before.identity != record.identity:
            other = _remade(record.name, record.identity)
            if is_first:
                self._answering = other or own
            else:
                _log.warning(
                    "The embedder %r answers now, in place of %r: somebody has embedded all "
                    "memories anew.",
                    record.identity,
                    own.identity,
                )
                await self.close()
                self.embedder = self._answering = other
        return before is not None and self._answering is not before

    async def _with_vector(
        self, asked: MemoryQuery, embedding: Sequence[float] | Vector | None
    ) -> MemoryQuery:
        if embedding is None:
            answering = self._answering or self._known()
            vector = await self._queries.vector(answering, asked.text)
            return replace(asked, vector=vector, identity=answering.identity)
        identity = self._answering.identity if self._answering is not None else None
        if identity is None and (record := await self._store.embedder()) is not None:
            identity = record.identity
        return replace(asked, vector=_unit(embedding), identity=identity or self._known().identity)

    def _worker(self) -> EmbeddingWorker:
        """The worker of the running event loop."""
        loop = asyncio.get_running_loop()
        for known in [known for known in self._workers if known.is_closed()]:
            del self._workers[known]
        if loop not in self._workers:
            self._workers[loop] = EmbeddingWorker(self._store, self._known())
        return self._workers[loop]


def _failure(message: str) -> EmbeddingOutcome:
    return EmbeddingOutcome(success=False, message=message)


def _remade(name: str, identity: str) -> CheckedEmbedder | None:
    """Make an embedder from its name, if that gives the one of this identity."""
    try:
        made = resolve_embedder(name) if name else None
    except TenureError:  # its package or its key is not there
        return None
    return made if made is not None and made.identity == identity else None


def _unembedded(memory: Memory) -> Unembedded:
    return Unembedded(id=memory.id, content=memory.content, content_hash=memory.content_hash)


def _unit(embedding: Sequence[float] | Vector) -> Vector:
    """A ready vector as float32 of unit norm.

    Raises:
        InvalidValueError: It is not one row of numbers.
    """
    import numpy as np

    try:
        vector = np.asarray(embedding, np.float32)
    except (TypeError, ValueError) as exc:
        raise InvalidValueError("embedding= is not a row of numbers; give one vector.") from exc
    norm = float(np.linalg.norm(vector))
    return vector / norm if norm > 0 else vector
