"""The SQLite file under adverse conditions: forks of the process, files that are removed or replaced."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tenure import Message, user
from tenure.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.anyio


async def texts(store: SQLiteStore) -> list[str]:
    return [message.text for message in await store.read("s")]


FORKING = """
    import asyncio, os, sys
    from tenure import user
    from tenure.stores.sqlite import SQLiteStore

    async def in_child():
        await store.append("s", [user("child")])
        await store.read("s")
        os.write(to_parent, b"x")
        os.read(from_parent, 1)  # until the parent has closed the file
        await store.append("s", [user("late")])
        await store.append("s", [user("later")])
        print([message.text for message in await store.read("s")], flush=True)

    store = SQLiteStore(sys.argv[1])
    asyncio.run(store.append("s", [user("parent")]))
    asyncio.run(store.read("s"))
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    pid = os.fork()
    if pid == 0:
        asyncio.run(in_child())
        os._exit(0)
    os.read(from_child, 1)
    asyncio.run(store.close())
    os.write(to_child, b"x")
    assert os.waitpid(pid, 0)[1] == 0
"""


async def test_a_forked_child_keeps_its_journal(tmp_path: Path) -> None:
    """What a forked child has written stays, though the parent closes the store meanwhile."""
    path = tmp_path / "chat.db"
    command = [sys.executable, "-c", textwrap.dedent(FORKING), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    store = SQLiteStore(path)
    assert await texts(store) == ["parent", "child", "late", "later"]
    await store.close()


async def test_a_removed_file_is_made_anew(tmp_path: Path) -> None:
    """When the file was removed, later writes go into a new one, and not into one that has no name."""
    path = tmp_path / "chat.db"
    store = SQLiteStore(path)
    await store.append("s", [user("1")])
    assert await texts(store) == ["1"]
    for file in tmp_path.iterdir():
        file.unlink()
    await store.append("s", [user("2")])
    assert await texts(store) == ["2"]
    again = SQLiteStore(path)
    assert await texts(again) == ["2"]
    await again.close()
    await store.close()
    again = SQLiteStore(path)
    assert await texts(again) == ["2"]
    await again.close()


async def test_a_replaced_file_is_opened_anew(tmp_path: Path) -> None:
    """When another file was put in its place, such as a copy, that one is read and written, whoever
    else is using it; its journal is left alone.
    """
    path = tmp_path / "chat.db"
    store = SQLiteStore(path)
    await store.append("s", [user("old")])
    assert await texts(store) == ["old"]
    aside = tmp_path / "aside"
    aside.mkdir()
    for file in list(tmp_path.glob("chat.db*")):
        file.rename(aside / file.name)
    other = SQLiteStore(path)
    await other.append("s", [user("new")])
    assert await texts(store) == ["new"]
    await store.append("s", [user("more")])
    await other.append("s", [user("most")])
    assert await texts(store) == ["new", "more", "most"]
    await store.close()
    assert await texts(other) == ["new", "more", "most"]
    await other.close()


async def test_an_unreadable_file_says_so_itself(tmp_path: Path) -> None:
    """A read that fails raises its own error, and not one of what is done after it."""
    store = SQLiteStore(tmp_path / "chat.db")

    def failing(connection: sqlite3.Connection) -> None:
        connection.execute("ROLLBACK")  # what SQLite does by itself when a disk fails
        raise KeyError("disk")

    with pytest.raises(KeyError, match="disk"):
        await store._engine.read(failing)
    await store.close()


async def test_a_journal_is_emptied_in_its_turn(tmp_path: Path) -> None:
    """A write that is queued behind an emptying of the journal finds it empty."""
    store = SQLiteStore(tmp_path / "chat.db")
    journal = tmp_path / "chat.db-wal"
    await store.append("s", [user("1")])
    may_go_on = threading.Event()

    def size(_: sqlite3.Connection) -> int:
        return journal.stat().st_size

    busy = store._engine.begin_write(lambda _: may_go_on.wait(10))
    before = store._engine.begin_write(size)
    store._engine.begin_emptying_journal()
    after = store._engine.begin_write(size)  # queued together with the others
    may_go_on.set()
    assert await asyncio.gather(*map(asyncio.wrap_future, [busy, before, after])) == [
        True,
        before.result(),
        0,
    ]
    assert before.result() > 0
    await store.close()


async def test_a_cancelled_redaction_leaves_nothing_in_the_journal(tmp_path: Path) -> None:
    """When the caller of a redaction that has begun is cancelled, its old text leaves the files, too."""
    store = SQLiteStore(tmp_path / "chat.db")
    await store.append("s", [user("a secret word")])
    has_begun, may_go_on = threading.Event(), threading.Event()

    def redaction(message: Message) -> Message:
        has_begun.set()
        assert may_go_on.wait(10)
        return replace(message, parts=user("gone").parts)

    redacting = asyncio.create_task(store.redact("s", redaction))
    assert await asyncio.to_thread(has_begun.wait, 10)
    redacting.cancel()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await redacting
    await store.set_metadata("s", {})  # is done after what was queued before
    assert await texts(store) == ["gone"]
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"secret" not in files
    await store.close()
