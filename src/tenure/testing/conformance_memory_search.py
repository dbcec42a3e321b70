"""Conformance: searching long-term memories by words and vectors, and the embedders behind the vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tenure.errors import InvalidValueError
from tenure.memory import Memory, MemoryChanges, MemoryFilter, NewMemory, Owner
from tenure.stores.base import Store
from tenure.stores.memory_base import Embedded, EmbedderRecord, MemoryQuery, MemoryStore
from tenure.testing.conformance_memories import ADA, added, at, contents, found, notes
from tenure.testing.conformance_suite import StoreSuite

if TYPE_CHECKING:
    from tenure.memory import Vector

ONE = EmbedderRecord(identity="one", name="", dimensions=3)
TWO = EmbedderRecord(identity="two", name="local", dimensions=2)

ODD_QUERIES = (
    "don't use agents", "multi-agent", "a/b", '"', "'", "''", '""', "*", "a*", "NEAR(", "a NEAR b",
    "OR", "AND", "NOT", "a AND", "(", ")", "content:x", "-x", "^x", "x'; DROP TABLE memories; --",
    "%", "_", "\\", "\0", "\ud83d", "😀", "日本語", "한국어", "   ", "\n", "?!…", "{}", "[a]", "$eq",
)  # fmt: skip
"""Queries that search engines are known to stumble over: their syntax, and what is no word."""


def vector(*numbers: float) -> Vector:
    """A vector of unit norm in this direction."""
    import numpy as np

    given = np.array(numbers, np.float32)
    return (given / np.linalg.norm(given)).astype(np.float32)


def embedded(memories: Sequence[Memory], *vectors: Vector) -> list[Embedded]:
    """Vectors for memories."""
    return [
        Embedded(id=memory.id, content_hash=memory.content_hash, vector=each)
        for memory, each in zip(memories, vectors, strict=True)
    ]


async def embedded_notes(store: MemoryStore, **texts: Vector) -> list[Memory]:
    """Memories of these texts with these vectors of the embedder `one`."""
    memories = await store.add(notes(*texts))
    assert await store.set_vectors(ONE, embedded(memories, *texts.values())) == len(texts)
    return memories


def nearest(*numbers: float, **fields: object) -> MemoryQuery:
    """A query by the vector of the embedder `one` alone."""
    asked = MemoryQuery(text="", vector=vector(*numbers), identity="one", metric="cosine")
    return replace(asked, **fields)


class MemorySearchConformance(StoreSuite):
    """`search` by words."""

    async def test_the_best_match_is_first(self, store: Store) -> None:
        """More of the query's words, and rarer ones, go before fewer; what has none is not found."""
        memories = store.memories(ADA)
        texts = ("a red apple", "a red car", "a green apple pie", "something else")
        await memories.add(notes(*texts, *(f"a red thing {n}" for n in range(9))))
        hits = (await memories.search(MemoryQuery(text="red apple", explain=True))).memories
        assert hits[0].content == "a red apple"
        assert hits[1].content == "a green apple pie"  # apple is rarer than red
        assert "something else" not in contents(hits)
        scores = [hit.score or 0 for hit in hits]
        assert scores == sorted(scores, reverse=True)
        assert min(scores) > 0
        for hit in hits:
            assert sum((hit.signals or {}).values()) == pytest.approx(hit.score, abs=1e-5)

    async def test_a_search_is_of_the_newest_state(self, store: Store) -> None:
        """Each search finds what was added, changed or deleted just before it."""
        memories = store.memories(ADA)
        for number in range(4):
            memory = await added(memories, NewMemory(content=f"apple {number}"))
            assert f"apple {number}" in await found(memories, "apple")
            await memories.update(memory.id, MemoryChanges(content=f"pear {number}"))
            assert f"pear {number}" in await found(memories, "pear")
            assert await found(memories, "apple") == []
            if number % 2:
                await memories.delete(memory.id)
                assert f"pear {number}" not in await found(memories, "pear")
        assert await found(memories, "pear", order_by="created_at") == ["pear 2", "pear 0"]

    async def test_pages_of_a_search(self, store: Store) -> None:
        """`limit` and `offset` cut the ranking, and change neither it nor a score (row 18, C45)."""
        memories = store.memories(ADA)
        await memories.add(notes(*(f"apple {'pie ' * (n % 4)}{n}" for n in range(25))))
        query = MemoryQuery(text="apple pie")
        whole = [(m.id, m.score) for m in (await memories.search(query)).memories]
        assert len(whole) == 25
        for size in (1, 3, 10, 25, 100):
            pages: list[tuple[str, float | None]] = []
            for offset in range(0, 26, size):
                page = await memories.search(replace(query, limit=size, offset=offset))
                pages += [(m.id, m.score) for m in page.memories]
            assert pages == whole, size
        assert (await memories.search(replace(query, limit=0))).memories == []
        for wrong in (
            {"limit": -1},
            {"offset": -1},
            {"order_by": "x"},
            {"order": "x"},
            {"metric": "x"},
        ):
            with pytest.raises(InvalidValueError):
                await memories.search(replace(query, **wrong))

    async def test_ties_go_to_the_newer_one(self, store: Store) -> None:
        """Of two equal scores the newer memory goes first, then the smaller id."""
        memories = store.memories(ADA)
        days = [2, 3, 1, 3]
        made = await memories.add(
            [
                NewMemory(content="same", task_id=f"{n}", created_at=at(d))
                for n, d in enumerate(days)
            ]
        )
        hits = (await memories.search(MemoryQuery(text="same"))).memories
        newest = sorted(made[1::2], key=lambda m: m.id)
        assert [hit.id for hit in hits] == [m.id for m in (*newest, made[0], made[2])]

    async def test_a_search_in_order_of_time(self, store: Store) -> None:
        """What matches is listed by a time, before `limit` counts, when that is asked (row 17)."""
        memories = store.memories(ADA)
        days = [2, 4, 1, 3]
        await memories.add(
            [NewMemory(content=f"apple {day}", created_at=at(day)) for day in days] + notes("pear")
        )
        newest = ["apple 4", "apple 3", "apple 2", "apple 1"]
        assert await found(memories, "apple", order_by="created_at") == newest
        assert await found(memories, "apple", order_by="created_at", order="asc") == newest[::-1]
        assert (
            await found(memories, "apple", order_by="created_at", limit=2, offset=1) == newest[1:3]
        )

    async def test_odd_queries(self, store: Store) -> None:
        """No character of a query is an operator, and none makes a search fail (C37 to C40)."""
        memories = store.memories(ADA)
        await memories.add(notes(*(query for query in ODD_QUERIES), "the agents don't use a/b"))
        for query in ODD_QUERIES:
            await memories.search(MemoryQuery(text=query))
        assert await found(memories, "") == []
        assert "the agents don't use a/b" in await found(memories, "don't use agents")
        assert "multi-agent" in await found(memories, "multi-agent")
        assert "😀" in await found(memories, "😀")
        assert "日本語" in await found(memories, "日本")
        assert await found(memories, "agents " * 15_000)
        assert await memories.count() == len(ODD_QUERIES) + 1

    async def test_the_filter_decides_what_is_counted(self, store: Store) -> None:
        """A score depends on the memories that pass the filter, and on no other."""
        memories, alone = store.memories(ADA), store.memories(Owner(agent_id="alone"))
        kept = [
            NewMemory(
                content=f"apple {n % 3} {'pie' * (n % 2)}",
                task_id="t",
                session_id=f"s{n // 3}",
                position=n,
                speaker=f"speaker {n % 2}",
            )
            for n in range(8)
        ]
        others = [replace(new, task_id="u", content=f"pie {n}") for n, new in enumerate(kept)]
        await memories.add(others)
        await memories.add(kept)
        await memories.add(notes(*(f"apple {n}" for n in range(50))))
        await alone.add(kept)
        query = MemoryQuery(text="apple pie", filter=MemoryFilter(task_id="t"))
        ours = (await memories.search(query)).memories
        theirs = (await alone.search(query)).memories
        assert [(m.content, m.score) for m in ours] == [(m.content, m.score) for m in theirs]

    async def test_neighbours_and_dates(self, store: Store) -> None:
        """The answer to a question is found by the question before it, and a memory by its date."""
        memories = store.memories(ADA)
        await memories.add(
            [
                NewMemory(content="Which colour do you like?", session_id="s", position=1),
                NewMemory(content="Turquoise.", session_id="s", position=2),
                NewMemory(content="Let us go.", session_id="t", position=3),
                NewMemory(content="We met.", created_at=at(17)),
            ]
        )
        hits = await found(memories, "colour")
        assert hits[:2] == ["Which colour do you like?", "Turquoise."]
        assert "Let us go." not in hits
        assert (await found(memories, "17 May"))[0] == "We met."

    async def test_searches_at_once(self, store: Store) -> None:
        """Searches and writes of many tasks at once all see a whole state."""
        memories = store.memories(ADA)
        await memories.add(notes("apple 0"))

        async def writes() -> None:
            for number in range(1, 20):
                memory = await added(memories, NewMemory(content=f"apple {number}"))
                if number % 3 == 0:
                    await memories.delete(memory.id)

        async def searches() -> None:
            for _ in range(20):
                hits = await found(memories, "apple")
                assert "apple 0" in hits
                assert len(hits) == len(set(hits))

        await asyncio.gather(writes(), *(searches() for _ in range(4)))
        assert len(await found(memories, "apple")) == 14


