"""Giving memories their vectors: soon when the embedder answers, later when it does not.

A memory is in the store before an embedder is asked, so that nothing an embedder does can lose one. The
worker embeds in batches what is handed to it, and what it finds pending in the store. After a failure it
waits, longer each time; meanwhile memories stay pending, are found by their words, and nobody waits.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tenure.errors import EmbeddingError
from tenure.stores.memory_base import Embedded, EmbedderRecord, MemoryStore, Unembedded

if TYPE_CHECKING:
    from tenure.embedding import CheckedEmbedder
    from tenure.memory import Vector

PATIENCE_S = 2.0
"""How long adding a memory waits for its vector; a guess. Then the worker goes on alone."""

_BATCH = 64  # texts for an embedder at a time, from many callers
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = (
    1.0,
    300.0,
)  # after a failure; doubled each time, and halved by chance

_log = logging.getLogger(__name__)


async def embed_and_store(
    store: MemoryStore, embedder: CheckedEmbedder, batch: Sequence[Unembedded]
) -> dict[str, Vector]:
    """Embed some memories and store the vectors; returns these by id.

    Raises:
        EmbeddingError: The embedder failed; nothing was stored.
    """
    vectors = await embedder.embed([each.content for each in batch], kind="document")
    embedded = [
        Embedded(id=each.id, content_hash=each.content_hash, vector=vector)
        for each, vector in zip(batch, vectors, strict=True)
    ]
    await store.set_vectors(record_of(embedder), embedded)
    return {each.id: each.vector for each in embedded}


def record_of(embedder: CheckedEmbedder) -> EmbedderRecord:
    """Return what a store keeps of an embedder that has embedded something."""
    assert embedder.dimensions is not None, embedder
    return EmbedderRecord(
        identity=embedder.identity, name=embedder.name, dimensions=embedder.dimensions
    )


class EmbeddingWorker:
    """Embeds the memories of one owner, in the background of one event loop."""

    def __init__(self, store: MemoryStore, embedder: CheckedEmbedder) -> None:
        self._store = store
        self.embedder = embedder
        self._waiting: deque[Unembedded] = deque()
        self._answers: dict[str, list[asyncio.Future[Vector | None]]] = {}
        self._is_behind = False  # whether the store may have pending ones
        self._failures = 0  # in a row
        self._latest: dict[Unembedded, Vector] = {}  # what was found pending and embedded last
        self._refused: set[str] = set()  # what fails while others do not; not tried again here
        self._task: asyncio.Task[None] | None = None

    async def embed(self, memories: Iterable[Unembedded]) -> dict[str, Vector]:
        """Return the vectors of memories that were just stored, those that come in time.

        When the embedder has just failed, that is none, at once.
        """
        memories = list(memories)
        known = {each.id: self._latest[each] for each in memories if each in self._latest}
        if self._failures:
            self.catch_up()
            return known
        memories = [each for each in memories if each.id not in known]
        if not memories:
            return known
        loop = asyncio.get_running_loop()
        answers: dict[str, asyncio.Future[Vector | None]] = {}
        for memory in memories:
            answers[memory.id] = loop.create_future()
            self._answers.setdefault(memory.id, []).append(answers[memory.id])
        self._waiting.extend(memories)
        self._start()
        await asyncio.wait(answers.values(), timeout=PATIENCE_S)
        found = {i: answer.result() for i, answer in answers.items() if answer.done()}
        return known | {i: vector for i, vector in found.items() if vector is not None}

    def catch_up(self) -> None:
        """Have what is pending in the store embedded, in the background."""
        self._is_behind = True
        self._start()

    async def close(self) -> None:
        """End; what was handed over and is not embedded stays pending in the store."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting or self._is_behind:
                if self._failures:
                    await asyncio.sleep(_pause_s(self._failures))
                if self._waiting:
                    await self._embed_waiting()
                else:
                    await self._embed_pending()
        finally:
            for answers in self._answers.values():
                _tell(answers, None)
            self._answers.clear()
            self._waiting.clear()

    async def _embed_waiting(self) -> None:
        batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
        vectors = await self._embedded(batch)
        for memory in batch:
            _tell(self._answers.pop(memory.id, []), vectors.get(memory.id))

    async def _embed_pending(self) -> None:
        """Go through what is pending in the store, once; the embedder answers when nothing is."""
        self._is_behind = False
        after: str | None = None
        while batch := await self._store.unembedded(
            self.embedder.identity, limit=_BATCH, after=after
        ):
            after = batch[-1].id
            if batch := [each for each in batch if each.id not in self._refused]:
                vectors = await self._embedded(batch)
                self._latest = {each: vectors[each.id] for each in batch if each.id in vectors}
                self._answer_latest()
            if self._failures or self._waiting:
                self._is_behind = True  # the rest comes later
                return
        answering = await self._store.embedder()
        if answering is not None and answering.identity != self.embedder.identity:
            await self._store.use_embedder(record_of(self.embedder))

    def _answer_latest(self) -> None:
        """Answer for what was handed over while it was found pending, so that it is embedded once."""
        for memory in [each for each in self._waiting if each in self._latest]:
            self._waiting.remove(memory)
            _tell(self._answers.pop(memory.id, []), self._latest[memory])

    async def _embedded(self, batch: Sequence[Unembedded]) -> dict[str, Vector]:
        """Embed a batch; of one that fails as a whole, each memory by itself."""
        try:
            vectors = await embed_and_store(self._store, self.embedder, batch)
        except EmbeddingError as exc:
            vectors = await self._embedded_singly(batch, exc) if len(batch) > 1 else {}
            if not vectors:
                self._failed(exc)
                return vectors
        self._failures = 0
        return vectors

    async def _embedded_singly(
        self, batch: Sequence[Unembedded], exc: EmbeddingError
    ) -> dict[str, Vector]:
        """Embed each of a batch, until two fail in a row: then it is not the texts."""
        vectors: dict[str, Vector] = {}
        refused: set[str] = set()
        for memory in random.sample(batch, len(batch)):  # so that no two of them block the others
            try:
                vectors |= await embed_and_store(self._store, self.embedder, [memory])
            except EmbeddingError:
                refused.add(memory.id)
                if len(refused) > 1 and len(refused) > len(vectors):
                    break
        if vectors and refused:
            self._refused |= refused
            _log.warning(
                "An embedder refused %d of %d memories, which are found by their words only: %s",
                len(refused),
                len(batch),
                exc,
            )
        return vectors

    def _failed(self, exc: EmbeddingError) -> None:
        if not self._failures:
            _log.warning(
                "An embedder failed, so some memories are found by their words only until it works "
                "again; it is tried again by and by: %s",
                exc,
            )
        self._failures += 1
        self._is_behind = True


def _pause_s(failures: int) -> float:
    longest = min(_FIRST_PAUSE_S * 2 ** (failures - 1), _LONGEST_PAUSE_S)
    return random.uniform(longest / 2, longest)  # noqa: S311


def _tell(answers: Iterable[asyncio.Future[Vector | None]], vector: Vector | None) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_result(vector)
