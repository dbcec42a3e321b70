"""The SQLite file under adverse conditions: forks of the process, files that are removed or replaced."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import textwrap
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tenure import Message, Owner, Participant, user
from tenure.codec import to_json
from tenure.stores.migrations import migrations
from tenure.stores.run_records import NewCall, NewCheckpoint
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


async def test_a_file_from_before_checkpoints_is_brought_up(tmp_path: Path) -> None:
    """A file of schema 4 is migrated with all that is in it, a run and those who took part included."""
    path = tmp_path / "chat.db"
    now = "2026-01-01T00:00:00.000000+00:00"
    messages = [replace(user(text), id=text) for text in ("old", "logged", "too")]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TABLE migrations (number INTEGER PRIMARY KEY, name TEXT, applied_at TEXT)"
        )
        for migration in migrations("sqlite_migrations")[:4]:
            connection.executescript(migration.sql)
            connection.execute("INSERT INTO migrations VALUES (?, '', '')", (migration.number,))
        connection.execute(
            "INSERT INTO conversations (tenant, session_id, conversation_id, branch, last_seq, "
            "message_count, revision, created_at, updated_at) VALUES ('', 's', 'c', 1, 1, 1, 1, ?, ?)",
            (now, now),
        )
        connection.execute("INSERT INTO commits VALUES ('', 'c', 1, 1, 1)")
        connection.executemany(
            "INSERT INTO branches VALUES ('', 'c', ?, NULL, ?, ?, ?, ?, NULL)",
            [(1, None, 0, None, now), (2, 1, 1, "r", now)],
        )
        connection.executemany(
            "INSERT INTO entries VALUES ('', 'c', ?, ?, ?, ?, 'message', ?, ?, NULL)",
            [
                (branch, seq, message.id, run_id, now, to_json(message))
                for (branch, seq, run_id), message in zip(
                    [(1, 1, "q"), (2, 2, "r"), (2, 3, "r")], messages, strict=True
                )
            ],
        )
        connection.executemany("INSERT INTO runs VALUES ('', 'c', ?, 'a', 'ann')", [("q",), ("r",)])
        connection.commit()
    store, ann = SQLiteStore(path), Owner(agent_id="a", user_id="ann")
    assert await store.read("s", revision=1) == messages[:1]
    assert [entry.message for entry in await store.run_entries("s", "r")] == messages[1:]
    assert await store.runs("s") == []
    new = NewCheckpoint(checkpoint_id="1", node_path="n", scope="n", state="x")
    saved = await store.save_checkpoint("s", "r", new, messages=[messages[2], user("new")])
    assert (saved.version, saved.logged) == (1, 3)
    other = Owner(agent_id="a", user_id="bob")
    assert (await store.begin_run("s", "r", owner=other, input="x")).owner == ann
    assert (await store.forget(ann)).conversations == ("s",)
    await store.close()


async def test_a_discarded_run_is_nowhere_in_the_files(tmp_path: Path) -> None:
    """After a run was discarded, neither the file nor its journal has what it was given, said or did."""
    store, ann = SQLiteStore(tmp_path / "chat.db"), Owner(agent_id="a", user_id="ann")
    await store.append("s", [user("harmless")])
    for run_id in ("r", "q"):
        await store.begin_run("s", run_id, owner=ann, input="secret input " * 500)
        new = NewCheckpoint(
            checkpoint_id="1", node_path="n", scope="n", state="secret state " * 500
        )
        await store.save_checkpoint("s", run_id, new, messages=[user("secret message")])
        call = NewCall(
            node_path="n", position=0, origin="", place=0, tool="t", args="secret args " * 500
        )
        await store.begin_call("s", run_id, call)
        await store.end_call("s", run_id, 1, outcome="secret outcome " * 500)
        if run_id == "r":
            await store.append(
                "s", [user("said")], run_id=run_id, by=Participant(owner=ann, ends_run=True)
            )
    await store.discard_run("s", "q")
    for file in tmp_path.iterdir():
        assert b"secret" not in file.read_bytes(), file
    await store.close()


async def test_a_checkpoint_costs_the_same_in_a_long_run(tmp_path: Path) -> None:
    """Saving a checkpoint does as much behind a long history, log and list as behind a short one."""
    store = SQLiteStore(tmp_path / "chat.db")

    async def steps(session_id: str, size: int) -> int:
        """How many of SQLite's instructions, in dozens, it takes."""
        await store.append(session_id, [user(str(n)) for n in range(size)])
        for n in range(size):
            await store.append_to_run(session_id, f"other {n}", [user("x")])
            new = NewCheckpoint(checkpoint_id=str(n), node_path="n", scope="n", state="x" * 1000)
            await store.save_checkpoint(session_id, "r", new, messages=[user(str(n))])
        count = 0

        def counted() -> int:
            nonlocal count
            count += 1
            return 0

        def watch(connection: sqlite3.Connection, is_on: bool) -> None:
            connection.set_progress_handler(counted if is_on else None, 12)

        await store._engine.write(lambda connection: watch(connection, True))
        new = NewCheckpoint(checkpoint_id="last", node_path="n", scope="n", state="x" * 1000)
        await store.save_checkpoint(session_id, "r", new, messages=[user("last")])
        await store._engine.write(lambda connection: watch(connection, False))
        return count

    short, long = await steps("short", 3), await steps("long", 300)
    assert long <= short + 2
    await store.close()
