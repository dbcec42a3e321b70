"""Long-term memories as their users see them: a test for each row of what Astreus promises, and more."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import AsyncIterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import tenure.sync
from tenure import (
    Agent,
    ConflictError,
    EmbeddingError,
    InvalidValueError,
    Memories,
    MemoryFilter,
    NewMemory,
    UsageError,
)
from tenure.memory import FilterFields
from tenure.testing import HashEmbedder, ScriptedModel

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/m.db"


@pytest.fixture
async def memories(url: str) -> AsyncIterator[Memories]:
    async with Memories.open(url, agent_id="assistant", embedder=HashEmbedder()) as opened:
        yield opened


def texts(found: list[tenure.Memory]) -> list[str]:
    return [memory.content for memory in found]


# --- the rows ---


def test_row_01_memory_is_off_by_default(tmp_path: Path) -> None:
    """Without `memory=True` an agent's memory is "not enabled", and the error says what to do."""
    for agent in (Agent(model=ScriptedModel([])), tenure.sync.Agent(model=ScriptedModel([]))):
        with pytest.raises(UsageError, match="not enabled; make it with memory=True"):
            agent.memory


async def test_row_02_the_same_name_has_the_same_memories(url: str) -> None:
    """An agent of the same name, made anew, finds what the one before has remembered; another does not."""
    first = Agent(model=ScriptedModel([]), name="Ada", store=url, memory=True, embedder=None)
    assert first.memory is first.memory
    await first.memory.add("likes tea")
    await first.store.close()
    again = Agent(model=ScriptedModel([]), name="Ada", store=url, memory=True, embedder=None)
    assert texts(await again.memory.search("tea")) == ["likes tea"]
    other = Agent(model=ScriptedModel([]), name="Bob", store=url, memory=True, embedder=None)
    assert await other.memory.list() == []
    await other.store.close()


async def test_row_06_adding_returns_the_whole_memory(memories: Memories) -> None:
    """A UUID, equal times of now, and an embedding that is made by itself."""
    before = datetime.now(UTC)
    memory = await memories.add("Budget is $50k")
    assert uuid.UUID(memory.id)
    assert before <= memory.created_at == memory.updated_at <= datetime.now(UTC)
    assert memory.embedding is not None
    assert await memories.get(memory.id) == memory


async def test_row_07_metadata_round_trips(memories: Memories) -> None:
    """Metadata is any JSON object, unchanged."""
    metadata = {"type": "project", "n": 1.5, "deep": [{"": None}, True], "ü": "😀"}
    memory = await memories.add("x", metadata)  # type: ignore[arg-type]
    found = await memories.get(memory.id)
    assert found is not None
    assert found.metadata == metadata


async def test_row_08_labels_are_fields_and_filters(url: str) -> None:
    """Graph, task and session have fields of their own, also through an agent."""
    agent = Agent(model=ScriptedModel([]), store=url, memory=True, embedder=HashEmbedder())
    memory = await agent.memory.add("x y", graph_id="g", task_id="t", session_id="s")
    await agent.memory.add("x z")
    assert (memory.graph_id, memory.task_id, memory.session_id) == ("g", "t", "s")
    assert memory.metadata == {}
    for filters in ({"graph_id": "g"}, {"task_id": "t"}, {"session_id": "s"}):
        assert texts(await agent.memory.search("x", **filters)) == ["x y"]  # type: ignore[arg-type]
        assert texts(await agent.memory.list(**filters)) == ["x y"]  # type: ignore[arg-type]
    await agent.memory.close()
    await agent.store.close()


async def test_row_09_remembering_a_conversation(memories: Memories) -> None:
    """The role is `user` or `assistant`, and is in the metadata with the type."""
    first = await memories.remember_conversation("hello")
    second = await memories.remember_conversation("hi", "assistant", session_id="s")
    assert first.metadata == {"type": "conversation", "role": "user"}
    assert second.metadata == {"type": "conversation", "role": "assistant"}
    assert second.session_id == "s"
    with pytest.raises(InvalidValueError, match="role='system'"):
        await memories.remember_conversation("x", "system")  # type: ignore[arg-type]


