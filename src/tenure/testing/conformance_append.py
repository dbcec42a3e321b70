"""Conformance: what appending promises, and reading what was appended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from tenure.errors import InvalidValueError
from tenure.messages import Media, Message, Usage
from tenure.saying import tool_result, user
from tenure.stores.base import Appended, Entry, OnConflict, Store
from tenure.testing.conformance_suite import (
    ODD_NAMES,
    StoreSuite,
    every_kind,
    everything,
    history,
    known,
    log,
    names,
    odd_texts,
    reply,
    said,
    texts,
    unstorable,
)


class AppendConformance(StoreSuite):
    """Messages, order, revisions, idempotency."""

    async def test_a_missing_conversation_is_empty(self, store: Store) -> None:
        """Reading a conversation that does not exist gives an empty list or None."""
        assert await store.read("none") == []
        assert await store.read("none", last=3) == []
        assert await store.entries("none") == []
        assert await store.entries("none", branch=1) == []
        assert await store.branches("none") == []
        assert await store.run_entries("none", "r") == []
        assert await store.conversation("none") is None
        assert await store.conversations() == []

    async def test_reading_creates_nothing(self, store: Store) -> None:
        """Reading a conversation that does not exist does not bring it into being."""
        await store.read("none")
        await store.entries("none")
        await store.run_entries("none", "r")
        assert await store.conversations() == []
        assert (await store.append("none", said("x"), expected_revision=0)).revision == 1

    async def test_every_kind_of_message_comes_back(self, store: Store) -> None:
        """Each role and part comes back equal: bytes, errors, order of parts (C54, C58, C62)."""
        messages = every_kind()
        await store.append("s", messages)
        assert await store.read("s") == messages
        assert [entry.message for entry in await store.entries("s")] == messages

    async def test_ids_and_times_come_back(self, store: Store) -> None:
        """A message keeps its id, and its time as the same moment in aware UTC (C31)."""
        messages = [*every_kind(), *odd_texts()]
        await store.append("s", messages)
        found = await store.read("s")
        assert [m.id for m in found] == [m.id for m in messages]
        assert [m.created_at for m in found] == [m.created_at for m in messages]
        assert {m.created_at.tzinfo for m in found} == {UTC}

    async def test_odd_texts_come_back(self, store: Store) -> None:
        """NUL, half surrogate pairs and the like are stored losslessly (C24, C25, C26)."""
        messages = odd_texts()
        for message in messages:
            await store.append("s", [message])
        assert texts(await store.read("s")) == texts(messages)

    async def test_odd_ids_and_runs_come_back(self, store: Store) -> None:
        """The ids of messages and runs are taken verbatim."""
        messages = [replace(user(name), id=name) for name in ODD_NAMES]
        await store.append("s", messages, run_id="r'%\n")
        assert [message.id for message in await store.read("s")] == list(ODD_NAMES)
        assert {entry.run_id for entry in await store.entries("s")} == {"r'%\n"}

    async def test_session_ids_are_taken_verbatim(self, store: Store) -> None:
        """Different session ids never share a message."""
        for name in ODD_NAMES:
            await store.append(name, said(f"in {name}"))
        for name in ODD_NAMES:
            assert await history(store, name) == [f"in {name}"]
            assert (await known(store, name)).session_id == name
        assert sorted(names(await store.conversations())) == sorted(ODD_NAMES)

    async def test_a_session_id_that_cannot_be_kept_is_refused(self, store: Store) -> None:
        """A session id is a text, not empty, without NUL, that UTF-8 can encode."""
        await store.append("s", said("x"))
        for name in ("", "a\0b", "a\ud800", cast("str", 7)):
            with pytest.raises(InvalidValueError):
                await store.append(name, said("x"))
            with pytest.raises(InvalidValueError):
                await store.append_to_run(name, "r", said("x"))
            with pytest.raises(InvalidValueError):
                await store.fork("s", name)
            with pytest.raises(InvalidValueError):
                await store.rename("s", name)
        assert names(await store.conversations()) == ["s"]

    async def test_other_names_that_cannot_be_kept_are_refused(self, store: Store) -> None:
        """What cannot be stored is refused as such, also in the names of runs and holders (C24)."""
        await store.append("s", said("1"))
        before = await everything(store, "s")
        writes: list[Callable[[], Awaitable[object]]] = [
            lambda: store.append("s", said("x"), run_id="\ud800"),
            lambda: store.start_branch("s", said("x"), after=0, run_id="\ud800"),
            lambda: store.append_to_run("s", "\ud800", said("x")),
            lambda: store.request_lease("s", holder="\ud800", wait=True),
            lambda: store.for_tenant("\ud800").append("s", said("x")),
        ]
        for write in writes:
            with pytest.raises(InvalidValueError):
                await write()
        assert await everything(store, "s") == before

    async def test_order_is_that_of_appending(self, store: Store) -> None:
        """Messages come back as they were appended, whatever their times and ids say (C30)."""
        now = datetime(2026, 1, 1, tzinfo=UTC)
        late = replace(user("late"), created_at=now, id="z")
        early = replace(user("early"), created_at=now - timedelta(days=9), id="m")
        third = replace(user("third"), created_at=now, id="a")
        await store.append("s", [late, early])
        await store.append("s", [third])
        assert await history(store, "s") == ["late", "early", "third"]
        assert await history(store, "s", last=2) == ["early", "third"]

    async def test_appended_says_what_came_of_it(self, store: Store) -> None:
        """`Appended` has where it went, the revision, the last entry, and how many were written."""
        first = await store.append("s", said("1", "2"))
        assert first == Appended(session_id="s", revision=1, last_seq=2, written=2)
        again = user("3")
        second = await store.append("s", [again, again])
        assert second == Appended(session_id="s", revision=2, last_seq=3, written=1)

    async def test_a_commit_raises_the_revision_by_one(self, store: Store) -> None:
        """Each commit counts one, however many messages it has and how fast it follows (C32)."""
        revisions = [
            (await store.append("s", said(*"xy"[: 1 + n % 2]))).revision for n in range(20)
        ]
        assert revisions == list(range(1, 21))
        assert (await known(store, "s")).revision == 20

    async def test_entries_are_numbered_without_gaps(self, store: Store) -> None:
        """Entries are numbered from 1 in order; a skipped message takes no number."""
        first, second = said("a", "b")
        await store.append("s", [first])
        await store.append("s", [first, second])
        await store.append("s", said("c"))
        assert log(await store.entries("s")) == [(1, "a"), (2, "b"), (3, "c")]

    async def test_entries_have_their_run(self, store: Store) -> None:
        """An entry tells the run that it came from and whether that failed."""
        one, two, three = said("1", "2", "3")
        await store.append("s", [one])
        await store.append("s", [two], run_id="r1")
        await store.append("s", [three], run_id="r2", is_failed=True)
        assert await store.entries("s") == [
            Entry(seq=1, message=one, run_id=None, is_failed=False),
            Entry(seq=2, message=two, run_id="r1", is_failed=False),
            Entry(seq=3, message=three, run_id="r2", is_failed=True),
        ]

    async def test_times_are_those_of_the_commits(self, store: Store) -> None:
        """A conversation has the times of its first append and of its last change, in UTC (C31)."""
        await store.append("s", said("1"))
        first = await known(store, "s")
        assert first.created_at == first.updated_at  # one write, one time
        assert {first.created_at.tzinfo, first.updated_at.tzinfo} == {UTC}
        await self.let_time_pass(store, 0.25)
        await store.append("s", said("2"))
        second = await known(store, "s")
        assert second.created_at == first.created_at
        assert second.updated_at - first.updated_at >= timedelta(seconds=0.25)
        await store.fork("s", "fork")
        forked = await known(store, "fork")
        assert forked.created_at == forked.updated_at

    async def test_what_is_known_of_a_conversation(self, store: Store) -> None:
        """A new conversation is on branch 1, has no metadata, and counts its messages."""
        await store.append("s", said("1", "2"))
        await store.append("s", said("3"))
        found = await known(store, "s")
        assert (found.session_id, found.revision, found.branch) == ("s", 2, 1)
        assert (found.last_seq, found.message_count) == (3, 3)
        assert (found.usage, found.metadata) == (Usage(), {})

    async def test_last_reads_the_end(self, store: Store) -> None:
        """`last` gives the last so many, in order, at most all."""
        await store.append("s", said(*"01234"))
        for last in range(8):
            assert await history(store, "s", last) == list("01234")[max(0, 5 - last) :]

    async def test_entries_are_paged(self, store: Store) -> None:
        """`after` and `limit` give a history page by page; the last of one page gives the next."""
        await store.append("s", said(*"01234"))
        whole = await store.entries("s")
        for limit in range(1, 7):
            pages: list[Entry] = []
            while page := await store.entries(
                "s", after=pages[-1].seq if pages else 0, limit=limit
            ):
                assert len(page) == min(limit, 5 - len(pages))
                pages += page
            assert pages == whole
        assert await store.entries("s", limit=0) == []
        assert await store.entries("s", after=5) == []
        assert await store.entries("s", after=99) == []

    # --- second calls ---

    async def test_an_append_is_idempotent(self, store: Store) -> None:
        """A message whose id the history has already is skipped, alone or in a batch (C14)."""
        first, second = said("first", "second")
        await store.append("s", [first])
        before = await everything(store, "s")
        assert (await store.append("s", [first])).written == 0
        assert await everything(store, "s") == before
        assert (await store.append("s", [first, second])).written == 1
        assert await history(store, "s") == ["first", "second"]

    async def test_a_message_twice_in_one_call_is_written_once(self, store: Store) -> None:
        """An id that is in one call twice is written once, in its first place (C14)."""
        first, second = said("first", "second")
        appended = await store.append("s", [first, second, first, second])
        assert (appended.written, appended.last_seq) == (2, 2)
        assert await history(store, "s") == ["first", "second"]

    async def test_equal_messages_are_not_the_same(self, store: Store) -> None:
        """Only the id makes two messages one: equal texts are both kept."""
        await store.append("s", said("yes", "yes"))
        await store.append("s", said("yes"))
        assert await history(store, "s") == ["yes"] * 3

    async def test_ids_count_in_their_conversation(self, store: Store) -> None:
        """The same message may be in two conversations."""
        messages = said("both")
        await store.append("a", messages)
        assert (await store.append("b", messages)).written == 1
        assert await history(store, "a") == await history(store, "b") == ["both"]

    async def test_appending_nothing_does_nothing(self, store: Store) -> None:
        """When nothing is to be written there is no commit and no conversation (C41)."""
        nothing = await store.append("s", [])
        assert nothing == Appended(session_id="s", revision=0, last_seq=0, written=0)
        assert await store.append("s", [], expected_revision=7) == nothing
        assert await store.conversation("s") is None
        await store.append("s", said("x"))
        before = await everything(store, "s")
        nothing = await store.append("s", [], expected_revision=7)
        assert nothing == Appended(session_id="s", revision=1, last_seq=1, written=0)
        assert await everything(store, "s") == before

    async def test_a_repeated_append_is_no_conflict(self, store: Store) -> None:
        """When everything is stored already, a stale `expected_revision` is no conflict (C14)."""
        mine = said("mine")
        await store.append("s", said("first"))
        await store.append("s", mine, expected_revision=1)
        await store.append("s", said("theirs"))
        before = await everything(store, "s")
        for on_conflict in cast("tuple[OnConflict, ...]", ("raise", "rebase", "fork")):
            again = await store.append("s", mine, expected_revision=1, on_conflict=on_conflict)
            assert again == Appended(session_id="s", revision=3, last_seq=3, written=0)
        assert await everything(store, "s") == before
        assert names(await store.conversations()) == ["s"]

    # --- atomicity, copies ---

    async def test_a_batch_with_one_bad_message_leaves_nothing(self, store: Store) -> None:
        """When one message cannot be stored none of the call is, and later calls work (C57)."""
        bad = [
            unstorable(),
            replace(user("bad"), metadata={"x": float("nan")}),
            replace(user("bad"), id=""),
            replace(user("bad"), id="\ud800"),
        ]
        for message in bad:
            with pytest.raises(InvalidValueError):
                await store.append("new", [*said("good"), message])
        assert await store.conversation("new") is None
        await store.append("s", said("before"))
        before = await everything(store, "s")
        for message in bad:
            with pytest.raises(InvalidValueError):
                await store.append("s", [*said("good"), message, *said("good")])
        assert await everything(store, "s") == before
        await store.append("s", said("after"))
        assert await history(store, "s") == ["before", "after"]

    async def test_what_is_read_is_a_copy(self, store: Store) -> None:
        """What is read shares nothing that can be changed with what was appended or read before."""
        metadata: dict[str, object] = {"tags": ["one"]}
        messages: list[Message] = [replace(user("x"), metadata=metadata)]
        await store.append("s", messages)
        metadata["tags"] = ["changed"]
        messages.clear()
        read = await store.read("s")
        tags(read[0]).append("two")
        read.clear()
        entry = (await store.entries("s"))[0]
        tags(entry.message).append("three")
        assert [message.metadata for message in await store.read("s")] == [{"tags": ["one"]}]

    # --- big ones ---

    async def test_a_big_message_is_kept_whole(self, store: Store) -> None:
        """A message of 10 MB goes in and out unchanged (C27)."""
        text = "ä\0" * 5_000_000
        await store.append("s", said(text))
        found = await history(store, "s")
        assert [len(found), len(found[0])] == [1, len(text)]
        assert found[0] == text  # not before the lengths: the difference would be hard to read

    async def test_big_media_come_back_exactly(self, store: Store) -> None:
        """Bytes of any size come back exactly, from user messages and tool results (C27, C54)."""
        pattern = bytes(range(256)) * 4096
        for size in (0, 1, 65_535, 65_536, 65_537, 1_000_001):
            picture = Media(media_type="image/png", data=pattern[:size], filename="p.png")
            messages = [user("look", picture, picture), tool_result("c1", [picture], name="see")]
            await store.append(f"s{size}", messages)
            found = await store.read(f"s{size}")
            assert [[type(part) for part in message.parts] for message in found] == [
                [type(part) for part in message.parts] for message in messages
            ]
            assert found == messages
            assert (await store.entries(f"s{size}"))[1].message == messages[1]

    async def test_big_media_outlive_another_user_of_them(self, store: Store) -> None:
        """Media that several messages have stay until the last of them is gone."""
        picture = Media(media_type="image/png", data=b"\xff\0" * 50_000)
        one, two, three = user("1", picture), user("2", picture), user("3", picture)
        await store.append("a", [one, two])
        await store.append("b", [three])
        await store.redact("a", lambda message: None if message.text == "1" else message)
        assert await store.read("a") == [two]
        await store.delete("a")
        assert await store.read("b") == [three]
        await store.append("a", [one])
        assert await store.read("a") == [one]

    # --- usage ---

    async def test_usage_adds_up_the_replies(self, store: Store) -> None:
        """A conversation's usage is that of all replies ever appended, on whatever branch, once."""
        one = reply("1", tokens=10)
        await store.append("s", [*said("q"), one])
        await store.append("s", [one, reply("2", tokens=200)])
        await store.start_branch("s", [reply("3", tokens=3000)], after=1)
        await store.append_to_run("s", "r", [reply("4", tokens=40_000)])
        await store.commit_run("s", "r")
        total = Usage(input_tokens=43_210, output_tokens=4, requests=4)
        assert (await known(store, "s")).usage == total
        await store.redact("s", lambda _: None)
        assert (await known(store, "s")).usage == total


def tags(message: Message) -> list[str]:
    """The list in a message's metadata."""
    return cast("list[str]", message.metadata["tags"])