class MemoryVectorConformance(StoreSuite):
    """Vectors, and the embedders that they are of."""

    async def test_the_nearest_is_first(self, store: Store) -> None:
        """By a metric, the score is the cosine clamped to 0..1, or 1/(1+distance) (rows 13 to 15)."""
        memories = store.memories(ADA)
        await embedded_notes(
            memories, east=vector(1, 0, 0), north=vector(0, 1, 0), west=vector(-1, 0, 0)
        )
        hits = (await memories.search(nearest(1, 0, 0))).memories
        assert (hits[0].content, hits[0].score) == ("east", pytest.approx(1))
        assert {m.content: round(m.score or 0, 5) for m in hits} == {
            "east": 1,
            "north": 0,
            "west": 0,
        }
        hits = (await memories.search(nearest(1, 0, 0, metric="euclidean"))).memories
        assert [m.content for m in hits] == ["east", "north", "west"]
        assert [m.score for m in hits] == pytest.approx([1, 1 / (1 + 2**0.5), 1 / 3], abs=1e-4)
        hits = (await memories.search(nearest(1, 1, 0, threshold=0.7))).memories
        assert sorted(m.content for m in hits) == ["east", "north"]
        assert (await memories.search(nearest(1, 1, 0, threshold=0.72))).memories == []

    async def test_words_and_meaning_together(self, store: Store) -> None:
        """With a vector, what is near is found without a shared word; the words count as well."""
        memories = store.memories(ADA)
        await embedded_notes(
            memories,
            **{
                "my dog is called Rex": vector(1, 0.1, 0),
                "the weather is nice": vector(0, 1, 0),
                "I work in a bank": vector(0, 0.2, 1),
            },
        )
        query = MemoryQuery(text="pet", vector=vector(1, 0, 0), identity="one")
        assert contents((await memories.search(query)).memories)[0] == "my dog is called Rex"
        both = replace(query, text="weather")
        assert contents((await memories.search(both)).memories)[0] == "the weather is nice"

    async def test_a_memory_without_a_vector_is_found_by_words(self, store: Store) -> None:
        """What has no vector is found at once, and told to be pending (C49)."""
        memories = store.memories(ADA)
        await embedded_notes(memories, apple=vector(1, 0, 0))
        await memories.add(notes("apple pie"))
        answer = await memories.search(
            MemoryQuery(text="pie", vector=vector(1, 0, 0), identity="one")
        )
        assert contents(answer.memories)[0] == "apple pie"
        assert answer.pending == 1
        assert contents((await memories.search(nearest(1, 0, 0))).memories) == ["apple"]

    async def test_a_memory_has_its_vector(self, store: Store) -> None:
        """Reading gives the vector of the embedder that answers, unchanged (row 29)."""
        memories = store.memories(ADA)
        [memory] = await embedded_notes(memories, apple=vector(3, 2, 1))
        for read in (await memories.get(memory.id), *await memories.list()):
            assert read is not None
            assert read.embedding is not None
            assert read.embedding.tolist() == vector(3, 2, 1).tolist()
        assert await memories.embedder() == ONE

    async def test_a_changed_text_has_no_vector(self, store: Store) -> None:
        """A vector is of one text: it goes with it, and is not stored when the text has changed."""
        memories = store.memories(ADA)
        [memory] = await embedded_notes(memories, apple=vector(1, 0, 0))
        touched = await memories.update(memory.id, MemoryChanges(metadata={"a": 1}))
        assert touched is not None
        assert touched.embedding is not None
        assert len((await memories.search(nearest(1, 0, 0))).memories) == 1
        changed = await memories.update(memory.id, MemoryChanges(content="pear"))
        assert changed is not None
        assert changed.embedding is None
        assert (await memories.search(nearest(1, 0, 0))).memories == []
        assert await memories.set_vectors(ONE, embedded([memory], vector(1, 0, 0))) == 0
        assert await memories.set_vectors(ONE, embedded([changed], vector(1, 0, 0))) == 1
        assert contents((await memories.search(nearest(1, 0, 0))).memories) == ["pear"]
        await memories.delete(memory.id)
        assert await memories.set_vectors(ONE, embedded([changed], vector(1, 0, 0))) == 0

    async def test_what_is_pending(self, store: Store) -> None:
        """`unembedded` tells what has no vector of an embedder, in pages by id."""
        memories, other = store.memories(ADA), store.memories(Owner(agent_id="other"))
        await other.add(notes("another owner's"))
        made = await memories.add(notes("1", "2", "3"))
        await memories.set_vectors(ONE, embedded(made[1:2], vector(1, 0, 0)))
        pending = await memories.unembedded("one")
        expected = sorted((made[0], made[2]), key=lambda m: m.id)
        assert [each.id for each in pending] == [memory.id for memory in expected]
        assert [each.content for each in pending] == [memory.content for memory in expected]
        assert await memories.unembedded("one", limit=1) == pending[:1]
        assert await memories.unembedded("one", after=pending[0].id) == pending[1:]
        assert len(await memories.unembedded("two")) == 3
        assert await memories.count_unembedded("one") == 2
        assert await memories.count_unembedded("two") == 3

    async def test_one_generation_answers(self, store: Store) -> None:
        """A new embedder answers once every memory has its vector; the others' vectors go (C35)."""
        memories = store.memories(ADA)
        made = await embedded_notes(memories, apple=vector(1, 0, 0), pear=vector(0, 1, 0))
        assert await memories.set_vectors(TWO, embedded(made[:1], vector(1, 0))) == 1
        assert not await memories.use_embedder(TWO)
        assert await memories.embedder() == ONE
        assert len((await memories.search(nearest(1, 0, 0))).memories) == 2
        assert await memories.set_vectors(TWO, embedded(made[1:], vector(0, 1))) == 1
        assert await memories.use_embedder(TWO)
        assert await memories.embedder() == TWO
        assert await memories.count_unembedded("one") == 2
        read = await memories.get(made[0].id)
        assert read is not None
        assert read.embedding is not None
        assert read.embedding.tolist() == [1, 0]
        query = MemoryQuery(text="", vector=vector(0, 1), identity="two", metric="cosine", limit=1)
        assert contents((await memories.search(query)).memories) == ["pear"]

    async def test_dimensions_are_the_embedders(self, store: Store) -> None:
        """A vector, a query or an embedder of other dimensions than before is refused (C34, C36)."""
        memories = store.memories(ADA)
        made = await embedded_notes(memories, apple=vector(1, 0, 0))
        with pytest.raises(InvalidValueError):
            await memories.set_vectors(ONE, embedded(made, vector(1, 0)))
        with pytest.raises(InvalidValueError):
            await memories.set_vectors(replace(ONE, dimensions=2), embedded(made, vector(1, 0)))
        with pytest.raises(InvalidValueError):
            await memories.use_embedder(replace(ONE, dimensions=2))
        with pytest.raises(InvalidValueError):
            await memories.search(nearest(1, 0))
        with pytest.raises(InvalidValueError):
            await memories.search(nearest(1, 0, float("nan")))
        read = await memories.get(made[0].id)
        assert read is not None
        assert read.embedding is not None
        assert read.embedding.tolist() == [1, 0, 0]

    async def test_owners_have_their_own_embedder(self, store: Store) -> None:
        """What one owner's memories are embedded with says nothing about another's."""
        mine, other = store.memories(ADA), store.memories(Owner(agent_id="other"))
        await embedded_notes(mine, apple=vector(1, 0, 0))
        made = await other.add(notes("apple"))
        assert await other.embedder() is None
        await other.set_vectors(TWO, embedded(made, vector(0, 1)))
        assert (await mine.embedder(), await other.embedder()) == (ONE, TWO)
        assert (await other.search(nearest(1, 0, 0))).memories == []
        assert len((await mine.search(nearest(1, 0, 0))).memories) == 1
