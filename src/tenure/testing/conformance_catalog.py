"""Conformance: the names of conversations, the application's notes on them, and their list."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import cast

import pytest

from tenure.errors import (
    ConversationBusyError,
    ConversationExistsError,
    InvalidValueError,
    UnknownConversationError,
)
from tenure.stores.base import Conversation, Store
from tenure.testing.conformance_suite import (
    StoreSuite,
    history,
    known,
    names,
    reply,
    said,
)


class RenameConformance(StoreSuite):
    """`rename` and `set_metadata`."""

    async def test_renaming_keeps_everything_else(self, store: Store) -> None:
        """History, branches, runs, revision, times and metadata stay under the new name."""
        await store.append("s", said("1", "2"))
        await self.let_time_pass(store, 0.01)
        await store.start_branch("s", said("a"), after=1)
        await store.append_to_run("s", "r", said("pending"))
        await store.set_metadata("s", {"x": 1})
        before = await known(store, "s")
        old = [await store.entries("s", branch=n) for n in (1, 2)]
        await self.let_time_pass(store, 0.01)
        await store.rename("s", "t")
        assert await known(store, "t") == replace(before, session_id="t")
        assert [await store.entries("t", branch=n) for n in (1, 2)] == old
        assert [e.message.text for e in await store.run_entries("t", "r")] == ["pending"]
        await store.commit_run("t", "r")
        assert await history(store, "t") == ["1", "a", "pending"]

    async def test_the_old_name_is_free(self, store: Store) -> None:
        """Under the old name there is nothing, and a new conversation may start."""
        messages = said("1")
        await store.append("s", messages)
        await store.rename("s", "t")
        assert await store.conversation("s") is None
        assert await store.read("s") == []
        assert (await store.append("s", messages, expected_revision=0)).written == 1
        await store.append("t", said("2"))
        assert await history(store, "s") == ["1"]
        assert await history(store, "t") == ["1", "2"]

    async def test_renaming_to_a_taken_name_is_refused(self, store: Store) -> None:
        """A name that is taken is not taken over."""
        await store.append("s", said("1"))
        await store.append("t", said("2"))
        with pytest.raises(ConversationExistsError):
            await store.rename("s", "t")
        assert await history(store, "s") == ["1"]
        assert await history(store, "t") == ["2"]

    async def test_renaming_needs_a_conversation(self, store: Store) -> None:
        """Renaming a conversation that does not exist is refused."""
        with pytest.raises(UnknownConversationError):
            await store.rename("none", "t")
        assert await store.conversations() == []

    async def test_a_conversation_in_use_is_not_renamed(self, store: Store) -> None:
        """While somebody holds the lease, a rename is refused."""
        await store.append("s", said("1"))
        await store.request_lease("s", holder="a", wait=False)
        with pytest.raises(ConversationBusyError):
            await store.rename("s", "t")
        assert names(await store.conversations()) == ["s"]
        await store.release_lease("s", holder="a")
        await store.rename("s", "t")
        assert names(await store.conversations()) == ["t"]

    async def test_a_dead_holder_holds_up_no_rename(self, store: Store) -> None:
        """A lease that was not renewed for `lease_ttl_s` is free, so that nobody holds it."""
        await store.append("s", said("1"))
        await store.request_lease("s", holder="a", wait=False)
        await self.let_leases_expire(store)
        await store.rename("s", "t")
        assert await history(store, "t") == ["1"]

    async def test_metadata_are_kept(self, store: Store) -> None:
        """Metadata are replaced as a whole, exactly; history, revision and times stay."""
        await store.append("s", said("1"))
        before = await known(store, "s")
        await self.let_time_pass(store, 0.01)
        metadata: dict[str, object] = {"a": [1, 1.5, None, {"ü\0\ud83d": "日本\0"}], "b": True}
        await store.set_metadata("s", metadata)
        assert await known(store, "s") == replace(before, metadata=metadata)
        assert (await store.conversations())[0].metadata == metadata
        await store.set_metadata("s", {"c": ""})
        assert await known(store, "s") == replace(before, metadata={"c": ""})
        await store.append("s", said("2"))
        assert (await known(store, "s")).metadata == {"c": ""}

    async def test_metadata_are_copied(self, store: Store) -> None:
        """What is read shares nothing with what was set."""
        await store.append("s", said("1"))
        metadata: dict[str, object] = {"tags": ["one"]}
        await store.set_metadata("s", metadata)
        cast("list[str]", metadata["tags"]).append("two")
        cast("list[str]", (await known(store, "s")).metadata["tags"]).append("three")
        assert (await known(store, "s")).metadata == {"tags": ["one"]}

    async def test_metadata_must_be_json(self, store: Store) -> None:
        """Metadata that JSON would not give back as they are are refused, and those before stay (C57)."""
        await store.append("s", said("1"))
        await store.set_metadata("s", {"x": 1})
        circle: dict[str, object] = {}
        circle["self"] = circle
        changed = ((1, 2), [{"y": ()}], {1: "a"}, Counter("a"), HTTPStatus.OK, ["\ud83d\ude00"])
        for value in (object(), b"x", {1, 2}, math.nan, math.inf, circle, *changed):
            with pytest.raises(InvalidValueError):
                await store.set_metadata("s", {"x": value})
        for odd in ({b"x": 1}, {1: 1}, {None: 1}, {("a", "b"): 1}):
            with pytest.raises(InvalidValueError):
                await store.set_metadata("s", cast("Mapping[str, object]", odd))
        assert (await known(store, "s")).metadata == {"x": 1}

    async def test_metadata_need_a_conversation(self, store: Store) -> None:
        """Metadata of a conversation that does not exist are refused."""
        with pytest.raises(UnknownConversationError):
            await store.set_metadata("none", {})
        assert await store.conversations() == []


class ListConformance(StoreSuite):
    """`conversations`."""

    async def test_the_last_updated_is_first(self, store: Store) -> None:
        """Whatever changes a history moves it to the front; reading and renaming do not."""
        for name in "abcdef":
            await store.append(name, said("1", "2"))
            await self.let_time_pass(store, 0.01)
        assert names(await store.conversations()) == list("fedcba")
        changes = {
            "a": store.append("a", said("3")),
            "b": store.start_branch("b", after=1),
            "c": store.redact("c", lambda _: None),
        }
        for change in changes.values():
            await change
            await self.let_time_pass(store, 0.01)
        assert names(await store.conversations()) == list("cbafed")
        await store.read("d")
        await store.set_metadata("d", {"x": 1})
        await store.rename("e", "z")
        await store.append_to_run("f", "r", said("pending"))
        assert names(await store.conversations()) == list("cbafzd")
        await store.commit_run("f", "r")
        assert names(await store.conversations()) == list("fcbazd")

    async def test_every_conversation_is_listed_as_it_is(self, store: Store) -> None:
        """The list has what `conversation` gives."""
        for name in "ab":
            await store.append(name, [reply("1", tokens=3)])
            await store.set_metadata(name, {"name": name})
        await store.append_to_run("c", "r", said("pending"))
        for found in await store.conversations():
            assert found == await known(store, found.session_id)
        assert sorted(names(await store.conversations())) == ["a", "b", "c"]

    async def test_the_list_is_paged(self, store: Store) -> None:
        """`limit` and `after` give every conversation once, equal times by session id."""
        wanted = ["a", "B", "é", "日本", "\uffff", "🍸", "b", "aa", "a ", "A"]
        for number, name in enumerate(wanted):
            await store.append(name, said("x"))
            if number == 4:
                await self.let_time_pass(store, 0.01)
        whole = await store.conversations()
        assert sorted(names(whole)) == sorted(wanted)
        assert whole == sorted(
            sorted(whole, key=lambda c: c.session_id), key=lambda c: c.updated_at, reverse=True
        )
        for limit in range(1, 12):
            pages: list[Conversation] = []
            after: Conversation | None = None
            while page := await store.conversations(limit=limit, after=after):
                assert len(page) == min(limit, len(wanted) - len(pages))
                pages += page
                after = page[-1]
            assert pages == whole
        assert await store.conversations(limit=0) == []
        assert await store.conversations(after=whole[3]) == whole[4:]

    async def test_a_change_between_pages_loses_nothing(self, store: Store) -> None:
        """What changes moves to the front; the pages behind have all others, once."""
        for name in "abcdef":
            await store.append(name, said("x"))
            await self.let_time_pass(store, 0.01)
        first = await store.conversations(limit=2)
        assert names(first) == ["f", "e"]
        await store.append("b", said("y"))  # of a later page
        await store.append("e", said("y"))  # the cursor itself
        await store.delete("d")
        assert names(await store.conversations(after=first[-1])) == ["c", "a"]
