"""Conformance: adding, reading, changing and erasing long-term memories, and keeping owners apart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from tenure.errors import ConflictError, InvalidValueError
from tenure.memory import (
    Memory,
    MemoryChanges,
    MemoryFilter,
    NewMemory,
    Owner,
    Provenance,
    passes,
)
from tenure.stores.base import Store
from tenure.stores.memory_base import MemoryQuery, MemoryStore
from tenure.testing.conformance_suite import StoreSuite

ADA = Owner(agent_id="assistant", user_id="ada")


def contents(memories: Iterable[Memory]) -> list[str]:
    """The texts of memories."""
    return [memory.content for memory in memories]


def notes(*texts: str) -> list[NewMemory]:
    """New memories of these texts."""
    return [NewMemory(content=text) for text in texts]


def at(day: int, *, hour: int = 0) -> datetime:
    """A time in May 2026."""
    return datetime(2026, 5, day, hour, tzinfo=UTC)


async def added(store: MemoryStore, new: NewMemory) -> Memory:
    """The memory that one new one became."""
    [memory] = await store.add([new])
    return memory


async def found(store: MemoryStore, text: str, **fields: object) -> list[str]:
    """The texts that a search by words finds, the best first."""
    return contents((await store.search(replace(MemoryQuery(text=text), **fields))).memories)


def every_field() -> NewMemory:
    """A new memory with all fields set, and text that columns are known to break on."""
    return NewMemory(
        content="NUL \0, half an emoji \ud83d, 日本語 and 😀",
        metadata={"type": "project", "ü": [1, 1.5, None, {"deep": True}], "": "x"},
        graph_id="g",
        task_id="t",
        session_id="s",
        position=-3,
        speaker="Ada Lovelace",
        importance=1,
        valid_from=datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        valid_to=datetime(2030, 1, 1, tzinfo=timezone(timedelta(hours=9))),
        created_at=datetime(2026, 7, 1, 0, 30, tzinfo=timezone(timedelta(hours=-7))),
        provenance=Provenance(run_id="r", message_ids=("m1", "m2")),
    )


class MemoryAddConformance(StoreSuite):
    """`add`, `get`."""

    async def test_a_memory_comes_back_as_it_was_added(self, store: Store) -> None:
        """Every field round-trips, with its time in UTC; what was not given has its default."""
        memories = store.memories(ADA)
        new = every_field()
        memory = await added(memories, new)
        assert await memories.get(memory.id) == memory
        for name in ("content", "metadata", "graph_id", "task_id", "session_id", "position"):
            assert getattr(memory, name) == getattr(new, name), name
        for name in ("speaker", "importance", "valid_from", "valid_to", "created_at", "provenance"):
            assert getattr(memory, name) == getattr(new, name), name
        assert memory.created_at.utcoffset() == timedelta(0)
        assert (memory.tenant, memory.agent_id, memory.user_id) == ("", "assistant", "ada")
        plain = await added(memories, NewMemory(content="plain"))
        assert (plain.metadata, plain.importance, plain.version) == ({}, 0.5, 1)
        assert (plain.session_id, plain.position, plain.valid_to) == (None, None, None)
        assert plain.created_at == plain.updated_at
        assert len({memory.id, plain.id}) == 2

    async def test_a_copy_is_stored(self, store: Store) -> None:
        """What is stored shares nothing that can be changed with what was given, or read before."""
        memories = store.memories(ADA)
        metadata = {"tags": ["a"]}
        memory = await added(memories, NewMemory(content="x", metadata=metadata))
        metadata["tags"].append("b")
        first = await memories.get(memory.id)
        assert first is not None
        first.metadata["tags"].append("c")  # type: ignore[union-attr]
        second = await memories.get(memory.id)
        assert second is not None
        assert second.metadata == {"tags": ["a"]}

    async def test_the_same_text_is_one_memory(self, store: Store) -> None:
        """What says the same under the same labels is returned as it is, in a call and in a later one."""
        memories = store.memories(ADA)
        first, again = await memories.add(notes("x", "x"))
        later = await added(memories, NewMemory(content="x", metadata={"other": 1}))
        assert first == again == later
        assert await memories.count() == 1
        await memories.add(notes("x"), deduplicate=False)
        assert await memories.count() == 2

    async def test_the_same_text_elsewhere_is_another_memory(self, store: Store) -> None:
        """Another label, place, speaker or time makes another memory (C80: one fact, two periods)."""
        memories = store.memories(ADA)
        base = NewMemory(content="x")
        others = [
            replace(base, graph_id="a"),
            replace(base, task_id="a"),
            replace(base, session_id="a"),
            replace(base, session_id="a", position=1),
            replace(base, session_id="a", position=2),
            replace(base, speaker="a"),
            replace(base, valid_from=at(1), valid_to=at(2)),
            replace(base, valid_from=at(6), valid_to=at(7)),
        ]
        made = await memories.add([base, *others])
        assert len({memory.id for memory in made}) == 9
        assert await memories.add(others) == made[1:]

    async def test_adding_is_all_or_nothing(self, store: Store) -> None:
        """When one of several cannot be stored, none is (C48); adding none is no error (C41)."""
        memories = store.memories(ADA)
        for bad in (
            NewMemory(content=""),
            NewMemory(content="x", metadata={"x": object()}),  # type: ignore[dict-item]
            NewMemory(content="x", metadata={"x": float("nan")}),
            NewMemory(content="x", importance=1.5),
            NewMemory(content="x", graph_id=""),
            NewMemory(content="x", session_id="\ud800"),
            NewMemory(content="x", created_at=datetime(2026, 1, 1)),  # noqa: DTZ001
            NewMemory(content="x", valid_from=at(2), valid_to=at(1)),
            NewMemory(content="x", position=2**63),
            NewMemory(content=None),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidValueError):
                await memories.add([*notes("good"), bad])
        assert await memories.count() == 0
        assert await memories.add([]) == []

    async def test_many_at_once_are_all_there(self, store: Store) -> None:
        """Memories added by many tasks at once are each there once."""
        memories = store.memories(ADA)

        async def task(number: int) -> None:
            for place in range(10):
                await memories.add(notes(f"note {number} {place}"))

        await asyncio.gather(*(task(number) for number in range(8)))
        every = await memories.list()
        assert sorted(contents(every)) == sorted(
            f"note {n} {p}" for n in range(8) for p in range(10)
        )

    async def test_big_texts(self, store: Store) -> None:
        """A text of a megabyte is kept as any other."""
        memories = store.memories(ADA)
        text = "word " * 200_000
        memory = await added(memories, NewMemory(content=text))
        assert (await memories.list())[0].content == memory.content == text


class MemoryListConformance(StoreSuite):
    """`list`, `count`."""

    async def test_lists_are_in_order(self, store: Store) -> None:
        """The newest first, or the oldest; equal times by id, so that pages fit together (row 16)."""
        memories = store.memories(ADA)
        days = [3, 1, 2, 2, 2]
        made = await memories.add(
            [NewMemory(content=f"{i}", created_at=at(day)) for i, day in enumerate(days)]
        )
        newest = sorted(made, key=lambda m: (m.created_at, m.id), reverse=True)
        assert await memories.list() == newest
        assert await memories.list(order="asc") == newest[::-1]
        pages = [await memories.list(limit=2, offset=offset) for offset in (0, 2, 4, 6)]
        assert [memory for page in pages for memory in page] == newest
        assert await memories.list(limit=0) == []
        for wrong in ({"limit": -1}, {"offset": -1}, {"order": "up"}, {"order_by": "name"}):
            with pytest.raises(InvalidValueError):
                await memories.list(**wrong)  # type: ignore[arg-type]

    async def test_lists_by_update(self, store: Store) -> None:
        """By `updated_at`, a memory that was changed comes first (row 17)."""
        memories = store.memories(ADA)
        first, _ = await memories.add(notes("1", "2"))
        await self.let_time_pass(store, 0.25)
        await memories.update(first.id, MemoryChanges(content="1 changed"))
        assert contents(await memories.list(order_by="updated_at")) == ["1 changed", "2"]
        assert contents(await memories.list(order_by="updated_at", order="asc")) == [
            "2",
            "1 changed",
        ]

    async def test_filters(self, store: Store) -> None:
        """A filter lets through what all its fields hold for, in lists, counts and searches alike."""
        memories = store.memories(ADA)
        await memories.add(
            [
                NewMemory(
                    content=f"note {n}",
                    graph_id="gh"[n % 2],
                    task_id="tu"[n // 2 % 2],
                    session_id=None if n % 3 else "s",
                    speaker=None if n % 5 else "Ada",
                    metadata={"n": n} if n % 4 else {},
                    created_at=at(1 + n),
                    valid_from=at(5 + n) if n % 2 else None,
                    valid_to=at(10 + n) if n % 3 else None,
                )
                for n in range(12)
            ]
        )
        every = await memories.list()
        assert len(every) == 12
        for wanted, count in FILTERS:
            expected = [memory for memory in every if passes(memory, wanted.checked())]
            assert await memories.list(wanted) == expected, wanted
            assert await memories.count(wanted) == len(expected) == count, wanted
            query = MemoryQuery(text="note", filter=wanted)
            searched = (await memories.search(query)).memories
            assert {memory.id for memory in searched} == {memory.id for memory in expected}, wanted

    async def test_wrong_filters(self, store: Store) -> None:
        """A time without a zone and an operator that there is not are refused, not ignored (C43)."""
        memories = store.memories(ADA)
        await memories.add(notes("x"))
        for wrong in (
            MemoryFilter(start_date=datetime(2026, 1, 1)),  # noqa: DTZ001
            MemoryFilter(where={"$where": "1"}),
            MemoryFilter(where={"n": {"$regex": "."}}),
        ):
            for call in (memories.list, memories.count, memories.clear):
                with pytest.raises(InvalidValueError):
                    await call(wrong)
            with pytest.raises(InvalidValueError):
                await memories.search(MemoryQuery(text="x", filter=wrong))
        assert await memories.count() == 1

    async def test_filters_are_values(self, store: Store) -> None:
        """No name or value in a filter is ever part of a query's text (C37, C38)."""
        memories = store.memories(ADA)
        await memories.add([NewMemory(content="x", session_id="s", metadata={"a": "b"})])
        for bad in ("x') OR 1=1 --", "a' = 'b' OR '1'='1", "' OR ''='", '"', "%", "_", "s%"):
            assert await memories.list(MemoryFilter(session_id=bad)) == []
            assert await memories.list(MemoryFilter(where={bad: 1})) == []
            assert await memories.list(MemoryFilter(where={"a": bad})) == []


