"""Conformance: what runs write to branches of their own before they end."""

from __future__ import annotations

from typing import cast

import pytest

from tenure.errors import InvalidValueError
from tenure.messages import Media, Usage
from tenure.saying import user
from tenure.stores.base import Appended, Entry, Store
from tenure.testing.conformance_suite import (
    StoreSuite,
    every_kind,
    everything,
    history,
    known,
    log,
    names,
    reply,
    said,
    texts,
    unstorable,
)


class RunConformance(StoreSuite):
    """`append_to_run`, `run_entries`, `commit_run`, `discard_run`."""

    async def test_a_run_is_invisible_until_it_is_committed(self, store: Store) -> None:
        """What a run logs is in no history: reading, counting and listing do not show it."""
        await store.append("s", said("1"))
        before = await known(store, "s")
        entries = await store.entries("s")
        await self.let_time_pass(store, 0.01)
        await store.append_to_run("s", "r", [*said("2"), reply("3", tokens=5)])
        assert await known(store, "s") == before
        assert await store.entries("s") == entries
        assert await history(store, "s") == await history(store, "s", last=3) == ["1"]

    async def test_a_run_logs_on_a_branch_of_its_own(self, store: Store) -> None:
        """The branch is listed with its run; it is not the history."""
        await store.append("s", said("1"))
        await store.append_to_run("s", "r", said("2"))
        history_branch, run_branch = await store.branches("s")
        assert (history_branch.branch, history_branch.run_id) == (1, None)
        assert run_branch.run_id == "r"
        assert (await known(store, "s")).branch == 1

    async def test_a_run_logs_in_order(self, store: Store) -> None:
        """`run_entries` gives what the run has logged, in order, with its run; nothing else."""
        await store.append("s", said("1"))
        messages = every_kind()
        assert await store.append_to_run("s", "r", messages[:2]) == 2
        assert await store.append_to_run("s", "r", messages[2:]) == len(messages)
        found = await store.run_entries("s", "r")
        assert [entry.message for entry in found] == messages
        assert {(entry.run_id, entry.is_failed) for entry in found} == {("r", False)}
        assert [e.seq for e in found] == sorted({e.seq for e in found})
        assert await store.run_entries("s", "other") == []

    async def test_a_run_may_come_before_the_conversation(self, store: Store) -> None:
        """The first thing a run logs creates the conversation, with an empty history."""
        await store.append_to_run("s", "r", said("1"))
        found = await known(store, "s")
        assert (found.revision, found.last_seq, found.message_count) == (0, 0, 0)
        assert await store.read("s") == []
        assert names(await store.conversations()) == ["s"]
        assert (await store.append("s", said("0"), expected_revision=0)).revision == 1
        assert (await store.commit_run("s", "r")).revision == 2
        assert log(await store.entries("s")) == [(1, "0"), (2, "1")]

    async def test_a_commit_moves_a_run_to_the_history(self, store: Store) -> None:
        """A commit appends all that the run has logged, and its branch is gone."""
        messages = said("2", "3")
        await store.append("s", said("1"))
        await store.append_to_run("s", "r", messages[:1])
        await store.append_to_run("s", "r", messages[1:])
        appended = await store.commit_run("s", "r")
        assert appended == Appended(session_id="s", revision=2, last_seq=3, written=2)
        assert (await store.entries("s"))[1:] == [
            Entry(seq=2, message=messages[0], run_id="r", is_failed=False),
            Entry(seq=3, message=messages[1], run_id="r", is_failed=False),
        ]
        found = await known(store, "s")
        assert (found.revision, found.last_seq, found.message_count) == (2, 3, 3)
        assert await store.run_entries("s", "r") == []
        assert [branch.run_id for branch in await store.branches("s")] == [None]

    async def test_a_commit_goes_to_the_end(self, store: Store) -> None:
        """A run is committed behind what others have written meanwhile, on the branch of now."""
        await store.append("s", said("1", "2"))
        await store.append_to_run("s", "r", said("run"))
        await store.append("s", said("3"))
        await store.start_branch("s", said("a"), after=1)
        await store.commit_run("s", "r")
        assert log(await store.entries("s")) == [(1, "1"), (2, "a"), (3, "run")]
        assert await history(store, "s", last=2) == ["a", "run"]
        assert log(await store.entries("s", branch=1)) == [(1, "1"), (2, "2"), (3, "3")]

    async def test_a_failed_run_is_marked(self, store: Store) -> None:
        """A run may be committed as failed; its messages tell."""
        await store.append("s", said("1"))
        await store.append_to_run("s", "r", said("2", "3"))
        await store.commit_run("s", "r", is_failed=True)
        found = await store.entries("s")
        assert [(e.run_id, e.is_failed) for e in found] == [
            (None, False), ("r", True), ("r", True),
        ]  # fmt: skip

    async def test_committing_again_does_nothing(self, store: Store) -> None:
        """Committing a run that is not there does nothing, and says where things are."""
        nothing = Appended(session_id="s", revision=0, last_seq=0, written=0)
        assert await store.commit_run("s", "r") == nothing
        assert await store.conversation("s") is None
        await store.append_to_run("s", "r", said("1"))
        await store.commit_run("s", "r")
        before = await everything(store, "s")
        again = await store.commit_run("s", "r")
        assert again == Appended(session_id="s", revision=1, last_seq=1, written=0)
        assert await everything(store, "s") == before

    async def test_logging_is_idempotent(self, store: Store) -> None:
        """A message that the run has logged already is skipped, also within one call (C14)."""
        one, two = said("1", "2")
        assert await store.append_to_run("s", "r", [one]) == 1
        assert await store.append_to_run("s", "r", [one, two, two]) == 2
        assert await store.append_to_run("s", "r", []) == 2
        assert texts(e.message for e in await store.run_entries("s", "r")) == ["1", "2"]

    async def test_a_commit_skips_what_the_history_has(self, store: Store) -> None:
        """A message that got into the history meanwhile is not there twice (C14)."""
        one, two, three = said("1", "2", "3")
        await store.append("s", [one])
        await store.append_to_run("s", "r", [two, three])
        await store.append("s", [two])
        appended = await store.commit_run("s", "r")
        assert (appended.written, appended.revision, appended.last_seq) == (1, 3, 3)
        assert log(await store.entries("s")) == [(1, "1"), (2, "2"), (3, "3")]

    async def test_a_run_repeated_after_its_commit_writes_nothing(self, store: Store) -> None:
        """Logging and committing again what the history has changes nothing (C14)."""
        messages = [*said("1"), reply("2", tokens=5)]
        await store.append_to_run("s", "r", messages)
        await store.commit_run("s", "r")
        await store.append_to_run("s", "r", messages)
        appended = await store.commit_run("s", "r")
        assert (appended.revision, appended.last_seq, appended.written) == (1, 2, 0)
        assert (await known(store, "s")).revision == 1
        assert (await known(store, "s")).usage.requests == 1
        assert await history(store, "s") == ["1", "2"]
        assert await store.run_entries("s", "r") == []

    async def test_a_run_without_messages_commits_nothing(self, store: Store) -> None:
        """A run that has logged nothing raises no revision."""
        await store.append("s", said("1"))
        assert await store.append_to_run("s", "r", []) == 0
        appended = await store.commit_run("s", "r")
        assert appended == Appended(session_id="s", revision=1, last_seq=1, written=0)
        assert (await known(store, "s")).revision == 1

    async def test_an_append_may_overtake_a_run(self, store: Store) -> None:
        """What only a run has logged is not in the history, so an append writes it."""
        messages = said("1")
        await store.append_to_run("s", "r", messages)
        assert (await store.append("s", messages)).written == 1
        assert (await store.commit_run("s", "r")).written == 0
        assert await history(store, "s") == ["1"]

    async def test_discarding_removes_a_run(self, store: Store) -> None:
        """A discarded run is gone, and the history as it was; a second call finds none."""
        await store.append("s", said("1"))
        before = await everything(store, "s")
        await store.append_to_run("s", "r", said("2"))
        assert await store.discard_run("s", "r") is True
        assert await everything(store, "s") == before
        assert await store.discard_run("s", "r") is False
        assert await store.discard_run("none", "r") is False
        assert (await store.commit_run("s", "r")).written == 0
        assert await store.conversation("none") is None

    async def test_a_discarded_run_may_start_again(self, store: Store) -> None:
        """The same run may log anew what was discarded."""
        messages = said("1", "2")
        await store.append_to_run("s", "r", messages)
        await store.discard_run("s", "r")
        assert await store.append_to_run("s", "r", messages[1:]) == 1
        await store.commit_run("s", "r")
        assert await history(store, "s") == ["2"]

    async def test_runs_do_not_share(self, store: Store) -> None:
        """Several runs log at once, each on its own branch, and commit in any order."""
        await store.append("s", said("0"))
        for n in range(3):
            for run_id in ("a", "b", "c"):
                assert await store.append_to_run("s", run_id, said(f"{run_id}{n}")) == n + 1
        await store.commit_run("s", "c")
        await store.discard_run("s", "b")
        assert texts(e.message for e in await store.run_entries("s", "a")) == ["a0", "a1", "a2"]
        await store.append_to_run("s", "a", said("a3"))
        await store.commit_run("s", "a")
        whole = ["0", "c0", "c1", "c2", "a0", "a1", "a2", "a3"]
        assert log(await store.entries("s")) == list(enumerate(whole, 1))
        assert (await known(store, "s")).revision == 3

    async def test_runs_of_two_conversations_do_not_share(self, store: Store) -> None:
        """The same run id in two conversations is two runs."""
        await store.append_to_run("a", "r", said("in a"))
        await store.append_to_run("b", "r", said("in b"))
        await store.commit_run("a", "r")
        assert await history(store, "a") == ["in a"]
        assert await store.discard_run("b", "r") is True
        assert await store.read("b") == []

    async def test_a_refused_message_leaves_the_run(self, store: Store) -> None:
        """When one message cannot be logged none of the call is (C57)."""
        with pytest.raises(InvalidValueError):
            await store.append_to_run("new", "r", [*said("1"), unstorable()])
        assert await store.conversation("new") is None
        await store.append_to_run("s", "r", said("1"))
        before = await everything(store, "s")
        with pytest.raises(InvalidValueError):
            await store.append_to_run("s", "r", [*said("2"), unstorable()])
        assert await everything(store, "s") == before

    async def test_a_committed_run_counts_its_usage(self, store: Store) -> None:
        """The replies of a run are counted with its commit."""
        await store.append_to_run("s", "r", [reply("1", tokens=7)])
        await store.append_to_run("s", "r", [reply("2", tokens=10)])
        await store.commit_run("s", "r")
        total = Usage(input_tokens=17, output_tokens=2, requests=2)
        assert (await known(store, "s")).usage == total

    async def test_a_commit_counts_only_what_it_writes(self, store: Store) -> None:
        """A reply that got into the history by another way is not counted again (C14)."""
        early = reply("1", tokens=7)
        await store.append_to_run("s", "r", [early, reply("2", tokens=10)])
        await store.append("s", [early])
        await store.commit_run("s", "r")
        total = Usage(input_tokens=17, output_tokens=2, requests=2)
        assert (await known(store, "s")).usage == total

    async def test_a_redacted_run_is_committed_without_gaps(self, store: Store) -> None:
        """What was removed from a run's branch takes no number in the history."""
        await store.append("s", said("1"))
        await store.append_to_run("s", "r", said("x", "2", "x", "3", "x"))
        await store.redact("s", lambda message: None if message.text == "x" else message)
        assert await store.append_to_run("s", "r", said("4")) == 3
        appended = await store.commit_run("s", "r")
        assert (appended.written, appended.last_seq) == (3, 4)
        assert log(await store.entries("s")) == list(enumerate("1234", 1))

    async def test_big_media_of_a_run_go_along(self, store: Store) -> None:
        """Big media that a run has logged are in the history after its commit (C27)."""
        picture = Media(media_type="image/png", data=b"\xff\0" * 50_000)
        one, two = user("1", picture), user("2", picture)
        await store.append_to_run("s", "r1", [one])
        await store.append_to_run("s", "r2", [two])
        assert [entry.message for entry in await store.run_entries("s", "r1")] == [one]
        await store.commit_run("s", "r1")
        await store.discard_run("s", "r2")
        assert await store.read("s") == [one]

    async def test_what_a_run_logged_is_copied(self, store: Store) -> None:
        """What is read of a run shares nothing with what was logged."""
        message = every_kind()[0]
        await store.append_to_run("s", "r", [message])
        (entry,) = await store.run_entries("s", "r")
        cast("list[object]", entry.message.metadata["tags"]).clear()
        cast("list[object]", message.metadata["tags"]).append("more")
        (entry,) = await store.run_entries("s", "r")
        assert entry.message.metadata["tags"] == ["a", 1, 1.5, None, True]
