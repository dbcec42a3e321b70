"""The contract of `stores/base.py`, on every driver."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tenure import (
    InMemoryStore,
    InvalidValueError,
    Media,
    Opaque,
    Reasoning,
    Store,
    StoreClosedError,
    ToolCall,
    assistant,
    open_store,
    tool_result,
    user,
)
from tenure.stores.sqlite import SQLiteStore
from tenure.testing import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A new store of each driver, with a clock that the test turns."""
    clock = ManualClock()
    made = (
        InMemoryStore(clock=clock)
        if request.param == "memory"
        else SQLiteStore(tmp_path / "chat.db", clock=clock)
    )
    yield made
    await made.close()


def clock_of(store: Store) -> ManualClock:
    clock = store._clock  # type: ignore[attr-defined]
    assert isinstance(clock, ManualClock)
    return clock


async def texts(store: Store, session_id: str, last: int | None = None) -> list[str]:
    return [message.text for message in await store.read(session_id, last=last)]


async def test_a_missing_conversation_is_empty(store: Store) -> None:
    """Reading a conversation that does not exist gives an empty list, and None for what is known."""
    assert await store.read("none") == []
    assert await store.read("none", last=3) == []
    assert await store.conversation("none") is None
    assert await store.conversations() == []


async def test_messages_come_back_as_they_were(store: Store) -> None:
    """Every kind of message and part comes back equal, with its id and time."""
    call = ToolCall(id="c1", name="look", args='{"x": 1}', provider={"signature": "s"})
    messages = [
        user("hi \0 \ud83d", Media(media_type="image/png", data=b"\xff\x00")),
        assistant("text", Reasoning(text="why", provider={"signature": "r"}), call),
        tool_result(call, ["a", Media(media_type="a/b", url="http://x/y")], is_error=True),
        replace(assistant(Opaque(kind="new", data={"n": [1]})), extra={"later": True}),
    ]
    await store.append("s", messages)
    found = await store.read("s")
    assert found == messages
    assert [m.id for m in found] == [m.id for m in messages]
    assert [m.created_at for m in found] == [m.created_at for m in messages]