async def test_row_10_getting_a_memory(memories: Memories, url: str) -> None:
    """A memory or None; never another agent's."""
    memory = await memories.add("x")
    assert await memories.get(memory.id) == memory
    assert await memories.get("none") is None
    other = Memories.open(url, agent_id="other", embedder=None)
    assert await other.get(memory.id) is None


async def test_row_11_a_search_goes_by_meaning_and_words(memories: Memories, url: str) -> None:
    """Ten at most, the best first, and by words alone when the embedder fails (C50)."""
    await memories.add_many([f"apple pie number {n}" for n in range(12)] + ["the weather"])
    assert len(await memories.search("apple pie")) == 10
    hits = await memories.search("weather")
    assert hits[0].content == "the weather"
    scores = [hit.score or 0 for hit in hits]
    assert scores == sorted(scores, reverse=True)
    embedder = HashEmbedder(identity="another")
    embedder.is_failing = True
    failing = Memories.open(url, agent_id="assistant", embedder=embedder)
    assert texts(await failing.search("weather")) == ["the weather"]
    await failing.close()


async def test_row_12_dates_are_inclusive(memories: Memories) -> None:
    """Both ends count, in both searches and in lists."""
    days = [datetime(2026, 5, day, tzinfo=UTC) for day in range(1, 6)]
    for day in days:
        await memories.add(f"note {day.day}", created_at=day)
    span: FilterFields = {"start_date": days[1], "end_date": days[3]}
    expected = {"note 2", "note 3", "note 4"}
    assert set(texts(await memories.list(**span))) == expected
    assert set(texts(await memories.search("note", **span))) == expected
    by_meaning = await memories.search_by_similarity("note", similarity_threshold=0, **span)
    assert set(texts(by_meaning)) == expected
    assert await memories.count(**span) == 3


async def test_row_13_similarity_is_exact(memories: Memories) -> None:
    """Ten at most, at least 0.7 by default, in order: exactly the best of all."""
    made = await memories.add_many([f"apple pie {n} {'cream ' * (n % 7)}" for n in range(60)])
    query = made[0].embedding
    assert query is not None
    every = sorted(
        ((float(m.embedding @ query), m.id) for m in made if m.embedding is not None), reverse=True
    )
    hits = await memories.search_by_similarity("", embedding=query, similarity_threshold=0)
    assert [hit.score for hit in hits] == pytest.approx(
        [score for score, _ in every[:10]], abs=1e-5
    )
    every_hit = await memories.search_by_similarity("", embedding=query, limit=100)
    assert len(every_hit) == sum(score >= 0.7 for score, _ in every)
    assert all((hit.score or 0) >= 0.7 for hit in every_hit)


async def test_row_14_cosine_is_clamped(memories: Memories) -> None:
    """1 for the same text, and 0 in place of a negative cosine."""
    first = await memories.add("apple pie")
    assert first.embedding is not None
    [same] = await memories.search_by_similarity("apple pie")
    assert same.score == pytest.approx(1, abs=1e-5)
    opposite = -first.embedding
    [hit] = await memories.search_by_similarity("", embedding=opposite, similarity_threshold=0)
    assert hit.score == 0


async def test_row_15_distance(memories: Memories) -> None:
    """By `euclidean` the score is 1 / (1 + distance)."""
    first = await memories.add("apple pie")
    second = await memories.add("apple tart")
    assert first.embedding is not None
    assert second.embedding is not None
    hits = await memories.search_by_similarity(
        "apple pie", metric="euclidean", similarity_threshold=0
    )
    distance = float(np.linalg.norm(first.embedding - second.embedding))
    assert [hit.score for hit in hits] == pytest.approx([1, 1 / (1 + distance)], abs=1e-4)


async def test_row_16_lists(memories: Memories) -> None:
    """A hundred at most, the newest first, ties stable."""
    await memories.add_many([f"{n}" for n in range(120)])
    listed = await memories.list()
    assert len(listed) == 100
    assert listed == (await memories.list(limit=None))[:100]
    assert await memories.list(limit=20, offset=100) == (await memories.list(limit=None))[100:]


