"""Conformance: who takes part in conversations, what they remember with a write, and forgetting them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tenure.errors import ConflictError, InvalidValueError, LeaseLostError, UsageError
from tenure.marks import COVERS
from tenure.memory import NewMemory, Owner, Provenance
from tenure.messages import Message
from tenure.saying import assistant
from tenure.stores.base import Lease, Store
from tenure.stores.memory_base import MemoryQuery
from tenure.stores.records import Forgotten, Participant
from tenure.testing.conformance_suite import StoreSuite, everything, history, said, unstorable

ANN = Owner(agent_id="a", user_id="ann")
BOB = Owner(agent_id="a", user_id="bob")
NOBODY = Owner(agent_id="a")
ALL_USERS = Owner(agent_id="a", all_users=True)


def by(owner: Owner, *contents: str) -> Participant:
    """Somebody who remembers texts."""
    return Participant(owner=owner, memories=[NewMemory(content=each) for each in contents])


def summary(text: str, covered: list[Message]) -> Message:
    """A summary of messages."""
    return replace(assistant(text), metadata={COVERS: [message.id for message in covered]})


async def memories_of(store: Store, owner: Owner) -> list[str]:
    """What an owner remembers, the oldest first."""
    found = await store.memories(owner).list(order="asc")
    return [memory.content for memory in found]


class ParticipantConformance(StoreSuite):
    """`by=` of `append` and `start_branch`, and `owner=` of `append_to_run` and `conversations`."""

    async def test_messages_and_memories_are_written_together(self, store: Store) -> None:
        """`by=` adds memories with the messages, and returns them as they are in the store."""
        new = NewMemory(content="Tea", session_id="s", provenance=Provenance(run_id="r"))
        appended = await store.append(
            "s", said("1"), run_id="r", by=Participant(owner=ANN, memories=[new])
        )
        [memory] = appended.memories
        assert (memory.content, memory.user_id, memory.session_id) == ("Tea", "ann", "s")
        assert await store.memories(ANN).get(memory.id) == memory
        found = await store.memories(ANN).search(MemoryQuery(text="tea"))
        assert [hit.id for hit in found.memories] == [memory.id]
        assert await history(store, "s") == ["1"]
        branched = await store.start_branch("s", said("2"), after=0, run_id="q", by=by(ANN, "Milk"))
        assert [each.content for each in branched.memories] == ["Milk"]
        assert await memories_of(store, ANN) == ["Tea", "Milk"]

    async def test_a_repeated_write_remembers_nothing_again(self, store: Store) -> None:
        """A write that is repeated has messages and memories there once."""
        messages = said("1")
        first = await store.append("s", messages, run_id="r", by=by(ANN, "Tea", "Tea"))
        again = await store.append("s", messages, run_id="r", by=by(ANN, "Tea"))
        assert [m.id for m in again.memories] == [first.memories[0].id]
        assert again.revision == first.revision
        assert await memories_of(store, ANN) == ["Tea"]

    async def test_memories_without_messages(self, store: Store) -> None:
        """A run without a message may have something to remember; there is no conversation then."""
        appended = await store.append("s", [], run_id="r", by=by(ANN, "Tea"))
        assert (appended.revision, len(appended.memories)) == (0, 1)
        assert await store.conversation("s") is None
        assert await store.conversations(owner=ANN) == []

    async def test_a_failed_write_remembers_nothing(self, store: Store) -> None:
        """A conflict, a lost lease, or a message or memory that cannot be stored: neither is written."""
        await store.append("s", said("1"))
        before = await everything(store, "s")
        lost = Lease(session_id="s", holder="h", token=99)
        with pytest.raises(ConflictError):
            await store.append("s", said("2"), run_id="r", expected_revision=9, by=by(ANN, "Tea"))
        with pytest.raises(LeaseLostError):
            await store.append("s", said("2"), run_id="r", lease=lost, by=by(ANN, "Tea"))
        with pytest.raises(LeaseLostError):
            await store.start_branch(
                "s", said("2"), after=0, run_id="r", lease=lost, by=by(ANN, "T")
            )
        with pytest.raises(InvalidValueError):
            await store.append("s", [unstorable()], run_id="r", by=by(ANN, "Tea"))
        with pytest.raises(InvalidValueError):
            await store.append("s", said("2"), run_id="r", by=by(ANN, "Tea", ""))
        with pytest.raises(InvalidValueError):
            await store.append("s", said("2"), by=by(ANN, "Tea"))
        with pytest.raises(UsageError):
            await store.append("s", said("2"), run_id="r", by=by(ALL_USERS, "Tea"))
        assert await everything(store, "s") == before
        assert await memories_of(store, ANN) == []

    async def test_conversations_of_an_owner(self, store: Store) -> None:
        """`owner=` lists those in which the owner's runs wrote something, in the usual order and pages."""
        await store.append("of-ann", said("1"), run_id="1", by=by(ANN))
        await self.let_time_pass(store, 0.01)
        await store.append("of-both", said("1"), run_id="2", by=by(ANN))
        await store.append("of-both", said("2"), run_id="3", by=by(BOB))
        await self.let_time_pass(store, 0.01)
        await store.append("of-nobody", said("1"), run_id="4", by=by(NOBODY))
        await store.append("unknown", said("1"), run_id="5")
        await store.append_to_run("running", "6", said("1"), owner=BOB)
        other = store.for_tenant("t")
        await other.append("elsewhere", said("1"), run_id="1", by=by(ANN))

        async def found(owner: Owner) -> list[str]:
            return [each.session_id for each in await store.conversations(owner=owner)]

        assert await found(ANN) == ["of-both", "of-ann"]
        assert await found(NOBODY) == ["of-nobody"]
        assert sorted(await found(BOB)) == ["of-both", "running"]
        assert sorted(await found(ALL_USERS)) == ["of-ann", "of-both", "of-nobody", "running"]
        assert await found(Owner(agent_id="b", all_users=True)) == []
        [first] = await store.conversations(owner=ANN, limit=1)
        rest = await store.conversations(owner=ANN, after=first)
        assert [first.session_id, *(each.session_id for each in rest)] == ["of-both", "of-ann"]
        await store.rename("of-ann", "renamed")
        assert sorted(await found(ANN)) == ["of-both", "renamed"]


