"""Conformance: what is left of runs that have ended, or whose text was erased."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tenure.errors import ConflictError, LeaseLostError
from tenure.memory import NewMemory
from tenure.stores.base import Lease, Store
from tenure.stores.records import Participant
from tenure.testing.conformance_checkpoints import versions
from tenure.testing.conformance_run_records import ANN, BOB
from tenure.testing.conformance_suite import (
    StoreSuite,
    call,
    checkpoint,
    everything,
    history,
    known,
    said,
    texts,
)

ENDS = Participant(owner=ANN, ends_run=True)


async def go_on(store: Store, session_id: str, run_id: str, *words: str) -> None:
    """Begin a run that logs, and has a checkpoint and a call."""
    await store.begin_run(session_id, run_id, owner=ANN, input="hello")
    await store.save_checkpoint(session_id, run_id, checkpoint("1"), messages=said(*words))
    await store.begin_call(session_id, run_id, call())


async def check_ended(store: Store, session_id: str, run_id: str) -> None:
    """Check that nothing of a run is left but its record."""
    assert [b for b in await store.branches(session_id) if b.run_id == run_id] == []
    assert await store.run_entries(session_id, run_id) == []
    assert await store.checkpoints(session_id, run_id) == []
    assert await store.calls(session_id, run_id) == []
    assert run_id not in [run.run_id for run in await store.runs(session_id, unfinished=True)]
    (record,) = [run for run in await store.runs(session_id) if run.run_id == run_id]
    assert (record.owner, record.input) == (ANN, None)
    assert record.ended_at is not None
    assert record.ended_at >= record.started_at


class RunEndConformance(StoreSuite):
    """`Participant.ends_run`, `commit_run`, `discard_run`; runs and `delete`, `forget`, `redact`."""

    async def test_an_append_ends_its_run(self, store: Store) -> None:
        """With `ends_run` an append removes all of the run but its record; others go on."""
        await store.append("s", said("1"))
        await go_on(store, "s", "r", "2")
        await go_on(store, "s", "other", "3")
        await go_on(store, "t", "r", "4")
        other = await store.checkpoints("s", "other"), await store.calls("s", "other")
        elsewhere = await everything(store, "t")
        before = len(await store.branches("s"))
        await store.append("s", said("2"), run_id="r", by=ENDS)
        assert await history(store, "s") == ["1", "2"]
        await check_ended(store, "s", "r")
        assert len(await store.branches("s")) == before - 1
        assert (await store.checkpoints("s", "other"), await store.calls("s", "other")) == other
        assert texts(e.message for e in await store.run_entries("s", "other")) == ["3"]
        assert [run.run_id for run in await store.runs("s", unfinished=True)] == ["other"]
        assert await everything(store, "t") == elsewhere

    async def test_a_write_without_it_ends_no_run(self, store: Store) -> None:
        """A participant that does not say so leaves the run as it is."""
        await go_on(store, "s", "r", "2")
        kept = await store.checkpoints("s", "r"), await store.calls("s", "r"), await store.runs("s")
        await store.append("s", said("1"), run_id="r", by=Participant(owner=ANN))
        await store.start_branch("s", said("2"), after=0, run_id="r", by=Participant(owner=ANN))
        found = (
            await store.checkpoints("s", "r"),
            await store.calls("s", "r"),
            await store.runs("s"),
        )
        assert found == kept

    async def test_a_new_branch_ends_its_run(self, store: Store) -> None:
        """With `ends_run` a new branch removes all of the run but its record."""
        await store.append("s", said("1"))
        await go_on(store, "s", "r", "2")
        await store.start_branch("s", said("2"), after=0, run_id="r", by=ENDS)
        assert await history(store, "s") == ["2"]
        await check_ended(store, "s", "r")

    async def test_a_run_ends_without_a_message(self, store: Store) -> None:
        """An append that has nothing to write ends the run all the same, and raises no revision."""
        messages = said("1")
        await store.append("s", messages)
        for run_id, new in (("r", []), ("q", messages)):
            await go_on(store, "s", run_id, "2")
            written = await store.append("s", new, run_id=run_id, expected_revision=9, by=ENDS)
            assert (written.written, written.revision) == (0, 1)
            await check_ended(store, "s", run_id)
        await store.append("none", [], run_id="r", by=ENDS)
        assert await store.conversation("none") is None

    async def test_a_run_ends_once(self, store: Store) -> None:
        """A write that is repeated leaves the time at which the run has ended."""
        await go_on(store, "s", "r", "1")
        await store.append("s", said("1"), run_id="r", by=ENDS)
        before = await everything(store, "s")
        await self.let_time_pass(store, 0.01)
        await store.append("s", [], run_id="r", by=ENDS)
        await store.commit_run("s", "r")
        assert await store.discard_run("s", "r") is False
        assert await everything(store, "s") == before

    async def test_a_failed_write_ends_no_run(self, store: Store) -> None:
        """After a conflict or a lost lease the run, its log, its checkpoints and its calls are there."""
        await store.append("s", said("1"))
        await go_on(store, "s", "r", "2")
        before = await everything(store, "s")
        lost = Lease(session_id="s", holder="h", token=99)
        by = Participant(owner=ANN, memories=[NewMemory(content="Tea")], ends_run=True)
        with pytest.raises(ConflictError):
            await store.append("s", said("2"), run_id="r", expected_revision=9, by=by)
        with pytest.raises(ConflictError):
            await store.start_branch(
                "s", said("2"), after=0, run_id="r", expected_revision=9, by=by
            )
        with pytest.raises(LeaseLostError):
            await store.append("s", [], run_id="r", by=by, lease=lost)
        with pytest.raises(LeaseLostError):
            await store.start_branch("s", said("2"), after=0, run_id="r", by=by, lease=lost)
        assert await everything(store, "s") == before
        assert await store.memories(ANN).list() == []

    async def test_a_run_whose_write_makes_a_fork_ends_where_it_began(self, store: Store) -> None:
        """When an append goes to a fork, the run ends in the conversation in which it has begun."""
        await store.append("s", said("1"))
        await go_on(store, "s", "r", "2")
        await store.append("s", said("others"))
        written = await store.append(
            "s", said("2"), run_id="r", expected_revision=1, on_conflict="fork", by=ENDS
        )
        assert await history(store, written.session_id) == ["1", "2"]
        await check_ended(store, "s", "r")
        assert await store.runs(written.session_id) == []

    async def test_a_commit_ends_its_run(self, store: Store) -> None:
        """Committing a run ends it, also one that has logged nothing."""
        await go_on(store, "s", "r", "1")
        await store.begin_run("s", "q", owner=ANN, input="x")
        await store.begin_call("s", "q", call())
        assert (await store.commit_run("s", "r")).written == 1
        assert (await store.commit_run("s", "q")).written == 0
        for run_id in ("r", "q"):
            await check_ended(store, "s", run_id)
        assert await history(store, "s") == ["1"]

    async def test_discarding_ends_a_run(self, store: Store) -> None:
        """Discarding says whether there was a branch, a checkpoint, a call, or a run that had not ended."""
        await store.append("s", said("1"))
        await go_on(store, "s", "whole", "2")
        await store.begin_run("s", "begun", owner=ANN, input="x")
        for run_id in ("whole", "begun"):
            assert await store.discard_run("s", run_id) is True
            await check_ended(store, "s", run_id)
            assert await store.discard_run("s", run_id) is False
        await store.save_checkpoint("s", "saved", checkpoint("1"))
        await store.begin_call("s", "called", call())
        await store.append_to_run("s", "logged", [])
        for run_id in ("saved", "called", "logged"):
            assert await store.discard_run("s", run_id) is True
            assert await store.discard_run("s", run_id) is False
            assert await store.checkpoints("s", run_id) == await store.calls("s", run_id) == []
        assert await history(store, "s") == ["1"]

    async def test_a_run_that_has_ended_stays_so(self, store: Store) -> None:
        """Of what a run saves after its end, or after a redaction, nothing is kept."""
        for session_id in ("committed", "discarded", "redacted"):
            await store.append(session_id, said("secret"))
            await go_on(store, session_id, "r", "1")
            if session_id == "committed":
                await store.commit_run(session_id, "r")
            elif session_id == "discarded":
                await store.discard_run(session_id, "r")
            else:
                await store.redact(session_id, lambda m: None if m.text == "secret" else m)
            (ended,) = await store.runs(session_id)
            logged = await store.run_entries(session_id, "r")
            late = said("late")
            saved = await store.save_checkpoint(session_id, "r", checkpoint("2"), messages=late)
            assert (saved.version, saved.checkpoint_id) == (2, "2")
            begun = await store.begin_call(session_id, "r", call())
            await store.end_call(session_id, "r", begun.number, outcome="done")
            assert await store.runs(session_id) == [ended]
            assert await store.runs(session_id, unfinished=True) == []
            assert await store.checkpoints(session_id, "r") == []
            assert await store.calls(session_id, "r") == []
            assert await store.run_entries(session_id, "r") == logged

    async def test_a_redaction_takes_what_runs_resume_from(self, store: Store) -> None:
        """If anything is changed, checkpoints, calls and inputs are gone; the logs and versions stay."""
        await store.append("s", said("1", "secret"))
        await go_on(store, "s", "r", "2")
        await store.save_checkpoint("s", "q", checkpoint("1"))
        await go_on(store, "t", "r", "3")
        before, elsewhere = await everything(store, "s"), await everything(store, "t")
        assert await store.redact("s", lambda message: message) == 0
        assert await everything(store, "s") == before
        assert await store.redact("s", lambda m: None if m.text == "secret" else m) == 1
        for run_id in ("r", "q"):
            assert await store.checkpoints("s", run_id) == await store.calls("s", run_id) == []
        (record,) = await store.runs("s")
        assert (record.input, record.ended_at) == (None, None)
        assert await store.runs("s", unfinished=True) == []
        assert texts(e.message for e in await store.run_entries("s", "r")) == ["2"]
        assert (await store.save_checkpoint("s", "r", checkpoint("1"))).version == 2
        assert (await store.begin_call("s", "r", call())).number == 2
        assert await everything(store, "t") == elsewhere
        assert await store.discard_run("s", "r") is True

    async def test_a_redacted_run_can_still_be_discarded(self, store: Store) -> None:
        """A run that cannot be resumed any more has not ended until somebody ends it."""
        await store.append("s", said("1"))
        await store.begin_run("s", "r", owner=ANN, input="x")
        await store.redact("s", lambda _: None)
        assert await store.discard_run("s", "r") is True
        await check_ended(store, "s", "r")

    async def test_deleting_removes_runs(self, store: Store) -> None:
        """A deleted conversation leaves nothing of its runs; one of the same name starts anew."""
        await go_on(store, "s", "r", "1")
        await go_on(store, "t", "r", "1")
        elsewhere = await everything(store, "t")
        assert await store.delete("s") is True
        assert await store.runs("s") == await store.calls("s", "r") == []
        assert await store.checkpoints("s", "r") == []
        await go_on(store, "s", "r", "1")
        assert versions(await store.checkpoints("s", "r")) == [1]
        assert [each.number for each in await store.calls("s", "r")] == [1]
        assert await everything(store, "t") == elsewhere

    async def test_forgetting_removes_the_owners_runs(self, store: Store) -> None:
        """Where others took part, too, all of the owner's runs goes, records included."""
        await store.append("s", said("1"), run_id="0", by=Participant(owner=BOB))
        await go_on(store, "s", "r", "2")
        bob = await store.begin_run("s", "q", owner=BOB, input="x")
        await store.save_checkpoint("s", "nobody's", checkpoint("1"))
        assert (await store.forget(ANN)).shared == ("s",)
        assert await store.runs("s") == [replace(bob, input=None)]
        assert await store.checkpoints("s", "r") == await store.calls("s", "r") == []
        assert await store.run_entries("s", "r") == []
        assert (await store.forget(BOB)).conversations == ("s",)
        assert await store.conversation("s") is None

    async def test_a_run_that_said_nothing_is_forgotten_too(self, store: Store) -> None:
        """A run that has only begun takes part; when no message goes, others can resume theirs."""
        await store.append("s", said("1"), run_id="0", by=Participant(owner=BOB))
        bob = await store.begin_run("s", "q", owner=BOB, input="x")
        kept = await store.save_checkpoint("s", "q", checkpoint("1"))
        await store.begin_run("s", "r", owner=ANN, input="secret")
        await store.begin_call("s", "r", call())
        assert (await store.forget(ANN)).shared == ("s",)
        assert await store.runs("s", unfinished=True) == [bob]
        assert await store.checkpoints("s", "q") == [kept]
        assert await store.calls("s", "r") == []
        assert (await known(store, "s")).revision == 1

    async def test_what_others_logged_of_an_owner_is_forgotten(self, store: Store) -> None:
        """A message of the owner's that another one's run has logged again is gone from there, too."""
        ann = said("ann")
        await store.append("s", ann, run_id="1", by=Participant(owner=ANN))
        await store.begin_run("s", "2", owner=BOB, input="what ann said")
        await store.save_checkpoint("s", "2", checkpoint("1"), messages=[*ann, *said("bob")])
        assert (await store.forget(ANN)).messages == 1
        assert texts(e.message for e in await store.run_entries("s", "2")) == ["bob"]
        assert await store.checkpoints("s", "2") == await store.runs("s", unfinished=True) == []
