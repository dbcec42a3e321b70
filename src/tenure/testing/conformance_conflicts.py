"""Conformance: what happens when somebody else has appended first."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tenure.errors import ConflictError
from tenure.stores.base import Appended, OnConflict, Store
from tenure.testing.conformance_suite import (
    StoreSuite,
    everything,
    history,
    known,
    names,
    said,
)


class ConflictConformance(StoreSuite):
    """`expected_revision` and `on_conflict`."""

    async def test_the_right_revision_appends(self, store: Store) -> None:
        """An append at the revision that the caller has read succeeds; 0 is for "there is none"."""
        assert (await store.append("s", said("1"), expected_revision=0)).revision == 1
        for on_conflict in cast("tuple[OnConflict, ...]", ("raise", "rebase", "fork")):
            revision = (await known(store, "s")).revision
            appended = await store.append(
                "s", said("x"), expected_revision=revision, on_conflict=on_conflict
            )
            assert (appended.session_id, appended.revision) == ("s", revision + 1)
        assert names(await store.conversations()) == ["s"]

    async def test_another_revision_is_a_conflict(self, store: Store) -> None:
        """A stale or future revision raises `ConflictError` with both, and writes nothing (C09)."""
        await store.append("s", said("1"))
        await store.append("s", said("2"))
        before = await everything(store, "s")
        for expected in (0, 1, 3, 99):
            with pytest.raises(ConflictError) as caught:
                await store.append("s", said("x"), expected_revision=expected)
            assert (caught.value.expected_revision, caught.value.revision) == (expected, 2)
        assert await everything(store, "s") == before

    async def test_a_missing_conversation_is_at_revision_0(self, store: Store) -> None:
        """Expecting a revision of a conversation that does not exist is a conflict with 0."""
        with pytest.raises(ConflictError) as caught:
            await store.append("s", said("x"), expected_revision=1)
        assert (caught.value.expected_revision, caught.value.revision) == (1, 0)
        assert await store.conversation("s") is None

    async def test_a_partly_stored_batch_conflicts(self, store: Store) -> None:
        """As long as one message is not stored yet, a stale revision is a conflict for all."""
        one, two = said("1", "2")
        await store.append("s", [one])
        await store.append("s", said("theirs"))
        with pytest.raises(ConflictError):
            await store.append("s", [one, two], expected_revision=1)
        assert await history(store, "s") == ["1", "theirs"]

    async def test_rebase_appends_behind_the_others(self, store: Store) -> None:
        """`rebase` appends behind what the others wrote, in one commit."""
        await store.append("s", said("1"))
        await store.append("s", said("theirs"))
        appended = await store.append(
            "s", said("mine", "too"), expected_revision=1, on_conflict="rebase"
        )
        assert appended == Appended(session_id="s", revision=3, last_seq=4, written=2)
        assert await history(store, "s") == ["1", "theirs", "mine", "too"]

    async def test_fork_leaves_the_conversation_alone(self, store: Store) -> None:
        """`fork` appends to a new conversation with the history as it was at that revision."""
        await store.append("s", said("1", "2"))
        await store.append("s", said("theirs"))
        before = await everything(store, "s")
        made = await store.append("s", said("mine"), expected_revision=1, on_conflict="fork")
        assert made.session_id != "s"
        assert made.written == 1
        assert await everything(store, "s") == before
        assert await history(store, made.session_id) == ["1", "2", "mine"]
        assert (await known(store, made.session_id)).revision == made.revision
        assert (await known(store, made.session_id)).last_seq == made.last_seq
        assert sorted(names(await store.conversations())) == sorted(["s", made.session_id])

    async def test_a_fork_of_a_conflict_can_be_used(self, store: Store) -> None:
        """The fork's name and revision, as returned, are good for the next append."""
        await store.append("s", said("1"))
        await store.append("s", said("theirs"))
        made = await store.append("s", said("2"), expected_revision=1, on_conflict="fork")
        more = await store.append(made.session_id, said("3"), expected_revision=made.revision)
        assert (more.session_id, more.revision) == (made.session_id, made.revision + 1)
        assert await history(store, made.session_id) == ["1", "2", "3"]
        assert await history(store, "s") == ["1", "theirs"]

    async def test_each_conflict_makes_a_fork_of_its_own(self, store: Store) -> None:
        """Two callers whose appends conflict get different forks."""
        await store.append("s", said("1"))
        await store.append("s", said("theirs"))
        forks = [
            await store.append("s", said(f"fork {n}"), expected_revision=1, on_conflict="fork")
            for n in range(2)
        ]
        assert len({fork.session_id for fork in forks} | {"s"}) == 3
        for n, fork in enumerate(forks):
            assert await history(store, fork.session_id) == ["1", f"fork {n}"]

    async def test_a_fork_at_revision_0_shares_nothing(self, store: Store) -> None:
        """Who expected that there is none gets a new conversation of the messages alone."""
        await store.append("s", said("theirs"))
        made = await store.append("s", said("mine"), expected_revision=0, on_conflict="fork")
        assert await history(store, made.session_id) == ["mine"]
        assert await history(store, "s") == ["theirs"]

    async def test_a_revision_that_never_was_cannot_be_forked(self, store: Store) -> None:
        """`fork` raises when the conversation never was at that revision."""
        await store.append("s", said("1"))
        for name, expected in (("s", 2), ("s", 99), ("s", -1), ("none", 1)):
            with pytest.raises(ConflictError):
                await store.append(name, said("x"), expected_revision=expected, on_conflict="fork")
        assert names(await store.conversations()) == ["s"]
        assert await history(store, "s") == ["1"]

    async def test_a_fork_is_of_the_branch_of_then(self, store: Store) -> None:
        """The fork shares the history of its revision, though other branches followed."""
        await store.append("s", said("1", "2"))
        await store.start_branch("s", said("a", "b"), after=1)
        await store.start_branch("s", said("z"), after=2)
        expected = {1: ["1", "2"], 2: ["1", "a", "b"]}
        for revision, kept in expected.items():
            made = await store.append(
                "s", said("mine"), expected_revision=revision, on_conflict="fork"
            )
            assert await history(store, made.session_id) == [*kept, "mine"]
        assert await history(store, "s") == ["1", "a", "z"]

    async def test_a_fork_brings_nothing_back(self, store: Store) -> None:
        """What was redacted since that revision is gone from the fork, too."""
        await store.append("s", said("secret", "1"))
        await store.append("s", said("theirs"))
        await store.redact("s", lambda message: None if message.text == "secret" else message)
        made = await store.append("s", said("mine"), expected_revision=1, on_conflict="fork")
        assert await history(store, made.session_id) == ["1", "mine"]

    async def test_one_of_two_racers_wins(self, store: Store) -> None:
        """Of appends that expect the same revision exactly one is written (C08, C09)."""
        await store.append("s", said("1"))
        results: list[Any] = await asyncio.gather(
            *(store.append("s", said(f"racer {n}"), expected_revision=1) for n in range(20)),
            return_exceptions=True,
        )
        assert sorted(type(result).__name__ for result in results) == [
            "Appended", *["ConflictError"] * 19,
        ]  # fmt: skip
        assert len(await store.read("s")) == 2