async def test_row_17_orders(memories: Memories) -> None:
    """By creation, by update, and by relevance, which only a search has."""
    first = await memories.add("apple one")
    await memories.add("apple two")
    await memories.update(first.id, metadata={"changed": True})
    assert texts(await memories.list()) == ["apple two", "apple one"]
    assert texts(await memories.list(order_by="relevance")) == ["apple two", "apple one"]
    assert texts(await memories.list(order_by="updated_at")) == ["apple one", "apple two"]
    assert texts(await memories.search("apple", order_by="updated_at")) == [
        "apple one",
        "apple two",
    ]
    oldest = await memories.search("apple", order_by="created_at", order="asc")
    assert texts(oldest) == ["apple one", "apple two"]


async def test_row_18_pages(memories: Memories) -> None:
    """`offset` leaves out results after ranking; `page_size` changes nothing."""
    await memories.add_many([f"apple {n}" for n in range(20)])
    whole = await memories.search("apple 3", limit=20)
    assert await memories.search("apple 3", limit=5, offset=5) == whole[5:10]
    for size in (1, 7, 1000):
        assert await memories.search("apple 3", limit=20, page_size=size) == whole
    with pytest.raises(InvalidValueError, match="page_size=0"):
        await memories.search("apple", page_size=0)


async def test_row_19_labels_are_combined(memories: Memories) -> None:
    """All labels that are given have to hold; one that is not filters nothing."""
    for graph in "ab":
        for task in "cd":
            await memories.add("note", graph_id=graph, task_id=task)
    assert len(await memories.search("note")) == 4
    assert len(await memories.search("note", graph_id="a")) == 2
    assert len(await memories.search("note", graph_id="a", task_id="d")) == 1
    assert len(await memories.search_by_similarity("note", graph_id="a", task_id="d")) == 1
    assert await memories.search("note", graph_id="a", session_id="none") == []


async def test_row_20_the_threshold_is_of_similarity(memories: Memories) -> None:
    """0.7 by default for `search_by_similarity`; `search` ranks and has none."""
    await memories.add_many(["apple pie with cream", "something else entirely"])
    assert len(await memories.search_by_similarity("apple pie with cream")) == 1
    both = await memories.search_by_similarity("apple pie with cream", similarity_threshold=0)
    assert len(both) == 2
    assert "similarity_threshold" not in inspect.signature(Memories.search).parameters


async def test_row_21_words_only(url: str) -> None:
    """`use_embedding=False` asks no embedder, and finds by words."""
    embedder = HashEmbedder()
    async with Memories.open(url, agent_id="assistant", embedder=embedder) as memories:
        await memories.add_many(["apple pie", "something else"])
        embedder.texts.clear()
        assert texts(await memories.search("apple", use_embedding=False)) == ["apple pie"]
        assert embedder.texts == []


async def test_row_22_updating(memories: Memories) -> None:
    """New content is embedded anew, metadata is replaced, the time moves; None for an unknown id."""
    memory = await memories.add("apple", {"a": 1})
    changed = await memories.update(memory.id, content="pear")
    assert changed is not None
    assert (changed.content, changed.metadata, changed.version) == ("pear", {"a": 1}, 2)
    assert changed.updated_at > memory.updated_at
    assert changed.embedding is not None
    assert memory.embedding is not None
    assert changed.embedding.tolist() != memory.embedding.tolist()
    replaced = await memories.update(memory.id, metadata={"b": 2})
    assert replaced is not None
    assert replaced.metadata == {"b": 2}
    assert await memories.update("none", content="x") is None
    with pytest.raises(ConflictError):
        await memories.update(memory.id, content="x", expected_version=1)


async def test_row_23_deleting(memories: Memories, url: str) -> None:
    """True if it was there; gone from searches and lists, and after a restart."""
    memory = await memories.add("secret")
    assert await memories.delete(memory.id)
    assert not await memories.delete(memory.id)
    assert await memories.search("secret") == []
    again = Memories.open(url, agent_id="assistant", embedder=None)
    assert await again.list() == []


