"""What holds of the SQLite driver only: the file, other processes, crashes, and what goes wrong."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from tenure import SchemaVersionError, StoreError, StoreOpenError, user
from tenure.stores import sqlite_engine
from tenure.stores.migrations import migrations
from tenure.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.anyio

APPENDER = """
    import asyncio, sys
    from tenure import user
    from tenure.stores.sqlite import SQLiteStore

    async def main(path, name, count):
        store = SQLiteStore(path)
        for n in range(int(count)):
            await store.append("s", [user(f"{name}.{n}.a"), user(f"{name}.{n}.b")])
            print(n, flush=True)

    asyncio.run(main(*sys.argv[1:]))
"""


def start(script: str, *args: object) -> subprocess.Popen[str]:
    """Start a Python process that runs `script`."""
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


async def texts(path: Path, session_id: str = "s") -> list[str]:
    store = SQLiteStore(path)
    found = [message.text for message in await store.read(session_id)]
    await store.close()
    return found


async def test_the_log_has_all_its_columns(tmp_path: Path) -> None:
    """The first migration has branches and the tenant, so that no later one rebuilds the table."""
    store = SQLiteStore(tmp_path / "chat.db")
    await store.append("s", [user("x")], run_id="r1")
    await store.close()
    columns = {
        table: [str(row[1]) for row in rows(store.path, f"PRAGMA table_info({table})")]
        for table in ("conversations", "branches", "entries")
    }
    assert columns["entries"] == [
        "tenant", "conversation_id", "branch", "seq", "message_id", "run_id", "kind", "created_at",
        "body", "extra",
    ]  # fmt: skip
    assert all(names[0] == "tenant" for names in columns.values())
    assert rows(store.path, "SELECT tenant, branch, seq, run_id, kind FROM entries") == [
        ("", 1, 1, "r1", "message")
    ]
    assert rows(store.path, "PRAGMA journal_mode") == [("wal",)]


async def test_appending_writes_one_row_a_message(tmp_path: Path) -> None:
    """An append adds rows and rewrites none: what is there stays byte for byte."""
    store = SQLiteStore(tmp_path / "chat.db")
    await store.append("s", [user(str(n)) for n in range(10)])
    before = rows(store.path, "SELECT * FROM entries")
    await store.append("s", [user("new")])
    after = rows(store.path, "SELECT * FROM entries")
    await store.close()
    assert len(after) == 11
    assert set(before) < set(after)


async def test_rows_are_pure_ascii(tmp_path: Path) -> None:
    """Bodies are canonical JSON in ASCII, whatever the text holds (C24, C25)."""
    store = SQLiteStore(tmp_path / "chat.db")
    await store.append("s", [user("né\0日\ud83d")])
    await store.close()
    [(body,)] = rows(store.path, "SELECT body FROM entries")
    assert str(body).isascii()
    assert r"n\u00e9\u0000\u65e5\ud83d" in str(body)


async def test_a_restart_finds_everything(tmp_path: Path) -> None:
    """Another store on the same file reads what the first one wrote, and goes on from there."""
    first = SQLiteStore(tmp_path / "chat.db")
    await first.append("s", [user("one")])
    await first.close()
    second = SQLiteStore(tmp_path / "chat.db", is_durable=True)
    assert await second.append("s", [user("two")]) == 2
    await second.close()
    assert await texts(first.path) == ["one", "two"]


async def test_two_stores_on_one_file_see_each_other(tmp_path: Path) -> None:
    """What one connection has committed, the next read of another one has."""
    one, two = SQLiteStore(tmp_path / "chat.db"), SQLiteStore(tmp_path / "chat.db")
    for n in range(10):
        await (one if n % 2 else two).append("s", [user(str(n))])
        assert len(await (two if n % 2 else one).read("s")) == n + 1
    await one.close()
    await two.close()


def test_processes_that_start_together_share_a_new_file(tmp_path: Path) -> None:
    """Processes that open a file that is not there yet lose nothing and never see a lock (C10, C51)."""
    path = tmp_path / "chat.db"
    children = [start(APPENDER, path, name, 50) for name in "abcd"]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.read().split() == [str(n) for n in range(50)]
        child.stdout.close()
        assert child.wait(60) == 0
    found = asyncio.run(texts(path))
    for name in "abcd":
        mine = [text for text in found if text.startswith(name)]
        assert mine == [f"{name}.{n}.{half}" for n in range(50) for half in "ab"]
    assert len(found) == 400
    assert rows(path, "SELECT revision, message_count FROM conversations") == [(200, 400)]


def test_a_killed_process_leaves_what_it_was_told_is_stored(tmp_path: Path) -> None:
    """After SIGKILL at any moment the file opens, and holds each acknowledged append, whole."""
    random.seed(7)
    path = tmp_path / "chat.db"
    acknowledged: list[str] = []
    for name in range(8):
        child = start(APPENDER, path, name, 100_000)
        assert child.stdout is not None
        first = child.stdout.readline()  # it is writing now
        time.sleep(random.uniform(0, 0.05))
        os.kill(child.pid, signal.SIGKILL)
        for line in (first + child.stdout.read()).splitlines(keepends=True):
            if line.endswith("\n"):  # a line cut off by the kill is no acknowledgement
                acknowledged += [f"{name}.{line.strip()}.a", f"{name}.{line.strip()}.b"]
        child.stdout.close()
        child.wait(30)
        found = asyncio.run(texts(path))
        assert [text for text in acknowledged if text not in set(found)] == []
        assert len(found) % 2 == 0
        assert [text[:-1] for text in found[::2]] == [text[:-1] for text in found[1::2]]
        assert rows(path, "PRAGMA integrity_check") == [("ok",)]


async def test_a_directory_is_no_database(tmp_path: Path) -> None:
    """A path that is a directory is refused by name, for writing and reading."""
    store = SQLiteStore(tmp_path)
    for operation in (store.append("s", [user("x")]), store.read("s")):
        with pytest.raises(StoreOpenError, match=f"'{tmp_path}' is a directory"):
            await operation
    await store.close()


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """A file in a folder that is not there is refused with the folder's name."""
    store = SQLiteStore(tmp_path / "no" / "chat.db")
    with pytest.raises(StoreOpenError, match=f"no folder '{tmp_path}/no'"):
        await store.append("s", [user("x")])
    await store.close()