async def test_order_is_that_of_appending(store: Store) -> None:
    """Messages come back in the order in which they were appended, whatever their times say (C30)."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    late, early = replace(user("late"), created_at=now), replace(user("early"), created_at=now)
    early = replace(early, created_at=now - timedelta(days=9))
    await store.append("s", [late, early])
    await store.append("s", [replace(user("third"), created_at=now)])
    assert await texts(store, "s") == ["late", "early", "third"]


async def test_last_reads_the_end(store: Store) -> None:
    """`last` gives the end of a conversation, at most so many, in order."""
    await store.append("s", [user(str(n)) for n in range(5)])
    assert await texts(store, "s", 2) == ["3", "4"]
    assert await texts(store, "s", 0) == []
    assert await texts(store, "s", 9) == ["0", "1", "2", "3", "4"]


async def test_append_is_idempotent_by_message_id(store: Store) -> None:
    """A message whose id is there already is skipped, alone, in a batch and within one call (C14)."""
    first, second = user("first"), user("second")
    assert await store.append("s", [first]) == 1
    assert await store.append("s", [first]) == 1
    assert await store.append("s", [first, second, second]) == 2
    assert await store.append("s", [second, first]) == 2
    assert await texts(store, "s") == ["first", "second"]


async def test_appending_nothing_creates_nothing(store: Store) -> None:
    """An empty append creates no conversation and changes no revision (C41)."""
    assert await store.append("s", []) == 0
    assert await store.conversation("s") is None
    await store.append("s", [user("x")])
    assert await store.append("s", []) == 1


async def test_a_refused_message_leaves_nothing(store: Store) -> None:
    """When one message of an append cannot be stored, none of them is, and the rest stays (C57)."""
    await store.append("s", [user("before")])
    bad = replace(user("bad"), metadata={"x": object()})
    with pytest.raises(InvalidValueError, match="type object is not JSON"):
        await store.append("s", [user("good"), bad])
    with pytest.raises(InvalidValueError, match=r"id '\\ud800'"):
        await store.append("s", [user("good"), replace(user("bad"), id="\ud800")])
    assert await texts(store, "s") == ["before"]


async def test_conversations_do_not_share(store: Store) -> None:
    """Different session ids never share a message; ids are taken verbatim."""
    names = ["a", "A", "a ", "a/b", "a%", "日本", "x'; DROP TABLE entries; --", "a" * 500]
    for name in names:
        await store.append(name, [user(f"in {name}")])
    for name in names:
        assert await texts(store, name) == [f"in {name}"]


async def test_the_same_message_may_be_in_two_conversations(store: Store) -> None:
    """An id is unique in its conversation only."""
    message = user("both")
    await store.append("a", [message])
    await store.append("b", [message])
    assert await texts(store, "a") == await texts(store, "b") == ["both"]


@pytest.mark.parametrize(
    ("session_id", "says"),
    [("", "empty"), ("a\0b", "NUL"), ("a\ud800", "surrogate"), (7, "not 7 of type int")],
)
async def test_a_session_id_that_cannot_be_kept_is_refused(
    store: Store, session_id: str, says: str
) -> None:
    """A session id is a text, not empty, without NUL, that UTF-8 can encode; the error says which."""
    with pytest.raises(InvalidValueError, match=says):
        await store.append(session_id, [user("x")])
    assert await store.conversations() == []


async def test_what_is_known_of_a_conversation(store: Store) -> None:
    """Times are those of the first and last append; the revision counts the commits, not messages."""
    clock = clock_of(store)
    start = clock.now()
    await store.append("s", [user("1"), user("2")])
    clock.advance(5)
    await store.append("s", [user("3")])
    found = await store.conversation("s")
    assert found is not None
    assert (found.session_id, found.revision, found.message_count) == ("s", 2, 3)
    assert found.created_at == start
    assert found.updated_at == start + timedelta(seconds=5)
    assert found.updated_at.tzinfo is UTC


async def test_conversations_are_listed_the_last_used_first(store: Store) -> None:
    """The list is by last update, newest first; equal times by name; `limit` cuts it."""
    clock = clock_of(store)
    for name in ("b", "a", "c"):
        await store.append(name, [user("x")])
    clock.advance(1)
    await store.append("b", [user("y")])
    assert [c.session_id for c in await store.conversations()] == ["b", "a", "c"]
    assert [c.session_id for c in await store.conversations(limit=2)] == ["b", "a"]


async def test_what_is_read_is_a_copy(store: Store) -> None:
    """Changing what was appended, or what was read, changes nothing that is stored."""
    metadata: dict[str, object] = {"tags": ["one"]}
    await store.append("s", [replace(user("x"), metadata=metadata)])
    metadata["tags"] = ["changed"]
    first = (await store.read("s"))[0]
    assert first.metadata == {"tags": ["one"]}
    first.metadata["tags"].append("two")  # type: ignore[union-attr,index]
    assert (await store.read("s"))[0].metadata == {"tags": ["one"]}


async def test_concurrent_appends_lose_nothing(store: Store) -> None:
    """Appends from many tasks are all there once, each batch whole and in its order (C10, C08)."""
    batches = [[user(f"{task}.{n}") for n in range(3)] for task in range(50)]
    revisions = await asyncio.gather(*(store.append("s", batch) for batch in batches))
    assert sorted(revisions) == list(range(1, 51))
    found = await texts(store, "s")
    assert sorted(found) == sorted(m.text for batch in batches for m in batch)
    for start in range(0, 150, 3):
        task = found[start].split(".")[0]
        assert found[start : start + 3] == [f"{task}.{n}" for n in range(3)]


async def test_one_failing_append_fails_alone(store: Store) -> None:
    """Among appends that are committed together, one that fails undoes only itself."""
    good = [store.append("s", [user(str(n))]) for n in range(5)]
    bad = store.append("s", [replace(user("bad"), metadata={"x": float("nan")})])
    results = await asyncio.gather(*good[:2], bad, *good[2:], return_exceptions=True)
    assert [type(r) for r in results] == [int, int, InvalidValueError, int, int, int]
    assert await texts(store, "s") == ["0", "1", "2", "3", "4"]


async def test_a_cancelled_append_is_done_or_not(store: Store) -> None:
    """After a cancelled append the next read tells whether it was done; later appends work (C59)."""
    done = 0
    for n in range(20):
        task = asyncio.create_task(store.append("s", [user(f"{n}a"), user(f"{n}b")]))
        await asyncio.sleep(0 if n % 2 else 0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
            raise asyncio.CancelledError  # it was faster than the cancellation
        found = await texts(store, "s")
        assert found.count(f"{n}a") == found.count(f"{n}b")
        done += found.count(f"{n}a")
    await store.append("s", [user("after")])
    assert (await texts(store, "s"))[-1] == "after"
    assert len(await texts(store, "s")) == 2 * done + 1


async def test_a_closed_store_says_so(store: Store) -> None:
    """After `close` every operation raises, and a second close is a no-op (C81)."""
    await store.append("s", [user("x")])
    await store.close()
    await store.close()
    assert store.is_closed
    for operation in (
        store.append("s", [user("y")]),
        store.read("s"),
        store.conversation("s"),
        store.conversations(),
    ):
        with pytest.raises(StoreClosedError):
            await operation


async def test_a_big_message_is_kept_whole(store: Store) -> None:
    """A message of 10 MB goes in and out unchanged (C27)."""
    text = "ä\0" * 5_000_000
    await store.append("s", [user(text)])
    assert (await texts(store, "s")) == [text]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_store_is_used_from_two_loops_and_from_threads(tmp_path: Path, kind: str) -> None:
    """One store serves two `asyncio.run` calls in turn, and threads with loops of their own at once."""
    store = InMemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "chat.db")

    def say(text: str) -> None:
        asyncio.run(store.append("s", [user(text)]))

    say("one")
    say("two")
    threads = [threading.Thread(target=say, args=(f"t{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = asyncio.run(texts(store, "s"))
    assert found[:2] == ["one", "two"]
    assert sorted(found[2:]) == [f"t{n}" for n in range(8)]
    asyncio.run(store.close())


async def test_equal_urls_share_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal URLs give one store, relative and absolute ones too; a closed one is not given again."""
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///chat.db")
    assert open_store("sqlite:///chat.db") is store
    assert open_store(f"sqlite:///{tmp_path}/chat.db") is store
    assert open_store("sqlite:///other.db") is not store
    assert open_store("sqlite:///chat.db?durable=true") is not store
    await store.append("s", [user("x")])
    await store.close()
    again = open_store("sqlite:///chat.db")
    assert again is not store
    assert await texts(again, "s") == ["x"]
    await again.close()


@pytest.mark.parametrize(
    "url",
    ["", "chat.db", "sqlite://", "sqlite:///", "sqlite://chat.db", "mysql://x/y",
     "sqlite:///a.db?fast=1", "sqlite:///a.db?durable=maybe", "memory://?x=1"],
)  # fmt: skip
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    """A URL of another form, or with an unknown option, is refused with the right form."""
    with pytest.raises(InvalidValueError, match=r"sqlite:///|durable=true"):
        open_store(url)
