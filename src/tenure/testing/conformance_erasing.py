"""Conformance: redacting messages and deleting conversations."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import replace

import pytest

from tenure.errors import (
    InvalidValueError,
    UnknownConversationError,
)
from tenure.messages import Message, Usage
from tenure.saying import assistant, user
from tenure.stores.base import Store
from tenure.testing.conformance_suite import (
    StoreSuite,
    everything,
    history,
    known,
    log,
    names,
    reply,
    said,
    texts,
)


class RedactConformance(StoreSuite):
    """`redact`."""

    async def test_redacting_changes_messages(self, store: Store) -> None:
        """The function returns the message to keep in place of one, which keeps its place and id."""
        messages = said("1", "secret", "3")
        await store.append("s", messages, run_id="r", is_failed=True)
        await self.let_time_pass(store, 0.25)
        assert await store.redact("s", hide_secrets) == 1
        found = await store.entries("s")
        assert log(found) == [(1, "1"), (2, "***"), (3, "3")]
        assert [entry.message.id for entry in found] == [message.id for message in messages]
        assert [(entry.run_id, entry.is_failed) for entry in found] == [("r", True)] * 3
        after = await known(store, "s")
        assert (after.revision, after.last_seq, after.message_count) == (2, 3, 3)
        assert after.updated_at > after.created_at

    async def test_redacting_removes_messages(self, store: Store) -> None:
        """None removes a message; the others keep their numbers, and numbers are not given again."""
        await store.append("s", said("1", "2", "3", "4"))
        assert await store.redact("s", lambda m: None if m.text in "24" else m) == 2
        assert log(await store.entries("s")) == [(1, "1"), (3, "3")]
        after = await known(store, "s")
        assert (after.revision, after.last_seq, after.message_count) == (2, 4, 2)
        assert await history(store, "s", last=2) == ["1", "3"]
        assert log(await store.entries("s", after=1, limit=1)) == [(3, "3")]
        assert (await store.append("s", said("5"))).last_seq == 5
        assert log(await store.entries("s")) == [(1, "1"), (3, "3"), (5, "5")]

    async def test_redacting_all_leaves_an_empty_conversation(self, store: Store) -> None:
        """A conversation of which everything was removed is still there, and goes on."""
        await store.append("s", said("1", "2"))
        assert await store.redact("s", lambda _: None) == 2
        assert await store.read("s") == []
        assert (await known(store, "s")).message_count == 0
        appended = await store.append("s", said("3"), expected_revision=2)
        assert (appended.revision, appended.last_seq) == (3, 3)

    async def test_redacting_nothing_changes_nothing(self, store: Store) -> None:
        """When every message is kept as it is, the revision does not rise."""
        await store.append("s", said("1", "2"))
        before = await everything(store, "s")
        await self.let_time_pass(store, 0.01)
        assert await store.redact("s", lambda message: message) == 0
        assert await store.redact("s", replace) == 0
        assert await everything(store, "s") == before

    async def test_a_changed_message_keeps_its_id(self, store: Store) -> None:
        """A message that the function made anew, of another role too, has the id of the old one."""
        messages = said("1")
        await store.append("s", messages)
        assert await store.redact("s", lambda _: assistant("new")) == 1
        found = await store.read("s")
        assert found == [assistant("new")]
        assert found[0].id == messages[0].id
        assert (await store.append("s", messages)).written == 0

    async def test_redacting_reaches_every_branch(self, store: Store) -> None:
        """Old branches and those of runs are redacted, too."""
        await store.append("s", said("1", "secret", "3"))
        await store.start_branch("s", said("secret"), after=1)
        await store.append_to_run("s", "r", said("secret", "5"))
        assert await store.redact("s", hide_secrets) == 3
        assert await history(store, "s") == ["1", "***"]
        assert log(await store.entries("s", branch=1)) == [(1, "1"), (2, "***"), (3, "3")]
        assert [e.message.text for e in await store.run_entries("s", "r")] == ["***", "5"]
        await store.commit_run("s", "r")
        assert await history(store, "s") == ["1", "***", "***", "5"]

    async def test_removing_reaches_every_branch(self, store: Store) -> None:
        """What is removed is gone from old branches and those of runs, too."""
        await store.append("s", said("1", "secret", "3"))
        await store.start_branch("s", said("secret", "b"), after=2)
        await store.append_to_run("s", "r", said("secret", "5"))
        assert await store.redact("s", lambda m: None if m.text == "secret" else m) == 3
        assert log(await store.entries("s")) == [(1, "1"), (4, "b")]
        assert log(await store.entries("s", branch=1)) == [(1, "1"), (3, "3")]
        assert [e.message.text for e in await store.run_entries("s", "r")] == ["5"]
        assert (await store.append("s", said("c"))).last_seq == 5

    async def test_each_entry_is_redacted_once(self, store: Store) -> None:
        """The function sees an entry once, however many branches share it; a copy is one more."""
        one, two, three = said("1", "2", "3")
        await store.append("s", [one, two, three])
        await store.start_branch("s", after=1)
        await store.start_branch("s", [two], after=1)  # another entry, of the same id and number
        await store.append_to_run("s", "r", said("4"))
        seen: list[str] = []

        def redaction(message: Message) -> Message | None:
            seen.append(message.text)
            return None if message.text == "2" else message

        assert await store.redact("s", redaction) == 2
        assert sorted(seen) == ["1", "2", "2", "3", "4"]

    async def test_a_redaction_that_raises_changes_nothing(self, store: Store) -> None:
        """When the function raises, nothing is changed, and the store goes on."""
        await store.append("s", said("1", "2"))
        before = await everything(store, "s")

        def redaction(message: Message) -> Message | None:
            if message.text == "2":
                raise ZeroDivisionError
            return None

        with pytest.raises(ZeroDivisionError):
            await store.redact("s", redaction)
        assert await everything(store, "s") == before
        await store.append("s", said("3"))
        assert await history(store, "s") == ["1", "2", "3"]

    async def test_a_redacted_message_must_be_storable(self, store: Store) -> None:
        """When the function returns what cannot be stored, nothing is changed (C57)."""
        await store.append("s", said("1", "2"))
        before = await everything(store, "s")
        with pytest.raises(InvalidValueError):
            await store.redact(
                "s",
                lambda m: None if m.text == "1" else replace(m, metadata={"x": object()}),
            )
        assert await everything(store, "s") == before

    async def test_redacting_needs_a_conversation(self, store: Store) -> None:
        """Redacting a conversation that does not exist is refused."""
        with pytest.raises(UnknownConversationError):
            await store.redact("none", lambda message: message)
        assert await store.conversations() == []

    async def test_redacting_stays_in_its_conversation(self, store: Store) -> None:
        """Other conversations keep the same message, forks made earlier included."""
        messages = said("secret")
        await store.append("s", messages)
        await store.append("other", messages)
        await store.fork("s", "f")
        await store.redact("s", hide_secrets)
        assert await history(store, "other") == await history(store, "f") == ["secret"]
        assert await store.redact("f", hide_secrets) == 1
        assert await history(store, "f") == ["***"]

    async def test_a_fork_of_a_redacted_conversation(self, store: Store) -> None:
        """A fork made later has what was left."""
        await store.append("s", said("1", "secret", "3"))
        await store.redact("s", lambda m: None if m.text == "secret" else m)
        await store.fork("s", "f")
        await store.fork("s", "g", after=2)
        assert log(await store.entries("f")) == [(1, "1"), (3, "3")]
        assert log(await store.entries("g")) == [(1, "1")]

    async def test_a_slow_redaction_blocks_nobody(self, store: Store) -> None:
        """The function runs in the store's thread: the event loop goes on, who reads included."""
        await store.append("s", said("1"))
        began, enough = threading.Event(), threading.Event()
        went_on: list[bool] = []

        def redaction(message: Message) -> Message | None:
            began.set()
            went_on.append(enough.wait(10))
            return None

        redacting = asyncio.create_task(store.redact("s", redaction))
        await asyncio.to_thread(began.wait, 10)
        reading = asyncio.create_task(store.read("s"))
        for _ in range(10):
            await asyncio.sleep(0.001)
        enough.set()
        assert await redacting == 1
        assert texts(await reading) in ([], ["1"])
        assert went_on == [True], "the event loop stood still while a redaction was going on"

    async def test_a_cancelled_redaction_is_done_or_not(self, store: Store) -> None:
        """After a cancelled redaction the next read tells whether it was done, for good (C59)."""
        began = threading.Event()

        def redaction(_: Message) -> Message | None:
            began.set()
            time.sleep(0.02)
            return None

        for n in range(6):
            await store.append("s", said(f"secret {n}"))
            before = await history(store, "s")
            began.clear()
            task = asyncio.create_task(store.redact("s", redaction))
            if n % 2:  # while the function runs; else before it does
                await asyncio.to_thread(began.wait, 10)
            else:
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            found = await history(store, "s")
            assert found in ([], before)
            await asyncio.sleep(0.05)
            assert await history(store, "s") == found


