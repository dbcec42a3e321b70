"""Conformance: nothing of one owner's long-term memories is another's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tenure.errors import InvalidValueError, StoreClosedError, UsageError
from tenure.memory import MemoryChanges, NewMemory, Owner
from tenure.stores.base import Store
from tenure.stores.memory_base import MemoryQuery
from tenure.testing.conformance_memories import ADA, added, contents, found, notes
from tenure.testing.conformance_suite import ODD_NAMES, StoreSuite


class MemoryOwnerConformance(StoreSuite):
    """Whose memories they are."""

    async def test_owners_are_apart(self, store: Store) -> None:
        """Nothing of another agent, user or tenant is read or changed (row 30, C70, C71)."""
        owners = [
            store.memories(Owner(agent_id="a")),
            store.memories(Owner(agent_id="a", user_id="u")),
            store.memories(Owner(agent_id="a", user_id="v")),
            store.memories(Owner(agent_id="au")),
            store.memories(Owner(agent_id="u", user_id="a")),
            store.for_tenant("t").memories(Owner(agent_id="a")),
            store.for_tenant("t").memories(Owner(agent_id="a", user_id="u")),
        ]
        made = [
            await added(owner, NewMemory(content=f"note {n}")) for n, owner in enumerate(owners)
        ]
        for number, owner in enumerate(owners):
            assert await owner.list() == [made[number]]
            assert await found(owner, "note") == [f"note {number}"]
            assert await owner.count() == 1
            for other in made[:number] + made[number + 1 :]:
                assert await owner.get(other.id) is None
                assert await owner.history(other.id) == []
                assert await owner.update(other.id, MemoryChanges(content="mine")) is None
                assert not await owner.delete(other.id)
        assert await owners[0].clear() == 1
        assert [await owner.count() for owner in owners] == [0, 1, 1, 1, 1, 1, 1]

    async def test_owners_of_odd_names(self, store: Store) -> None:
        """Names are kept apart as they are: case, blanks, wildcards, quotes."""
        names = [*ODD_NAMES]
        for name in names:
            await store.memories(Owner(agent_id=name)).add(notes(name))
            await store.memories(Owner(agent_id="x", user_id=name)).add(notes(name))
        for name in names:
            assert contents(await store.memories(Owner(agent_id=name)).list()) == [name]
            assert contents(await store.memories(Owner(agent_id="x", user_id=name)).list()) == [
                name
            ]

    async def test_wrong_owners(self, store: Store) -> None:
        """An empty name, or one that is no text, is refused: it would be somebody else's."""
        for wrong in (
            Owner(agent_id=""),
            Owner(agent_id="a", user_id=""),
            Owner(agent_id="a\0"),
            Owner(agent_id="\ud800"),
            Owner(agent_id=None),  # type: ignore[arg-type]
            Owner(agent_id="a", user_id="u", all_users=True),
        ):
            with pytest.raises(InvalidValueError):
                store.memories(wrong)

    async def test_foreign_memories_change_no_score(self, store: Store) -> None:
        """What others own has no influence on a score, or on the order."""
        mine = store.memories(ADA)
        await mine.add(notes("red apple", "green apple pie", "a red car"))
        before = (await mine.search(MemoryQuery(text="red apple pie"))).memories
        theirs = store.memories(Owner(agent_id="assistant", user_id="bob"))
        await theirs.add(notes(*(f"red pie {n}" for n in range(30))))
        after = (await mine.search(MemoryQuery(text="red apple pie"))).memories
        assert [(m.id, m.score) for m in after] == [(m.id, m.score) for m in before]

    async def test_a_handle_on_all_users_reads_only(self, store: Store) -> None:
        """It sees the memories of all users of the agent and of none, and changes nothing."""
        for user in (None, "u", "v"):
            await store.memories(Owner(agent_id="a", user_id=user)).add(notes(f"of {user}"))
        await store.memories(Owner(agent_id="b", user_id="u")).add(notes("of another agent"))
        every = store.memories(Owner(agent_id="a", all_users=True))
        assert sorted(contents(await every.list())) == ["of None", "of u", "of v"]
        assert sorted(await found(every, "of")) == sorted(await found(every, "of", limit=9))
        [hit] = (await every.search(MemoryQuery(text="v"))).memories
        assert (hit.content, hit.user_id) == ("of v", "v")
        assert await every.get(hit.id) == replace(hit, score=None, signals=None)
        assert await every.count() == 3
        for call in (
            every.add(notes("x")),
            every.update(hit.id, MemoryChanges(content="x")),
            every.delete(hit.id),
            every.clear(),
        ):
            with pytest.raises(UsageError):
                await call
        assert await every.count() == 3

    async def test_a_closed_store_has_no_memories(self, store: Store) -> None:
        """After `close` every operation raises (C81)."""
        memories = store.memories(ADA)
        await memories.add(notes("x"))
        await store.close()
        for call in (
            memories.list(),
            memories.add(notes("y")),
            memories.get("x"),
            memories.count(),
        ):
            with pytest.raises(StoreClosedError):
                await call
