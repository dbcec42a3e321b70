"""Conformance: `archive=`, what a run has said and then summarised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tenure.errors import ConflictError, InvalidValueError
from tenure.marks import COVERS
from tenure.messages import Message
from tenure.saying import assistant
from tenure.stores.base import Store
from tenure.testing.conformance_suite import (
    StoreSuite,
    everything,
    history,
    known,
    reply,
    said,
    unstorable,
)


def summary(covered: list[Message]) -> Message:
    """A summary of messages."""
    return replace(assistant("in short"), metadata={COVERS: [message.id for message in covered]})


class ArchiveConformance(StoreSuite):
    """`archive=` of `append` and `start_branch`."""

    async def test_what_a_summary_covers_is_found(self, store: Store) -> None:
        """Archived messages are in no history, and `covered` finds them, in a new conversation too."""
        for session_id in ("new", "old"):
            if session_id == "old":
                await store.append(session_id, said("before"))
            kept = said("1", "2")
            told = summary(kept)
            appended = await store.append(session_id, [told], run_id="r", archive=kept)
            assert appended.written == 1
            assert (await history(store, session_id))[-1] == "in short"
            assert "1" not in await history(store, session_id)
            assert await store.covered(session_id, told.id) == kept
            assert (await known(store, session_id)).message_count == appended.last_seq

    async def test_a_branch_is_started_behind_what_is_archived(self, store: Store) -> None:
        """The new history is what it would be without; what was archived and the old branch stay."""
        before, kept = said("1", "2", "3"), said("4", "5")
        await store.append("s", before)
        told = summary([*before[1:], *kept])
        await store.start_branch("s", [told, *said("6")], after=1, run_id="r", archive=kept)
        assert await history(store, "s") == ["1", "in short", "6"]
        assert await store.covered("s", told.id) == [*before[1:], *kept]
        assert [e.message.text for e in await store.entries("s", branch=1)] == ["1", "2", "3"]
        await store.append("s", said("7"))
        assert await history(store, "s") == ["1", "in short", "6", "7"]
        assert await history(store, "s", last=2) == ["6", "7"]

    async def test_a_failed_write_archives_nothing(self, store: Store) -> None:
        """A conflict, or a message that cannot be stored, leaves everything as it was."""
        await store.append("s", said("1"))
        before = await everything(store, "s")
        with pytest.raises(ConflictError):
            await store.append("s", said("2"), archive=said("a"), expected_revision=9)
        with pytest.raises(InvalidValueError):
            await store.append("s", said("2"), archive=[unstorable()])
        with pytest.raises(InvalidValueError):
            await store.start_branch("s", said("2"), after=0, archive=[unstorable()])
        with pytest.raises(InvalidValueError):
            await store.append("t", said("2"), archive=[unstorable()])
        assert await everything(store, "s") == before
        assert await store.conversation("t") is None

    async def test_what_the_history_has_is_not_archived(self, store: Store) -> None:
        """Messages that the history has are there once; archived replies count as usage."""
        first = said("1")
        await store.append("s", first)
        branches = len(await store.branches("s"))
        await store.append("s", said("2"), archive=first)
        assert len(await store.branches("s")) == branches
        await store.append("s", said("3"), archive=[reply("aside", tokens=7)])
        assert (await known(store, "s")).usage.requests == 1
        assert await history(store, "s") == ["1", "2", "3"]

    async def test_what_is_archived_can_be_erased(self, store: Store) -> None:
        """Redacting and deleting reach it as they reach every branch."""
        kept = said("secret")
        told = summary(kept)
        await store.append("s", [told], archive=kept)
        assert await store.redact("s", lambda m: None if m.text == "secret" else m) == 1
        assert await store.covered("s", told.id) == []
        assert await store.delete("s")
        assert await store.branches("s") == []