class DeleteConformance(StoreSuite):
    """`delete`."""

    async def test_deleting_removes_everything(self, store: Store) -> None:
        """Nothing is left of a deleted conversation: branches, runs, metadata (C75)."""
        await store.append("s", [*said("1", "2"), reply("3", tokens=5)])
        await store.start_branch("s", said("a"), after=1)
        await store.append_to_run("s", "r", said("pending"))
        await store.set_metadata("s", {"x": 1})
        await store.append("other", said("o"))
        assert await store.delete("s") is True
        assert await store.read("s") == await store.read("s", last=3) == []
        assert await store.entries("s") == await store.entries("s", branch=1) == []
        assert await store.branches("s") == await store.run_entries("s", "r") == []
        assert await store.conversation("s") is None
        assert names(await store.conversations()) == ["other"]
        assert await history(store, "other") == ["o"]

    async def test_deleting_again_finds_nothing(self, store: Store) -> None:
        """Deleting is idempotent by absence: it tells whether there was one."""
        assert await store.delete("s") is False
        await store.append("s", said("1"))
        assert await store.delete("s") is True
        assert await store.delete("s") is False

    async def test_a_deleted_conversation_can_be_made_anew(self, store: Store) -> None:
        """The name is free: a new conversation starts empty, at revision 1, without the old."""
        messages: list[Message] = [*said("1"), reply("2", tokens=5)]
        await store.append("s", messages)
        await store.start_branch("s", said("a"), after=1)
        await store.append_to_run("s", "r", said("pending"))
        await store.set_metadata("s", {"x": 1})
        old = await known(store, "s")
        await store.delete("s")
        await self.let_time_pass(store, 0.01)
        appended = await store.append("s", messages[:1], expected_revision=0)
        assert (appended.revision, appended.last_seq, appended.written) == (1, 1, 1)
        assert log(await store.entries("s")) == [(1, "1")]
        assert [branch.branch for branch in await store.branches("s")] == [1]
        assert await store.run_entries("s", "r") == []
        found = await known(store, "s")
        assert (found.usage, found.metadata, found.branch) == (Usage(), {}, 1)
        assert old.updated_at < found.created_at <= found.updated_at
        with pytest.raises(InvalidValueError):
            await store.start_branch("s", after=2)

    async def test_a_run_of_a_deleted_conversation_is_gone(self, store: Store) -> None:
        """Committing or discarding it does nothing, and brings nothing back."""
        await store.append("s", said("1"))
        await store.append_to_run("s", "r", said("pending"))
        await store.delete("s")
        assert (await store.commit_run("s", "r")).revision == 0
        assert await store.discard_run("s", "r") is False
        assert await store.conversations() == []


def hide_secrets(message: Message) -> Message:
    """Put stars in place of a secret."""
    return replace(message, parts=user("***").parts) if message.text == "secret" else message