async def test_another_kind_of_file_is_left_alone(tmp_path: Path) -> None:
    """A file that is not SQLite is refused and stays as it was."""
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n" * 1000)
    store = SQLiteStore(path)
    for operation in (store.append("s", [user("x")]), store.read("s")):
        with pytest.raises(StoreOpenError, match=r"notes.txt' is not an SQLite file"):
            await operation
    await store.close()
    assert path.read_text() == "my notes\n" * 1000


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """A file that a newer version has migrated is refused with both numbers, and not touched."""
    store = SQLiteStore(tmp_path / "chat.db")
    await store.append("s", [user("x")])
    await store.close()
    newest = migrations("sqlite_migrations")[-1].number
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("INSERT INTO migrations VALUES (99, 'future', 'now')")
        connection.commit()
    newer = SQLiteStore(store.path)
    for operation in (newer.append("s", [user("y")]), newer.read("s")):
        with pytest.raises(SchemaVersionError, match=f"version 99, and .* up to {newest}"):
            await operation
    await newer.close()
    assert rows(store.path, "SELECT count(*) FROM entries") == [(1,)]


def test_a_read_only_file_is_named() -> None:
    """A file without write permission can't be appended to; the error says so and nothing changes."""
    # Root may write anything, so the test's process becomes somebody else after its imports.
    script = """
        import asyncio, os, sys
        from tenure import StoreOpenError, user
        from tenure.stores.sqlite import SQLiteStore

        async def main():
            store = SQLiteStore(sys.argv[1])
            await store.append("s", [user("x")])
            await store.close()
            os.chmod(sys.argv[1], 0o444)
            os.chmod(os.path.dirname(sys.argv[1]), 0o555)
            if os.getuid() == 0:
                os.seteuid(65534)
            store = SQLiteStore(sys.argv[1])
            try:
                await store.append("s", [user("y")])
            except StoreOpenError as error:
                print(error)

        asyncio.run(main())
    """
    # Outside of pytest's folder, which nobody else may enter.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        path = Path(folder) / "chat.db"
        child = start(script, path)
        assert child.stdout is not None
        said = child.stdout.read()
        child.stdout.close()
        assert child.wait(30) == 0
        os.chmod(folder, 0o755)
        path.chmod(0o644)
        assert asyncio.run(texts(path)) == ["x"]
    assert f"The database '{path}'" in said
    assert "read-only" in said or "cannot be opened" in said