class ForgetConformance(StoreSuite):
    """`forget`."""

    async def test_an_owner_is_forgotten_whole(self, store: Store) -> None:
        """Memories, conversations and what runs were logging are gone; it says what that was."""
        await store.append("s", said("1", "2"), run_id="r", by=by(ANN, "Tea", "Milk"))
        await store.append("s", said("app"))
        await store.append_to_run("q", "run", said("3"), owner=ANN)
        await store.memories(ANN).add([NewMemory(content="Sugar")])
        forgotten = await store.forget(ANN)
        assert forgotten == Forgotten(memories=3, conversations=("q", "s"), messages=3)
        assert await store.conversations() == []
        assert await store.run_entries("q", "run") == []
        assert await memories_of(store, ANN) == []
        assert (await store.memories(ANN).search(MemoryQuery(text="tea"))).memories == []
        assert await store.forget(ANN) == Forgotten()

    async def test_others_are_not_forgotten(self, store: Store) -> None:
        """Nothing of another user, agent or tenant is touched, nor of the agent without a user."""
        other = store.for_tenant("t")
        owners = [BOB, NOBODY, Owner(agent_id="b", user_id="ann")]
        for number, owner in enumerate(owners):
            await store.append(f"s{number}", said("1"), run_id="r", by=by(owner, "Tea"))
        await other.append("s", said("1"), run_id="r", by=by(ANN, "Tea"))
        await store.append("s", said("1"), run_id="r", by=by(ANN, "Tea"))
        assert await store.forget(ANN) == Forgotten(memories=1, conversations=("s",), messages=1)
        for number, owner in enumerate(owners):
            assert await history(store, f"s{number}") == ["1"]
            assert await memories_of(store, owner) == ["Tea"]
        assert await history(other, "s") == ["1"]
        assert await memories_of(other, ANN) == ["Tea"]

    async def test_a_shared_conversation_goes_on_without_the_owner(self, store: Store) -> None:
        """Where others took part, only the owner's messages and summaries of them go, everywhere."""
        first, second, third = said("ann 1"), said("bob 2"), said("ann 3")
        await store.append("s", first, run_id="1", by=by(ANN))
        await store.append("s", second, run_id="2", by=by(BOB))
        await store.append("s", said("app"))
        told = [summary("what ann said", first), summary("what bob said", second)]
        await store.start_branch("s", [*told, *said("bob 4")], after=0, run_id="3", by=by(BOB))
        await store.append("s", third, run_id="4", by=by(ANN))
        await store.append_to_run("s", "5", said("ann 5"), owner=ANN)
        forgotten = await store.forget(ANN)
        assert (forgotten.conversations, forgotten.shared) == ((), ("s",))
        assert forgotten.messages == 4
        assert await history(store, "s") == ["what bob said", "bob 4"]
        entries = await store.entries("s", branch=1)
        assert [entry.message.text for entry in entries] == ["bob 2", "app"]
        assert await store.run_entries("s", "5") == []
        found = await store.conversation("s")
        assert found is not None
        assert (found.revision, found.message_count) == (6, 2)
        assert await store.conversations(owner=ANN) == []
        assert await store.forget(ANN) == Forgotten()

    async def test_a_message_stays_its_writers_on_another_branch(self, store: Store) -> None:
        """Whoever rewrites a history does not become the writer of what others have said in it."""
        ann, bob, app = said("ann"), said("bob"), said("app")
        await store.append("s", ann, run_id="1", is_failed=True, by=by(ANN))
        await store.append("s", bob, run_id="2", by=by(BOB))
        await store.append("s", app)
        edited = replace(ann[0], metadata={"edited": True})
        new = [*bob, edited, *app, *said("bob too")]
        await store.start_branch("s", new, after=0, run_id="3", by=by(BOB))
        entries = await store.entries("s")
        assert [entry.run_id for entry in entries] == ["2", "1", None, "3"]
        assert [entry.is_failed for entry in entries] == [False, True, False, False]
        assert (await store.forget(ANN)).messages == 1
        assert await history(store, "s") == ["bob", "app", "bob too"]
        await store.append("s", said("ann again"), run_id="4", by=by(ANN))
        assert (await store.forget(BOB)).shared == ("s",)
        assert await history(store, "s") == ["app", "ann again"]

    async def test_a_fork_is_forgotten_too(self, store: Store) -> None:
        """Whoever took part in a conversation has taken part in its forks."""
        await store.append("s", said("ann"), run_id="1", by=by(ANN))
        await store.fork("s", "fork")
        await store.fork("s", "empty", after=0)  # which takes over nothing
        await store.append("fork", said("bob"), run_id="2", by=by(BOB))
        forgotten = await store.forget(ANN)
        assert (forgotten.conversations, forgotten.shared) == (("s",), ("fork",))
        assert await history(store, "fork") == ["bob"]
        assert await store.conversation("empty") is not None

    async def test_summaries_in_a_fork_are_forgotten_too(self, store: Store) -> None:
        """A fork that has a summary, and not what the owner said, loses the summary."""
        first = said("ann")
        await store.append("s", first, run_id="1", by=by(ANN))
        new = [summary("what ann said", first), *said("bob")]
        await store.start_branch("s", new, after=0, run_id="2", by=by(BOB))
        await store.fork("s", "fork")
        assert (await store.forget(ANN)).shared == ("fork", "s")
        assert await history(store, "s") == await history(store, "fork") == ["bob"]

    async def test_a_run_cannot_bring_an_owner_back(self, store: Store) -> None:
        """Whoever holds the lease of a conversation that is forgotten has lost it."""
        await store.append("s", said("1"), run_id="1", by=by(ANN))
        lease = await store.request_lease("s", holder="run", wait=False)
        await store.forget(ANN)
        with pytest.raises(LeaseLostError):
            await store.append("s", said("2"), run_id="2", by=by(ANN, "Tea"), lease=lease)
        assert await store.conversations() == []
        assert await memories_of(store, ANN) == []

    async def test_an_owner_may_come_again(self, store: Store) -> None:
        """After forgetting, the same owner begins anew."""
        await store.append("s", said("1"), run_id="1", by=by(ANN, "Tea"))
        await store.forget(ANN)
        await store.append("s", said("2"), run_id="2", by=by(ANN, "Milk"))
        assert await history(store, "s") == ["2"]
        found = await store.memories(ANN).search(MemoryQuery(text="tea milk"))
        assert [memory.content for memory in found.memories] == ["Milk"]

    async def test_all_users_are_no_owner(self, store: Store) -> None:
        """Each user is forgotten by name."""
        with pytest.raises(UsageError):
            await store.forget(ALL_USERS)
