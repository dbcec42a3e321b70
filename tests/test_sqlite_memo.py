"""The messages that the SQLite driver keeps in RAM: who is given them, and when they are gone."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tenure import Message, Text, ToolCall, Usage, assistant, tool_result, user
from tenure.errors import StoreError
from tenure.stores import sqlite_file, sqlite_memo
from tenure.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.anyio

SAID = [user("q"), assistant("a", ToolCall(id="c", name="t")), tool_result("c", "r", name="t")]


async def kept(path: Path, *messages: Message) -> SQLiteStore:
    """A store that has these messages in its file, and has read them."""
    store = SQLiteStore(path / "chat.db")
    await store.append("s", messages or SAID)
    await store.read("s")
    return store


async def test_messages_are_decoded_once(tmp_path: Path) -> None:
    """A message that has been read is the same object in the next read, for every reader."""
    store = await kept(tmp_path)
    once, again = await store.read("s"), await store.read("s")
    entries = await store.entries("s")
    assert once == SAID
    assert once[1] is not SAID[1]  # it was decoded
    for message, same, entry in zip(once, again, entries, strict=True):
        assert message is same is entry.message
    await store.close()


async def test_what_was_appended_is_not_decoded_at_all(tmp_path: Path) -> None:
    """A message of texts alone is read back as the very object that was appended."""
    store, said = SQLiteStore(tmp_path / "chat.db"), [user("q"), assistant("a", "b")]
    await store.append("s", said)
    for message, same in zip(said, await store.read("s"), strict=True):
        assert message is same
    await store.close()


class Word(str):
    pass


@pytest.mark.parametrize("text", ["\ud83d\ude00", Word("q")])
async def test_what_reads_otherwise_is_decoded(tmp_path: Path, text: str) -> None:
    """A message that is not read back exactly as it is in RAM is read from its row, as elsewhere."""
    store, other = SQLiteStore(tmp_path / "chat.db"), SQLiteStore(tmp_path / "chat.db")
    await store.append("s", [user(text)])
    [here], [there] = await store.read("s"), await other.read("s")
    assert (here.text, type(here.text)) == (there.text, str)
    await store.close()
    await other.close()


@pytest.mark.parametrize(
    "message",
    [
        replace(user("q"), metadata={"k": []}),
        replace(user("q"), extra={"later": []}),
        user(Text(text="q", provider={"k": []})),
        user(Text(text="q", extra={"k": []})),
        replace(assistant("a"), provider={"k": []}),
        replace(assistant("a"), usage=Usage(details={"cached": 1})),
        tool_result("c", [Text(text="r", provider={"k": []})], name="t"),
    ],
)
async def test_what_can_be_changed_is_not_shared(tmp_path: Path, message: Message) -> None:
    """A message with a mapping in it is another object in each read, and so is the mapping."""
    store = await kept(tmp_path, message)
    [once], [again] = await store.read("s"), await store.read("s")
    assert once == again == message
    assert once is not again
    assert len(store._memo) == 0
    await store.close()


async def test_what_another_store_has_changed_is_not_given(tmp_path: Path) -> None:
    """A kept message is given only while its row is as it was, whoever changed the file."""
    store, other = await kept(tmp_path), SQLiteStore(tmp_path / "chat.db")
    await other.redact("s", lambda message: replace(message, parts=()))
    assert [message.parts for message in await store.read("s")] == [(), (), ()]
    await other.delete("s")
    assert await store.read("s") == []
    await store.close()
    await other.close()


@pytest.mark.parametrize("act", ["redact", "delete", "discard_run", "close"])
async def test_nothing_erased_stays_in_memory(tmp_path: Path, act: str) -> None:
    """After a redaction, a deletion, the discarding of a run and closing, no message is kept."""
    store = await kept(tmp_path)
    await store.append_to_run("s", "run", [user("of the run")])
    await store.run_entries("s", "run")
    assert len(store._memo) == 4
    match act:
        case "redact":
            await store.redact("s", lambda message: replace(message, parts=()))
        case "delete":
            await store.delete("s")
        case "discard_run":
            await store.discard_run("s", "run")
        case _:
            await store.close()
    assert len(store._memo) == 0
    await store.close()


async def test_nothing_erased_stays_in_memory_when_the_journal_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages are forgotten too when the file's journal cannot be emptied."""
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.1)
    store = await kept(tmp_path)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entries").fetchone()
        with pytest.raises(StoreError, match="erase once more"):
            await store.delete("s")
    assert len(store._memo) == 0
    await store.close()


async def test_a_reader_of_the_old_state_puts_nothing_back(tmp_path: Path) -> None:
    """What a read that began before a deletion has decoded is not kept beyond it."""
    said = [user(f"{n} " * 500) for n in range(300)]
    store = await kept(tmp_path, *said)
    for _ in range(20):
        store._memo.clear()
        reading = [asyncio.create_task(store.read("s")) for _ in range(4)]
        await asyncio.sleep(0)  # they are on their way
        await store.delete("s")
        assert len(store._memo) == 0
        assert {len(read) for read in await asyncio.gather(*reading)} <= {0, 300}
        await store.append("s", said)
    await store.close()


async def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most so many messages are kept, those that were used last, and no long ones."""
    monkeypatch.setattr(sqlite_memo, "MEMO_MESSAGES", 3)
    monkeypatch.setattr(sqlite_memo, "MEMO_BODY_BYTES", 500)
    store = await kept(tmp_path, *(user(str(n)) for n in range(3)))
    first = (await store.entries("s", limit=1))[0].message
    await store.append("s", [user("3"), user("long" * 100)])
    await store.read("s", last=2)
    assert len(store._memo) == 3
    assert (await store.entries("s", limit=1))[0].message is first
    await store.close()