async def test_a_full_disk_fails_the_append_alone(tmp_path: Path) -> None:
    """When the file cannot grow, the append says so, nothing of it is there, and later ones work."""
    store = SQLiteStore(tmp_path / "chat.db")
    await store.append("s", [user("before")])

    def limit(connection: sqlite3.Connection, pages: int) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    engine = store._engine
    # Outside of any batch of ours, on the writer's own connection.
    await asyncio.wrap_future(engine.write(lambda connection: limit(connection, 20)))
    with pytest.raises(StoreError, match="the disk is full; nothing of this was stored"):
        await store.append("s", [user("small"), user("big" * 1_000_000)])
    assert [m.text for m in await store.read("s")] == ["before"]
    await asyncio.wrap_future(engine.write(lambda connection: limit(connection, 1_000_000)))
    await store.append("s", [user("after")])
    assert [m.text for m in await store.read("s")] == ["before", "after"]
    await store.close()


async def test_a_foreign_lock_is_waited_for(tmp_path: Path) -> None:
    """While another process holds the file's lock an append waits; then it succeeds (C51, C53)."""
    store = SQLiteStore(tmp_path / "chat.db")
    await store.append("s", [user("before")])
    with closing(sqlite3.connect(store.path, isolation_level=None)) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(store.append("s", [user("waited")]))
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done
        assert [m.text for m in await store.read("s")] == ["before"]  # readers do not wait
        foreign.execute("COMMIT")
        assert await waiting == 2
    await store.close()


async def test_a_lock_that_is_never_released_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for a foreign lock is bounded; the error says that nothing was stored (C52)."""
    monkeypatch.setattr(sqlite_engine, "_BUSY_TIMEOUT_S", 0.1)
    store = SQLiteStore(tmp_path / "chat.db")
    await store.append("s", [user("before")])
    with closing(sqlite3.connect(store.path, isolation_level=None)) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another process"):
            await store.append("s", [user("lost")])
        foreign.execute("ROLLBACK")
    await store.append("s", [user("after")])
    assert [m.text for m in await store.read("s")] == ["before", "after"]
    await store.close()


async def test_the_event_loop_never_waits_for_the_disk(tmp_path: Path) -> None:
    """While a foreign lock holds up an append, the loop goes on (C82)."""
    store = SQLiteStore(tmp_path / "chat.db")
    await store.append("s", [user("x")])
    with closing(sqlite3.connect(store.path, isolation_level=None)) as foreign:
        foreign.execute("BEGIN IMMEDIATE")
        append = asyncio.create_task(store.append("s", [user("y" * 1_000_000)]))
        beats: list[float] = []
        for _ in range(50):
            beats.append(time.monotonic())
            await asyncio.sleep(0.002)
        foreign.execute("COMMIT")
        await append
    longest = max(b - a for a, b in pairwise(beats))
    assert longest < 0.5
    await store.close()


async def test_a_forked_child_opens_the_file_anew(tmp_path: Path) -> None:
    """A store that was used before a fork works in the child, and still does in the parent."""
    path = tmp_path / "chat.db"
    script = """
        import asyncio, os, sys
        from tenure import user
        from tenure.stores.sqlite import SQLiteStore

        store = SQLiteStore(sys.argv[1])
        asyncio.run(store.append("s", [user("parent")]))
        pid = os.fork()
        if pid == 0:
            asyncio.run(store.append("s", [user("child")]))
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        asyncio.run(store.append("s", [user("parent again")]))
    """
    child = start(script, path)
    assert child.wait(30) == 0
    assert child.stdout is not None
    child.stdout.close()
    assert await texts(path) == ["parent", "child", "parent again"]


async def test_a_store_that_is_dropped_ends_its_threads(tmp_path: Path) -> None:
    """A store that nobody holds any more leaves no thread behind (C68)."""
    before = set(threading.enumerate())
    for n in range(5):
        store = SQLiteStore(tmp_path / f"{n}.db")
        await store.append("s", [user("x")])
        await store.read("s")
        del store
    deadline = time.monotonic() + 10
    while any(t.name.startswith("tenure-") for t in set(threading.enumerate()) - before):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_migration_that_fails_leaves_the_schema_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration is committed with its record or not at all, and runs again the next time."""
    real = migrations("sqlite_migrations")
    broken = type(real[0])(number=2, name="broken", sql="CREATE TABLE t (x);\nSELECT no_such();\n")
    path = tmp_path / "chat.db"
    monkeypatch.setattr(sqlite_engine, "migrations", lambda _: (*real, broken))
    store = SQLiteStore(path)
    with pytest.raises(StoreError, match="no_such"):
        await store.append("s", [user("x")])
    await store.close()
    assert rows(path, "SELECT name FROM sqlite_master WHERE name = 't'") == []
    monkeypatch.setattr(sqlite_engine, "migrations", lambda _: real)
    store = SQLiteStore(path)
    await store.append("s", [user("x")])
    await store.close()
    assert rows(path, "SELECT number FROM migrations") == [(1,)]
