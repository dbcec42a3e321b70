"""The background work of memories: batches, failures, slow embedders, and one embedder after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import tenure.embedding_worker as worker
from tenure import EmbeddingError, Memories, NewMemory, Owner, Store
from tenure.embedding import resolve_embedder
from tenure.stores.memory_base import Unembedded
from tenure.testing import HashEmbedder

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/m.db"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(worker, "_LONGEST_PAUSE_S", 0.05)


async def until(holds: Callable[[], Any]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(20):
        while not await holds():
            await asyncio.sleep(0.01)


async def pending(memories: Memories) -> int:
    return sum(memory.embedding is None for memory in await memories.list(limit=None))


class Refusing(HashEmbedder):
    """Refuses every batch that has a text with `poison` in it."""

    async def embed(self, texts: Sequence[str], *, kind: Any) -> Any:
        if any("poison" in text for text in texts):
            raise EmbeddingError("refused")
        return await super().embed(texts, kind=kind)


async def test_one_text_does_not_hold_up_the_others(url: str) -> None:
    """A text that an embedder refuses stays pending; those with it and after it get their vectors."""
    async with Memories.open(url, agent_id="a", embedder=Refusing()) as memories:
        await memories.add_many(["one", "poison", "two"])
        await memories.add("three")
        await until(lambda: _is(pending(memories), 1))
        later = await memories.add("four")
        assert later.embedding is not None
        [left] = [m for m in await memories.list() if m.embedding is None]
        assert left.content == "poison"
        assert (await memories.search("poison"))[0].content == "poison"


async def test_failures_are_made_up_for(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """While it fails nobody waits; when it works again all get their vectors; it is said once."""
    embedder = HashEmbedder()
    embedder.is_failing = True
    async with Memories.open(url, agent_id="a", embedder=embedder) as memories:
        await asyncio.gather(*(memories.add(f"note {n}") for n in range(30)))
        assert await pending(memories) == 30
        embedder.is_failing = False
        await until(lambda: _is(pending(memories), 0))
    assert caplog.text.count("An embedder failed") == 1


async def test_a_slow_embedder_delays_nobody_for_long(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`add` returns after its patience, without a vector, which comes by itself."""
    monkeypatch.setattr(worker, "PATIENCE_S", 0.01)
    async with Memories.open(url, agent_id="a", embedder=HashEmbedder(delay_s=0.2)) as memories:
        memory = await memories.add("apple")
        assert memory.embedding is None
        await until(lambda: _is(pending(memories), 0))


async def test_closing_does_not_wait_for_a_pause(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving the block while an embedder is down is prompt."""
    monkeypatch.setattr(worker, "_FIRST_PAUSE_S", 1_000)
    monkeypatch.setattr(worker, "_LONGEST_PAUSE_S", 1_000)
    embedder = HashEmbedder()
    embedder.is_failing = True
    async with asyncio.timeout(10), Memories.open(url, agent_id="a", embedder=embedder) as memories:
        await memories.add("apple")


async def test_adds_at_once_are_embedded_together(url: str) -> None:
    """What many tasks add at once is embedded in few batches."""
    sizes: list[int] = []

    class Counting(HashEmbedder):
        async def embed(self, texts: Sequence[str], *, kind: Any) -> Any:
            sizes.append(len(texts))
            return await super().embed(texts, kind=kind)

    async with Memories.open(url, agent_id="a", embedder=Counting()) as memories:
        await asyncio.gather(*(memories.add(f"note {n}") for n in range(100)))
        assert await pending(memories) == 0
    assert sum(sizes) == 100
    assert len(sizes) < 50


async def test_another_embedder_takes_over(url: str) -> None:
    """Opened with a new embedder, all memories get its vectors, and then it answers (C35)."""
    async with Memories.open(url, agent_id="a", embedder=HashEmbedder(identity="one")) as memories:
        await memories.add_many(["apple pie", "the weather"])
    second = HashEmbedder(32, identity="two")
    async with Memories.open(url, agent_id="a", embedder=second) as memories:
        await until(lambda: _is(_dimensions(memories), {32}))
        assert (await memories.search_by_similarity("apple pie"))[0].content == "apple pie"


async def test_reembedding_goes_on_where_it_was(url: str) -> None:
    """It tells how far it is, can be interrupted and called again, while memories are added."""
    told: list[tuple[int, int]] = []
    async with Memories.open(url, agent_id="a", embedder=HashEmbedder(identity="one")) as memories:
        await memories.add_many([f"note {n}" for n in range(150)])
        await until(lambda: _is(pending(memories), 0))
        second = HashEmbedder(32, identity="two")

        def stop(done: int, total: int) -> None:
            told.append((done, total))
            second.is_failing = True

        with pytest.raises(EmbeddingError):
            await memories.reembed(second, on_progress=stop)
        assert told == [(64, 150)]
        assert await _dimensions(memories) == {64}
        assert (await memories.search_by_similarity("note 7"))[0].content == "note 7"
        second.is_failing = False
        await memories.add("added meanwhile")
        made = await memories.reembed(second, on_progress=lambda *each: told.append(each))
        assert made == 87
        assert told[-1] == (87, 87)
        assert await _dimensions(memories) == {32}
        assert memories.embedder is not None
        assert memories.embedder.identity == "two"
        assert (await memories.add("new")).embedding is not None


async def test_who_was_overtaken_goes_over(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """When another process has embedded all anew, a handle says so, and does not undo it."""
    first = Memories.open(url, agent_id="a", embedder=HashEmbedder(identity="one"))
    other = Memories.open(url, agent_id="a", embedder=HashEmbedder(32, identity="two"))
    await first.add("apple pie")
    assert await other.reembed() == 1
    assert [hit.content for hit in await first.search("pie")] == ["apple pie"]
    assert "answers now" in caplog.text
    await first.add("apple tart")
    await other.search("tart")
    await until(lambda: _is(_dimensions(other), {32}))
    await first.close()
    await other.close()


async def _is(value: Any, expected: object) -> bool:
    return await value == expected


async def _dimensions(memories: Memories) -> set[int]:
    every = await memories.list(limit=None)
    return {0 if m.embedding is None else len(m.embedding) for m in every}


async def test_what_is_added_while_the_worker_catches_up_is_embedded_once(store: Store) -> None:
    """A memory that is handed over while it is found pending, or right after, costs one embedding."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    texts: list[str] = []

    class Slow(HashEmbedder):
        async def embed(self, batch: Sequence[str], *, kind: Any) -> Any:
            texts.extend(batch)
            begun.set()
            await go_on.wait()
            return await super().embed(batch, kind=kind)

    memories = store.memories(Owner(agent_id="a"))
    embedder = resolve_embedder(Slow())
    assert embedder is not None
    working = worker.EmbeddingWorker(memories, embedder)
    [added] = await memories.add([NewMemory(content="tea")])
    handed = Unembedded(id=added.id, content="tea", content_hash=added.content_hash)
    working.catch_up()
    await begun.wait()
    waiting = asyncio.create_task(working.embed([handed]))
    await asyncio.sleep(0)
    go_on.set()
    assert (await waiting).keys() == {added.id}
    assert (await working.embed([handed])).keys() == {added.id}
    assert texts == ["tea"]
    await working.close()