FILTERS: Sequence[tuple[MemoryFilter, int]] = [
    (MemoryFilter(), 12),
    (MemoryFilter(graph_id="g"), 6),
    (MemoryFilter(graph_id="h", task_id="u"), 3),
    (MemoryFilter(session_id="s"), 4),
    (MemoryFilter(session_id="none"), 0),
    (MemoryFilter(speaker="Ada"), 3),
    (MemoryFilter(start_date=at(3)), 10),
    (MemoryFilter(end_date=at(3)), 3),
    (MemoryFilter(start_date=at(3), end_date=at(3)), 1),
    (MemoryFilter(start_date=at(3, hour=9).astimezone(timezone(timedelta(hours=9)))), 9),
    (MemoryFilter(as_of=at(1)), 6),
    (MemoryFilter(as_of=at(11)), 8),
    (MemoryFilter(as_of=at(12)), 8),
    (MemoryFilter(where={"n": {"$gte": 5, "$lt": 8}}), 3),
    (MemoryFilter(where={"n": {"$exists": False}}, session_id="s"), 1),
    (MemoryFilter(where={"unknown": 1}), 0),
    (MemoryFilter(where={}), 12),
]


class MemoryUpdateConformance(StoreSuite):
    """`update`, `history`."""

    async def test_an_update_changes_what_is_given(self, store: Store) -> None:
        """The rest stays, metadata is replaced as a whole, version and time go on (row 22)."""
        memories = store.memories(ADA)
        before = await added(memories, every_field())
        await self.let_time_pass(store, 0.25)
        after = await memories.update(before.id, MemoryChanges(metadata={"only": 1}, importance=0))
        assert after is not None
        assert after == replace(
            before, metadata={"only": 1}, importance=0.0, version=2, updated_at=after.updated_at
        )
        assert after.updated_at > before.updated_at
        assert await memories.get(before.id) == after
        last = await memories.update(before.id, MemoryChanges(content="new", valid_to=at(9)))
        assert last is not None
        assert (last.content, last.valid_to, last.version) == ("new", at(9), 3)
        assert last.content_hash != before.content_hash

    async def test_earlier_versions_are_kept(self, store: Store) -> None:
        """`history` has every version, the oldest first."""
        memories = store.memories(ADA)
        first = await added(memories, NewMemory(content="1"))
        second = await memories.update(first.id, MemoryChanges(content="2"))
        third = await memories.update(first.id, MemoryChanges(content="3"))
        assert await memories.history(first.id) == [first, second, third]
        assert await memories.history("none") == []

    async def test_a_change_to_the_same_is_none(self, store: Store) -> None:
        """An update that changes nothing writes nothing."""
        memories = store.memories(ADA)
        first = await added(memories, NewMemory(content="1", metadata={"a": 1}))
        same = MemoryChanges(content="1", metadata={"a": 1}, importance=0.5)
        assert await memories.update(first.id, same) == first
        assert await memories.update(first.id, MemoryChanges()) == first
        assert await memories.history(first.id) == [first]

    async def test_no_update_is_lost(self, store: Store) -> None:
        """An update that expects another version than there is raises and changes nothing."""
        memories = store.memories(ADA)
        first = await added(memories, NewMemory(content="1"))
        await memories.update(first.id, MemoryChanges(content="2"), expected_version=1)
        with pytest.raises(ConflictError):
            await memories.update(first.id, MemoryChanges(content="3"), expected_version=1)
        assert contents(await memories.list()) == ["2"]

    async def test_a_wrong_update_changes_nothing(self, store: Store) -> None:
        """What cannot be stored is refused; an id that there is not gives None."""
        memories = store.memories(ADA)
        first = await added(memories, NewMemory(content="1", valid_from=at(5)))
        for wrong in (
            MemoryChanges(content=""),
            MemoryChanges(importance=-1),
            MemoryChanges(valid_to=at(4)),
            MemoryChanges(metadata={"x": object()}),  # type: ignore[dict-item]
        ):
            with pytest.raises(InvalidValueError):
                await memories.update(first.id, wrong)
        assert await memories.list() == [first]
        assert await memories.update("none", MemoryChanges(content="x")) is None

    async def test_an_updated_text_is_found_by_its_new_words(self, store: Store) -> None:
        """Words of the earlier text find a changed memory no more."""
        memories = store.memories(ADA)
        first = await added(memories, NewMemory(content="likes porridge"))
        await memories.update(first.id, MemoryChanges(content="likes pancakes"))
        assert await found(memories, "pancakes") == ["likes pancakes"]
        assert await found(memories, "porridge") == []


