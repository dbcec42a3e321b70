"""Conformance: the checkpoints of runs, and the ledger of their tool calls.

That all of it goes when a run ends, or is erased, is in `conformance_endings.py`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from tenure.errors import InvalidValueError
from tenure.stores.base import Store
from tenure.stores.run_records import (
    CallRecord,
    CheckpointRecord,
    NewCall,
    NewCheckpoint,
    RunRecord,
)
from tenure.testing.conformance_run_records import ANN
from tenure.testing.conformance_suite import (
    StoreSuite,
    call,
    checkpoint,
    everything,
    history,
    known,
    odd_texts,
    said,
    texts,
    unstorable,
)

ODD = [*texts(odd_texts()), "\ud83d\ude00", "\ud83c" + "\udf78", "x" * 100_000]
"""Texts that columns are known to break on; two have the halves of a pair side by side."""


def versions(found: list[CheckpointRecord]) -> list[int]:
    """The versions of checkpoints."""
    return [each.version for each in found]


def rolled_back(found: list[CallRecord]) -> list[int]:
    """The numbers of the calls that are marked."""
    return [each.number for each in found if each.is_rolled_back]


class CheckpointConformance(StoreSuite):
    """`save_checkpoint`, `checkpoints`, `roll_back`."""

    async def test_a_checkpoint_comes_back(self, store: Store) -> None:
        """A checkpoint is kept as it was given, with its version, its time, and the length of the log."""
        await store.append("s", said("1"))
        new = NewCheckpoint(checkpoint_id="c", node_path="a/b", scope="a", state='{"x": 1}')
        saved = await store.save_checkpoint("s", "r", new, messages=said("2", "3"))
        assert saved == CheckpointRecord(
            checkpoint_id="c",
            version=1,
            node_path="a/b",
            scope="a",
            state='{"x": 1}',
            logged=2,
            created_at=saved.created_at,
        )
        assert saved.created_at.utcoffset() is not None
        assert await store.checkpoints("s", "r") == [saved]
        assert texts(entry.message for entry in await store.run_entries("s", "r")) == ["2", "3"]
        assert await history(store, "s") == ["1"]
        assert await store.runs("s") == []
        assert await store.checkpoints("s", "none") == await store.checkpoints("none", "r") == []

    async def test_a_checkpoint_creates_the_conversation(self, store: Store) -> None:
        """A checkpoint may be the first that is known of a conversation."""
        assert (await store.save_checkpoint("s", "r", checkpoint("1"))).logged == 0
        assert (await known(store, "s")).revision == 0

    async def test_a_checkpoint_counts_the_runs_own_log(self, store: Store) -> None:
        """`logged` counts what the run has logged, once each, and neither the history nor what is gone."""
        one, two = said("1", "2")
        await store.append("s", [one])
        await store.append_to_run("s", "r", [one])
        saved = await store.save_checkpoint("s", "r", checkpoint("1"), messages=[one, two, two])
        assert saved.logged == 2
        await store.append("s", said("x", "y"))
        assert (await store.save_checkpoint("s", "r", checkpoint("2"), messages=[two])).logged == 2
        await store.redact("s", lambda m: None if m.text == "1" else m)
        saved = await store.save_checkpoint("s", "r", checkpoint("3"), messages=said("3"))
        assert saved.logged == len(await store.run_entries("s", "r")) == 2

    async def test_versions_are_unique_when_saved_at_once(self, store: Store) -> None:
        """Checkpoints that are saved at the same time get versions without gaps, each its own (C12)."""
        saved = await asyncio.gather(
            *(
                store.save_checkpoint("s", "r", checkpoint(str(n)), messages=said(str(n)))
                for n in range(32)
            )
        )
        assert sorted(each.version for each in saved) == list(range(1, 33))
        in_order = sorted(saved, key=lambda each: each.version)
        assert await store.checkpoints("s", "r") == in_order
        assert [each.logged for each in in_order] == list(range(1, 33))
        logged = texts(entry.message for entry in await store.run_entries("s", "r"))
        assert logged == [each.checkpoint_id for each in in_order]

    async def test_a_version_is_never_given_twice(self, store: Store) -> None:
        """Versions go on rising after a roll back, and after the last checkpoint was removed."""
        for n in range(1, 4):
            assert (await store.save_checkpoint("s", "r", checkpoint(str(n)))).version == n
        await store.roll_back("s", "r", version=1)
        assert versions(await store.checkpoints("s", "r")) == [1]
        assert (await store.save_checkpoint("s", "r", checkpoint("3"))).version == 4
        await store.roll_back("s", "r", version=0)
        assert await store.checkpoints("s", "r") == []
        assert (await store.save_checkpoint("s", "r", checkpoint("1"))).version == 5

    async def test_a_checkpoint_of_the_same_id_is_refused(self, store: Store) -> None:
        """A run has a checkpoint of one id once; a second one is refused, with its messages."""
        await store.begin_run("s", "r", owner=ANN, input="x")
        await store.save_checkpoint("s", "r", checkpoint("1"))
        before = await everything(store, "s")
        with pytest.raises(InvalidValueError):
            await store.save_checkpoint("s", "r", checkpoint("1"), messages=said("1"))
        assert await everything(store, "s") == before
        assert (await store.save_checkpoint("s", "other", checkpoint("1"))).version == 1
        assert (await store.save_checkpoint("s", "r", checkpoint("2"))).version == 2

    async def test_messages_and_checkpoint_are_saved_together(self, store: Store) -> None:
        """When something of it cannot be stored, neither messages nor checkpoint are there (C57)."""
        bad: list[NewCheckpoint] = [
            checkpoint("\ud800"),
            checkpoint("2", state=cast("str", None)),
            checkpoint("2", scope=cast("str", 7)),
        ]
        await store.save_checkpoint("s", "r", checkpoint("1"), messages=said("1"))
        for name in ("s", "new"):
            before = await everything(store, name)
            with pytest.raises(InvalidValueError):
                await store.save_checkpoint(
                    name, "r", checkpoint("2"), messages=[*said("2"), unstorable()]
                )
            for new in bad:
                with pytest.raises(InvalidValueError):
                    await store.save_checkpoint(name, "r", new, messages=said("2"))
            with pytest.raises(InvalidValueError):
                await store.save_checkpoint(
                    name, "r", checkpoint("2"), messages=said("2"), keep_last=0
                )
            assert await everything(store, name) == before

    async def test_the_last_checkpoints_are_kept(self, store: Store) -> None:
        """`keep_last` removes all but the last so many; the new one is always there."""
        for n in range(1, 5):
            await store.save_checkpoint("s", "r", checkpoint(str(n)))
        await store.save_checkpoint("s", "other", checkpoint("1"))
        await store.save_checkpoint("s", "r", checkpoint("5"), keep_last=3)
        assert versions(await store.checkpoints("s", "r")) == [3, 4, 5]
        await store.save_checkpoint("s", "r", checkpoint("6"), keep_last=9)
        assert versions(await store.checkpoints("s", "r")) == [3, 4, 5, 6]
        await store.save_checkpoint("s", "r", checkpoint("7"), keep_last=1)
        assert versions(await store.checkpoints("s", "r")) == [7]
        assert versions(await store.checkpoints("s", "other")) == [1]

    async def test_the_last_checkpoint_of_a_scope_is_kept(self, store: Store) -> None:
        """`keep_last` never removes the last one of a scope, however old it is."""
        for n, scope in enumerate(["a", "b", "a", "c", "b", "c", "c"], 1):
            await store.save_checkpoint("s", "r", checkpoint(str(n), scope=scope))
        await store.save_checkpoint("s", "r", checkpoint("8", scope="c"), keep_last=2)
        found = [(each.version, each.scope) for each in await store.checkpoints("s", "r")]
        assert found == [(3, "a"), (5, "b"), (7, "c"), (8, "c")]

    async def test_rolling_back_removes_later_checkpoints(self, store: Store) -> None:
        """Later checkpoints of the run are gone; its log and other runs are as they were."""
        for n in range(1, 4):
            await store.save_checkpoint("s", "r", checkpoint(str(n)), messages=said(str(n)))
            await store.save_checkpoint("s", "other", checkpoint(str(n)))
        await store.roll_back("s", "r", version=2)
        assert versions(await store.checkpoints("s", "r")) == [1, 2]
        assert versions(await store.checkpoints("s", "other")) == [1, 2, 3]
        logged = texts(entry.message for entry in await store.run_entries("s", "r"))
        assert logged == ["1", "2", "3"]

    async def test_rolling_back_to_nothing_is_refused(self, store: Store) -> None:
        """A version of which the run has no checkpoint is an error; 0 is the beginning of any run."""
        await store.save_checkpoint("s", "r", checkpoint("1"))
        await store.begin_call("s", "r", call())
        before = await everything(store, "s")
        for version in (2, -1, 2**70):
            with pytest.raises(InvalidValueError):
                await store.roll_back("s", "r", version=version)
        with pytest.raises(InvalidValueError):
            await store.roll_back("none", "r", version=1)
        assert await everything(store, "s") == before
        await store.roll_back("none", "r", version=0)
        assert await store.conversation("none") is None


class CallConformance(StoreSuite):
    """`begin_call`, `end_call`, `mark_undone`, `calls`, and what `roll_back` does to them."""

    async def test_a_call_comes_back(self, store: Store) -> None:
        """A call is kept as it was given; what came of it is not known until that is recorded."""
        new = NewCall(node_path="a/b", position=3, origin="m", place=2, tool="t", args='{"x": 1}')
        begun = await store.begin_call("s", "r", new)
        assert begun == CallRecord(
            number=1,
            call=new,
            after=0,
            outcome=None,
            is_rolled_back=False,
            is_undone=False,
            started_at=begun.started_at,
            finished_at=None,
        )
        assert await store.calls("s", "r") == [begun]
        await self.let_time_pass(store, 0.01)
        await store.end_call("s", "r", 1, outcome="done")
        (ended,) = await store.calls("s", "r")
        assert ended.finished_at is not None
        assert ended.finished_at >= begun.started_at
        assert ended == replace(begun, outcome="done", finished_at=ended.finished_at)
        assert (await known(store, "s")).revision == 0
        assert await store.calls("s", "none") == await store.calls("none", "r") == []

    async def test_calls_are_numbered(self, store: Store) -> None:
        """Calls that begin at the same time get numbers without gaps, each its own (C12)."""
        begun = await asyncio.gather(*(store.begin_call("s", "r", call(str(n))) for n in range(32)))
        assert sorted(each.number for each in begun) == list(range(1, 33))
        assert await store.calls("s", "r") == sorted(begun, key=lambda each: each.number)

    async def test_an_unknown_call_is_nothing(self, store: Store) -> None:
        """Ending or undoing a call that is not there changes nothing."""
        await store.begin_run("s", "r", owner=ANN, input="x")
        await store.begin_call("s", "r", call())
        before = await everything(store, "s")
        for name, run_id, number in (
            ("s", "r", 2),
            ("s", "q", 1),
            ("none", "r", 1),
            ("s", "r", 2**70),
        ):
            await store.end_call(name, run_id, number, outcome="x")
            await store.mark_undone(name, run_id, number)
        assert await everything(store, "s") == before
        assert await store.conversation("none") is None

    async def test_a_call_that_cannot_be_recorded_is_refused(self, store: Store) -> None:
        """What is no text, and numbers below 0, are refused, and nothing is written."""
        bad = [replace(call(), tool=cast("str", None)), replace(call(), position=-1)]
        for new in (*bad, replace(call(), place=2**70)):
            with pytest.raises(InvalidValueError):
                await store.begin_call("s", "r", new)
        assert await store.conversation("s") is None

    async def test_a_call_knows_the_checkpoint_before_it(self, store: Store) -> None:
        """`after` is the highest version that the run has when the call begins."""
        found = [(await store.begin_call("s", "r", call())).after]
        for n in range(1, 4):
            await store.save_checkpoint("s", "r", checkpoint(str(n)), keep_last=1)
            found.append((await store.begin_call("s", "r", call())).after)
        await store.save_checkpoint("s", "r", checkpoint("4"))
        await store.roll_back("s", "r", version=3)
        found.append((await store.begin_call("s", "r", call())).after)
        assert found == [0, 1, 2, 3, 3]

    async def test_rolling_back_marks_later_calls(self, store: Store) -> None:
        """Calls that began after the checkpoint are marked, and stay marked; none is removed."""
        await store.begin_call("s", "r", call("0"))
        for n in range(1, 4):
            await store.save_checkpoint("s", "r", checkpoint(str(n)))
            await store.begin_call("s", "r", call(str(n)))
        await store.begin_call("s", "other", call())
        await store.end_call("s", "r", 4, outcome="done")
        await store.roll_back("s", "r", version=2)
        found = await store.calls("s", "r")
        assert rolled_back(found) == [3, 4]
        assert [each.outcome for each in found] == [None, None, None, "done"]
        await store.begin_call("s", "r", call("again"))
        await store.save_checkpoint("s", "r", checkpoint("4"))
        await store.begin_call("s", "r", call("more"))
        assert rolled_back(await store.calls("s", "r")) == [3, 4]
        await store.roll_back("s", "r", version=1)
        assert rolled_back(await store.calls("s", "r")) == [2, 3, 4, 5, 6]
        await store.roll_back("s", "r", version=0)
        assert rolled_back(await store.calls("s", "r")) == [1, 2, 3, 4, 5, 6]
        assert rolled_back(await store.calls("s", "other")) == []

    async def test_a_call_that_was_rolled_back_is_undone(self, store: Store) -> None:
        """A call that was rolled back may be marked as undone; any other one stays as it is."""
        for n in range(3):
            await store.begin_call("s", "r", call(str(n)))
        await store.mark_undone("s", "r", 1)
        assert not (await store.calls("s", "r"))[0].is_undone
        await store.roll_back("s", "r", version=0)
        await store.mark_undone("s", "r", 2)
        await store.mark_undone("s", "r", 2)
        assert [each.is_undone for each in await store.calls("s", "r")] == [False, True, False]

    async def test_odd_texts_of_runs_come_back(self, store: Store) -> None:
        """NUL, half surrogate pairs and the like come back as they were given (C24, C25, C26)."""
        begun: list[RunRecord] = []
        saved: list[CheckpointRecord] = []
        for n, odd in enumerate(ODD):
            begun.append(await store.begin_run("s", str(n), owner=ANN, input=odd))
            new = NewCheckpoint(checkpoint_id=str(n), node_path=odd, scope=odd, state=odd)
            saved.append(await store.save_checkpoint("s", "r", new))
            named = NewCall(node_path=odd, position=0, origin=odd, place=n, tool=odd, args=odd)
            await store.begin_call("s", "r", named)
            await store.end_call("s", "r", n + 1, outcome=odd)
        assert [run.input for run in begun] == [each.state for each in saved] == ODD
        assert await store.runs("s") == begun
        assert await store.checkpoints("s", "r") == saved
        for odd, found in zip(ODD, await store.calls("s", "r"), strict=True):
            made = found.call
            texts_of = (made.node_path, made.origin, made.tool, made.args, found.outcome)
            assert set(texts_of) == {odd}