async def test_row_24_generating_an_embedding(url: str) -> None:
    """One of five sentences says what came of it."""
    plain = Memories.open(url, agent_id="a", embedder=None)
    memory = await plain.add("apple")
    assert (await plain.generate_embedding(memory.id)).message == "Failed to generate embedding"
    embedder = HashEmbedder()
    embedder.is_failing = True
    opened = Memories.open(url, agent_id="a", embedder=embedder)
    failed = await opened.generate_embedding(memory.id)
    assert (failed.success, failed.message) == (False, "Failed to generate embedding")
    embedder.is_failing = False
    unknown = await opened.generate_embedding("none")
    assert (unknown.success, unknown.message) == (False, "Memory not found")
    done = await opened.generate_embedding(memory.id)
    assert (done.success, done.message) == (True, "Embedding generated successfully")
    assert done.embedding is not None
    again = await opened.generate_embedding(memory.id)
    assert (again.success, again.message) == (False, "Memory already has embedding")
    assert again.embedding is None


async def test_row_25_clearing(memories: Memories, url: str) -> None:
    """How many were deleted: this agent's, and of no other."""
    other = Memories.open(url, agent_id="other", embedder=None)
    await other.add("x")
    await memories.add_many(["1", "2", "3"])
    assert await memories.clear() == 3
    assert await memories.clear() == 0
    assert await other.count() == 1


async def test_row_27_28_29_what_a_memory_is(memories: Memories) -> None:
    """Every field is there, in searches and lists too, with the embedding of the model's size."""
    await memories.add("apple")
    [listed], [found] = await memories.list(), await memories.search("apple")
    for memory in (listed, found):
        names = {field.name for field in fields(memory)}
        assert {"id", "agent_id", "graph_id", "task_id", "session_id", "content"} <= names
        assert {"embedding", "metadata", "created_at", "updated_at"} <= names
        assert memory.embedding is not None
        assert memory.embedding.shape == (64,)
        assert memory.embedding.dtype == np.float32
    assert listed == found or found.score is not None
    assert await memories.list(session_id="none") == []


async def test_row_31_facts_of_other_sessions(memories: Memories) -> None:
    """What was said in one session is found from another, unless the session is a filter."""
    await memories.add("Ada likes tea", session_id="one")
    assert texts(await memories.search("tea")) == ["Ada likes tea"]
    assert await memories.search("tea", session_id="two") == []


# --- more ---