class MemoryDeleteConformance(StoreSuite):
    """`delete`, `clear`."""

    async def test_a_deleted_memory_is_gone(self, store: Store) -> None:
        """It is in no list, search or history; a second time there is nothing to delete (row 23)."""
        memories = store.memories(ADA)
        first, second = await memories.add(notes("old secret", "other"))
        await memories.update(first.id, MemoryChanges(content="new secret"))
        assert await memories.delete(first.id)
        assert not await memories.delete(first.id)
        assert await memories.get(first.id) is None
        assert await memories.history(first.id) == []
        assert await memories.list() == [second]
        assert await found(memories, "secret") == []
        again = await added(memories, NewMemory(content="new secret"))
        assert again.id != first.id

    async def test_clearing_removes_what_passes_a_filter(self, store: Store) -> None:
        """`clear` returns how many it has removed; without a filter all of the owner's (row 25)."""
        memories = store.memories(ADA)
        other = store.memories(Owner(agent_id="assistant"))
        await other.add(notes("another owner's"))
        await memories.add(
            [NewMemory(content=str(n), session_id="st"[n % 2], metadata={"n": n}) for n in range(6)]
        )
        assert await memories.clear(MemoryFilter(session_id="s", where={"n": {"$gt": 0}})) == 2
        assert sorted(contents(await memories.list())) == ["0", "1", "3", "5"]
        assert await memories.clear() == 4
        assert await memories.clear() == 0
        assert await memories.list() == []
        assert await other.count() == 1
