"""Conformance: runs that have begun, and histories as they were then.

Their checkpoints and calls are in `conformance_checkpoints.py`, their end in `conformance_endings.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from tenure.errors import InvalidValueError, LeaseLostError, StoreClosedError, UsageError
from tenure.memory import Owner
from tenure.stores.base import Lease, Store
from tenure.testing.conformance_suite import (
    StoreSuite,
    call,
    checkpoint,
    everything,
    history,
    known,
    log,
    names,
    said,
    texts,
)

ANN = Owner(agent_id="a", user_id="ann")
BOB = Owner(agent_id="a", user_id="bob")
NOBODY = Owner(agent_id="a")


class RunRecordConformance(StoreSuite):
    """`begin_run`, `runs`, and `read(revision=)`."""

    async def test_a_run_is_recorded(self, store: Store) -> None:
        """What is known of a run is whose it is, its input, and when and at which revision it began."""
        await store.append("s", said("1"))
        await store.append("s", said("2"))
        begun = await store.begin_run("s", "r", owner=ANN, input="Hello")
        assert (begun.run_id, begun.owner, begun.input) == ("r", ANN, "Hello")
        assert (begun.revision, begun.ended_at) == (2, None)
        assert begun.started_at >= (await known(store, "s")).updated_at
        assert begun.started_at.utcoffset() is not None
        assert await store.runs("s") == await store.runs("s", unfinished=True) == [begun]
        assert names(await store.conversations(owner=ANN)) == ["s"]

    async def test_beginning_a_run_creates_the_conversation(self, store: Store) -> None:
        """A run may be the first of its conversation, whose history is empty then."""
        assert await store.runs("s") == await store.runs("s", unfinished=True) == []
        assert await store.conversation("s") is None
        assert (await store.begin_run("s", "r", owner=NOBODY, input="")).revision == 0
        found = await known(store, "s")
        assert (found.revision, found.message_count) == (0, 0)
        assert [run.owner for run in await store.runs("s")] == [NOBODY]
        assert [run.input for run in await store.runs("s", unfinished=True)] == [""]

    async def test_a_run_begins_once(self, store: Store) -> None:
        """A run that has begun already stays as it is, and its record is returned."""
        begun = await store.begin_run("s", "r", owner=ANN, input="one")
        await store.append("s", said("1"))
        await self.let_time_pass(store, 0.01)
        assert await store.begin_run("s", "r", owner=BOB, input="two") == begun
        await store.commit_run("s", "r")
        ended = await store.begin_run("s", "r", owner=ANN, input="three")
        assert (ended.input, ended.started_at) == (None, begun.started_at)
        assert ended.ended_at is not None
        assert await store.runs("s") == [ended]

    async def test_runs_are_listed_as_they_began(self, store: Store) -> None:
        """Runs come in the order in which they have begun; those that only logged are not there."""
        await store.append_to_run("s", "c", said("1"), owner=ANN)
        await store.append_to_run("s", "only logs", said("1"), owner=ANN)
        await store.save_checkpoint("s", "b", checkpoint("1"))
        await store.append("s", said("2"), run_id="only writes")
        for run_id in ("z", "b", "c", "a"):
            await store.begin_run("s", run_id, owner=ANN, input=run_id)
        await store.discard_run("s", "b")
        assert [run.run_id for run in await store.runs("s")] == ["z", "b", "c", "a"]
        assert [run.run_id for run in await store.runs("s", unfinished=True)] == ["z", "c", "a"]

    async def test_what_a_run_cannot_begin_with_is_refused(self, store: Store) -> None:
        """A name that cannot be kept, an input that is no text, or all users as the owner: nothing is
        written.
        """
        bad = cast("str", None)
        for run_id, owner, given in (
            ("\ud800", ANN, ""),
            ("r", Owner(agent_id=""), ""),
            ("r", ANN, bad),
        ):
            with pytest.raises(InvalidValueError):
                await store.begin_run("s", run_id, owner=owner, input=given)
        with pytest.raises(UsageError):
            await store.begin_run("s", "r", owner=Owner(agent_id="a", all_users=True), input="")
        assert await store.conversation("s") is None

    async def test_a_run_logs_what_only_the_history_has(self, store: Store) -> None:
        """A message whose id the history has is logged; one that the run's own log has is skipped."""
        one, two = said("1", "2")
        await store.append("s", [one])
        assert await store.append_to_run("s", "r", [one, two]) == 2
        assert await store.append_to_run("s", "r", [two, one]) == 2
        assert texts(entry.message for entry in await store.run_entries("s", "r")) == ["1", "2"]
        assert (await store.commit_run("s", "r")).written == 1
        assert log(await store.entries("s")) == [(1, "1"), (2, "2")]

    async def test_an_earlier_revision_is_read(self, store: Store) -> None:
        """`revision=` reads the history as it was then; 0 is before the first, and None is now."""
        await store.append("s", said("1", "2"))
        await store.append("s", said("3"))
        await store.start_branch("s", said("a", "b"), after=1)
        await store.append("s", said("c"))
        wanted = [[], ["1", "2"], ["1", "2", "3"], ["1", "a", "b"], ["1", "a", "b", "c"]]
        for revision, words in enumerate(wanted):
            assert texts(await store.read("s", revision=revision)) == words
            for last in range(5):
                found = texts(await store.read("s", last=last, revision=revision))
                assert found == words[max(0, len(words) - last) :]
        assert (
            texts(await store.read("s", revision=None)) == await history(store, "s") == wanted[-1]
        )

    async def test_an_earlier_revision_is_redacted_too(self, store: Store) -> None:
        """What was redacted since is not in an earlier revision either."""
        await store.append("s", said("1", "secret"))
        await store.start_branch("s", said("a"), after=0)
        await store.redact("s", lambda m: None if m.text == "secret" else m)
        assert texts(await store.read("s", revision=1)) == ["1"]
        assert texts(await store.read("s", revision=3)) == ["a"]

    async def test_a_fork_has_revisions_of_its_own(self, store: Store) -> None:
        """A fork begins with what it has taken over, as its first revision."""
        await store.append("s", said("1", "2"))
        await store.append("s", said("3"))
        await store.fork("s", "f", after=1)
        await store.append("f", said("a"))
        await store.delete("s")
        found = [texts(await store.read("f", revision=n)) for n in range(3)]
        assert found == [[], ["1"], ["1", "a"]]

    async def test_an_unknown_revision_is_refused(self, store: Store) -> None:
        """A revision at which the conversation has never been is an error; 0 never is."""
        assert await store.read("none", revision=0) == []
        await store.append("s", said("1"))
        for name, revision in (("none", 1), ("none", -1), ("s", 2), ("s", -1), ("s", 2**70)):
            with pytest.raises(InvalidValueError):
                await store.read(name, revision=revision)

    async def test_forks_take_no_runs_along(self, store: Store) -> None:
        """A fork has neither records of runs, nor their checkpoints and calls."""
        await store.append("s", said("1"))
        await store.begin_run("s", "r", owner=ANN, input="x")
        await store.save_checkpoint("s", "r", checkpoint("1"))
        await store.begin_call("s", "r", call())
        before = await everything(store, "s")
        await store.fork("s", "f")
        assert await store.runs("f") == await store.runs("f", unfinished=True) == []
        assert await store.checkpoints("f", "r") == await store.calls("f", "r") == []
        assert (await store.save_checkpoint("f", "r", checkpoint("1"))).version == 1
        begun = await store.begin_run("f", "r", owner=BOB, input="y")
        assert (begun.input, begun.owner) == ("y", ANN)
        assert await everything(store, "s") == before

    async def test_a_renamed_conversation_keeps_its_runs(self, store: Store) -> None:
        """Runs, checkpoints and calls stay what they are under another name, and nothing at the old one."""
        await store.begin_run("s", "r", owner=ANN, input="x")
        await store.save_checkpoint("s", "r", checkpoint("1"), messages=said("1"))
        await store.begin_call("s", "r", call())
        runs, kept = await store.runs("s"), await store.checkpoints("s", "r")
        calls = await store.calls("s", "r")
        await store.rename("s", "t")
        assert await store.runs("t") == runs
        assert await store.checkpoints("t", "r") == kept
        assert await store.calls("t", "r") == calls
        assert await store.runs("s") == await store.calls("s", "r") == []
        assert await store.checkpoints("s", "r") == []

    async def test_runs_of_a_closed_store(self, store: Store) -> None:
        """After `close()` every operation on runs raises (C81)."""
        await store.begin_run("s", "r", owner=ANN, input="")
        await store.close()
        operations: list[Callable[[], Awaitable[object]]] = [
            *writes(store),
            lambda: store.runs("s"),
            lambda: store.checkpoints("s", "r"),
            lambda: store.calls("s", "r"),
            lambda: store.read("s", revision=0),
        ]
        for operation in operations:
            with pytest.raises(StoreClosedError):
                await operation()

    async def test_writes_of_runs_under_a_lost_lease_are_refused(self, store: Store) -> None:
        """Every write on runs under a lost lease is refused, and nothing is written (C09)."""
        await store.append("s", said("1"))
        await store.begin_run("s", "r", owner=ANN, input="x")
        await store.save_checkpoint("s", "r", checkpoint("0"), messages=said("2"))
        await store.begin_call("s", "r", call())
        lost = await store.request_lease("s", holder="a", wait=False)
        assert lost is not None
        await self.let_leases_expire(store)
        held = await store.request_lease("s", holder="b", wait=False)
        before = await everything(store, "s")
        for write in writes(store, lost):
            with pytest.raises(LeaseLostError):
                await write()
        assert await everything(store, "s") == before
        with pytest.raises(InvalidValueError):
            await store.begin_run("t", "r", owner=ANN, input="x", lease=held)
        for write in writes(store, held):
            await write()

    async def test_runs_are_each_tenants_and_conversations_own(self, store: Store) -> None:
        """The same run in another conversation or of another tenant is another one (C71)."""
        places = [(store, "s"), (store, "t"), (store.for_tenant("acme"), "s")]
        for handle, name in places:
            await handle.begin_run(name, "r", owner=ANN, input=f"{handle.tenant}/{name}")
            await handle.save_checkpoint(name, "r", checkpoint("1"), messages=said("1"))
            assert (await handle.begin_call(name, "r", call())).number == 1
            await handle.save_checkpoint(name, "other", checkpoint("1"))
        before = [await everything(handle, name) for handle, name in places[1:]]
        others = await store.checkpoints("s", "other")
        for write in writes(store):
            await write()
        assert [await everything(handle, name) for handle, name in places[1:]] == before
        assert await store.checkpoints("s", "other") == others


def writes(store: Store, lease: Lease | None = None) -> list[Callable[[], Awaitable[object]]]:
    """Every write on runs, each on the run "r" of "s", which then ends."""
    return [
        lambda: store.begin_run("s", "r2", owner=BOB, input="late", lease=lease),
        lambda: store.append_to_run("s", "r", said("late"), lease=lease),
        lambda: store.save_checkpoint("s", "r", checkpoint("2"), messages=said("x"), lease=lease),
        lambda: store.begin_call("s", "r", call(), lease=lease),
        lambda: store.end_call("s", "r", 1, outcome="late", lease=lease),
        lambda: store.roll_back("s", "r", version=0, lease=lease),
        lambda: store.mark_undone("s", "r", 1, lease=lease),
        lambda: store.discard_run("s", "r", lease=lease),
        lambda: store.commit_run("s", "r", lease=lease),
    ]