async def test_a_failing_embedder_loses_nothing(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """What is added while the embedder is down is stored, found by words, and embedded later (C48, C49)."""
    embedder = HashEmbedder()
    embedder.is_failing = True
    async with Memories.open(url, agent_id="a", embedder=embedder) as memories:
        memory = await memories.add("apple pie")
        assert memory.embedding is None
        assert texts(await memories.search("pie")) == ["apple pie"]
        with pytest.raises(EmbeddingError):
            await memories.search_by_similarity("pie")
    assert "failed" in caplog.text
    embedder.is_failing = False
    async with Memories.open(url, agent_id="a", embedder=embedder) as memories:
        async with asyncio.timeout(10):
            while (await memories.list())[0].embedding is None:
                await asyncio.sleep(0.01)
        assert texts(await memories.search_by_similarity("apple pie")) == ["apple pie"]


async def test_without_an_embedder_similarity_says_so(url: str) -> None:
    """A search by similarity without an embedder raises: its scores would mean something else."""
    memories = Memories.open(url, agent_id="a", embedder=None)
    await memories.add("apple")
    assert texts(await memories.search("apple")) == ["apple"]
    with pytest.raises(EmbeddingError, match="no embedder"):
        await memories.search_by_similarity("apple")


async def test_many_tasks_lose_nothing(memories: Memories) -> None:
    """32 tasks that add 3,000 memories lose none, and all get their vectors."""

    async def task(number: int) -> None:
        for start in range(0, 94, 10):
            await memories.add_many(
                [f"note {number} {n}" for n in range(start, min(start + 10, 94))]
            )

    await asyncio.gather(*(task(number) for number in range(32)))
    assert await memories.count() == 32 * 94
    every = await memories.list(limit=None)
    assert {m.content for m in every} == {f"note {a} {b}" for a in range(32) for b in range(94)}
    async with asyncio.timeout(30):
        while any(m.embedding is None for m in await memories.list(limit=None)):
            await asyncio.sleep(0.05)


async def test_a_ready_vector_needs_no_embedder_call(url: str) -> None:
    """`embedding=` takes a vector of any length, as a list or an array; the words count beside it."""
    embedder = HashEmbedder()
    async with Memories.open(url, agent_id="a", embedder=embedder) as memories:
        first, _ = await memories.add_many(["apple pie", "the weather"])
        assert first.embedding is not None
        embedder.texts.clear()
        hits = await memories.search("weather", embedding=(first.embedding * 3).tolist())
        assert embedder.texts == []
        assert {hit.content for hit in hits} == {"apple pie", "the weather"}
        with pytest.raises(InvalidValueError, match="3 dimensions"):
            await memories.search("weather", embedding=[1.0, 0.0, 0.0])
        for wrong in ([], [float("nan")] * 64, [[1.0] * 64], ["a"]):
            with pytest.raises(InvalidValueError):
                await memories.search("weather", embedding=wrong)  # type: ignore[arg-type]


async def test_a_ready_vector_without_an_embedder(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A handle without an embedder searches by a ready vector all the same, and else by words, silently."""
    async with Memories.open(url, agent_id="a", embedder=HashEmbedder()) as memories:
        first, _ = await memories.add_many(["apple pie", "the weather"])
    plain = Memories.open(url, agent_id="a", embedder=None)
    assert first.embedding is not None
    [similar] = await plain.search_by_similarity("", embedding=first.embedding)
    assert similar.content == "apple pie"
    assert texts(await plain.search("weather")) == ["the weather"]
    assert caplog.text == ""
    empty = Memories.open(url, agent_id="b", embedder=None)
    with pytest.raises(EmbeddingError):
        await empty.search_by_similarity("", embedding=first.embedding)


def test_filters_have_the_fields_of_the_filter() -> None:
    """The keyword arguments of the methods are the fields of `MemoryFilter`."""
    assert list(FilterFields.__annotations__) == [field.name for field in fields(MemoryFilter)]


def test_sync_has_the_same_names_and_signatures() -> None:
    """Every public method is in `tenure.sync`, with signature and first line."""
    for name, method in inspect.getmembers(Memories, callable):
        if name.startswith("_"):
            continue
        twin = getattr(tenure.sync.Memories, name)
        if name != "close":
            ours, theirs = inspect.signature(method), inspect.signature(twin)
            assert list(ours.parameters.values()) == list(theirs.parameters.values()), name
        ours_doc = (method.__doc__ or "").splitlines()[0]
        theirs_doc = (twin.__doc__ or "").splitlines()[0]
        assert ours_doc.replace("an `async with`", "a `with`") == theirs_doc


def test_sync_remembers(tmp_path: Path) -> None:
    """The same without async, in a `with` block, through an agent too."""
    url = f"sqlite:///{tmp_path}/m.db"
    with tenure.sync.Memories.open(url, agent_id="a", embedder=HashEmbedder()) as memories:
        memory = memories.add("apple pie", {"n": 1}, session_id="s")
        assert memories.add_many([NewMemory(content="pear"), "plum"])[1].content == "plum"
        assert texts(memories.search("apple", limit=1)) == ["apple pie"]
        assert memories.get(memory.id) == memory
        assert memories.count(where={"n": 1}) == 1
        assert memories.update(memory.id, content="apple tart") is not None
        assert len(memories.history(memory.id)) == 2
        assert memories.delete(memory.id)
        assert memories.reembed() == 0
        assert memories.clear() == 2
    agent = tenure.sync.Agent(
        model=ScriptedModel([]), name="a", store=url, memory=True, embedder=None
    )
    agent.memory.add("of the agent")
    assert texts(agent.memory.list()) == ["of the agent"]


async def test_memories_are_true_for_a_time(memories: Memories) -> None:
    """`as_of` finds what was true then; a fact that has ended is closed with `valid_to`."""
    may, june = datetime(2026, 5, 1, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)
    old = await memories.add("lives in Paris", valid_from=may)
    await memories.update(old.id, valid_to=june)
    await memories.add("lives in Rome", valid_from=june)
    assert texts(await memories.search("lives", as_of=june - timedelta(seconds=1))) == [
        "lives in Paris"
    ]
    assert texts(await memories.search("lives", as_of=june)) == ["lives in Rome"]
    assert len(await memories.search("lives")) == 2
