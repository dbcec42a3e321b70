"""What holds of the SQLite driver only: the file, other processes, crashes, and what goes wrong."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tenure import Media, Message, SchemaVersionError, StoreError, StoreOpenError, user
from tenure.codec import to_json
from tenure.stores import sqlite_file
from tenure.stores.migrations import migrations
from tenure.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.anyio

APPENDER = """
    import asyncio, sys
    from tenure import user
    from tenure.stores.sqlite import SQLiteStore

    async def main(path, session_id, name, count):
        store = SQLiteStore(path)
        for n in range(int(count)):
            await store.append(session_id, [user(f"{name}.{n}.a"), user(f"{name}.{n}.b")])
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
    assert (await second.append("s", [user("two")])).revision == 2
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


@pytest.mark.parametrize("sessions", [["s"] * 8, [f"s{n}" for n in range(8)]], ids=["one", "eight"])
def test_eight_processes_lose_nothing(tmp_path: Path, sessions: list[str]) -> None:
    """Eight processes that open a file that is not there yet and append 500 messages each, to one
    conversation or to eight, leave every message once, in each writer's order, with revisions
    without gaps, and none of them sees a lock (C10, C11, C51, C53).
    """
    path = tmp_path / "chat.db"
    children = [start(APPENDER, path, s, name, 250) for name, s in enumerate(sessions)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.read().split() == [str(n) for n in range(250)]
        child.stdout.close()
        assert child.wait(60) == 0
    for session_id in set(sessions):
        found = asyncio.run(texts(path, session_id))
        writers = [str(name) for name, s in enumerate(sessions) if s == session_id]
        assert len(found) == 500 * len(writers)
        for name in writers:
            mine = [text for text in found if text.split(".")[0] == name]
            assert mine == [f"{name}.{n}.{half}" for n in range(250) for half in "ab"]
        assert [text[:-1] for text in found[::2]] == [text[:-1] for text in found[1::2]]
    assert rows(path, "SELECT DISTINCT revision, message_count FROM conversations") == [
        (2000 // len(set(sessions)), 4000 // len(set(sessions)))
    ]
    commits = "SELECT count(*), count(DISTINCT revision), max(revision) FROM commits"
    each = rows(path, f"{commits} GROUP BY conversation_id")
    assert {*each} == {(2000 // len(set(sessions)),) * 3}


def test_a_killed_process_leaves_what_it_was_told_is_stored(
    tmp_path: Path, kill_rounds: int
) -> None:
    """After SIGKILL at any moment the file opens, and holds each acknowledged append, whole."""
    path = tmp_path / "chat.db"
    acknowledged: list[str] = []
    for name in range(kill_rounds):
        child = start(APPENDER, path, "s", name, 100_000)
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
        assert set(acknowledged) - set(found) == set()
        assert len(set(found)) == len(found)
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
    await engine.write(lambda connection: limit(connection, 20))
    with pytest.raises(StoreError, match="the disk is full; nothing of this was stored"):
        await store.append("s", [user("small"), user("big" * 1_000_000)])
    assert [m.text for m in await store.read("s")] == ["before"]
    await engine.write(lambda connection: limit(connection, 1_000_000))
    await store.append("s", [user("after")])
    assert [m.text for m in await store.read("s")] == ["before", "after"]
    await store.close()


LOCKER = """
    import sqlite3, sys, time

    connection = sqlite3.connect(sys.argv[1], isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    print("locked", flush=True)
    time.sleep(float(sys.argv[2]))
    connection.execute("COMMIT")
"""


async def test_a_foreign_lock_is_waited_for(tmp_path: Path) -> None:
    """While another process holds the file's lock for ten seconds, appends wait and readers do not;
    then everything is there (C51, C53).
    """
    store = SQLiteStore(tmp_path / "chat.db")
    await store.append("s", [user("before")])
    began = time.monotonic()
    locker = start(LOCKER, store.path, 10)
    assert locker.stdout is not None
    assert locker.stdout.readline() == "locked\n"
    waiting = asyncio.create_task(store.append("s", [user("waited")]))
    done, _ = await asyncio.wait({waiting}, timeout=0.5)
    assert not done
    assert [m.text for m in await store.read("s")] == ["before"]
    assert (await waiting).revision == 2
    assert 10 <= time.monotonic() - began < 60
    assert locker.wait(30) == 0
    locker.stdout.close()
    await store.close()


async def test_a_lock_that_is_never_released_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for a foreign lock is bounded; the error says that nothing was stored (C52)."""
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.1)
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
        assert not append.done()
        foreign.execute("COMMIT")
        await append
    # Most of the gaps: a machine may stop for a moment, and a loop that waits is late each time.
    assert statistics.median(b - a for a, b in pairwise(beats)) < 0.1
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


def test_a_limit_on_the_files_size_fails_the_append_alone(tmp_path: Path) -> None:
    """A process that may not write bigger files gets a clear error, and goes on with smaller ones."""
    script = """
        import asyncio, resource, signal, sys
        from tenure import StoreError, user
        from tenure.stores.sqlite import SQLiteStore

        async def main():
            store = SQLiteStore(sys.argv[1])
            await store.append("s", [user("before")])
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
            try:
                await store.append("s", [user("x" * 5_000_000)])
            except StoreError as error:
                print(type(error).__name__, error)
            await store.append("s", [user("after")])
            print([message.text for message in await store.read("s")])
            await store.close()

        asyncio.run(main())
    """
    child = start(script, tmp_path / "chat.db")
    assert child.stdout is not None
    said, then = child.stdout.read().splitlines()
    child.stdout.close()
    assert child.wait(30) == 0
    assert said.startswith(f"StoreError The database '{tmp_path / 'chat.db'}'")
    assert then == "['before', 'after']"


async def test_erased_text_is_nowhere_in_the_files(tmp_path: Path) -> None:
    """After a redaction or a deletion neither the database nor its journal has the old text (C75)."""
    store = SQLiteStore(tmp_path / "chat.db")
    secrets = [user(f"secret number {n} " * 50) for n in range(50)]
    for n in range(0, 50, 5):
        await store.append("s", [*secrets[n : n + 5], user("harmless")])
        await store.append("other", [user("secret of another")])
    await store.append_to_run("s", "run", [user("secret of a run")])

    def redact(message: Message) -> Message | None:
        text = message.text
        return replace(message, parts=user("redacted").parts) if "secret" in text else message

    assert await store.redact("s", redact) == 51
    assert await store.delete("other")
    for file in tmp_path.iterdir():
        assert b"secret" not in file.read_bytes(), file
    assert len(await store.read("s")) == 60
    await store.close()


async def test_erasing_waits_for_readers(tmp_path: Path) -> None:
    """While another connection reads the old state, an erasure waits until it has gone."""
    store = SQLiteStore(tmp_path / "chat.db")
    await store.append("s", [user("secret")])
    with closing(sqlite3.connect(store.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM entries").fetchone() == (1,)
        erasing = asyncio.create_task(store.delete("s"))
        done, _ = await asyncio.wait({erasing}, timeout=0.2)
        assert not done
        reader.execute("COMMIT")
        assert await erasing
    for file in tmp_path.iterdir():
        assert b"secret" not in file.read_bytes()
    await store.close()


async def test_media_are_stored_once(tmp_path: Path) -> None:
    """The same big picture in many messages is one row; it goes with the last of them (C27, C28)."""
    store = SQLiteStore(tmp_path / "chat.db")
    picture = Media(media_type="image/png", data=os.urandom(200_000))
    for n in range(10):
        await store.append(f"s{n % 2}", [user(f"look {n}", picture)])
    assert rows(store.path, "SELECT count(*), sum(length(data)) FROM media") == [(1, 200_000)]
    assert rows(store.path, "SELECT max(length(body)) < 1000 FROM entries") == [(1,)]
    await store.delete("s0")
    assert (await store.read("s1"))[0].parts[1] == picture
    await store.delete("s1")
    assert rows(store.path, "SELECT count(*) FROM media") == [(0,)]
    await store.close()


async def test_an_older_file_is_brought_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the first schema is migrated with everything in it, and can be forked at once."""
    path = tmp_path / "chat.db"
    real = migrations("sqlite_migrations")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(real[0].sql)
        connection.executescript(
            "CREATE TABLE migrations (number INTEGER PRIMARY KEY, name TEXT, applied_at TEXT);"
            "INSERT INTO migrations VALUES (1, 'conversations', '');"
        )
        now = "2026-01-01T00:00:00.000000+00:00"
        body = to_json(user("old"))
        connection.execute(
            "INSERT INTO conversations VALUES ('', 's', 'c', 1, 1, 1, 1, ?, ?, '{}', NULL)",
            (now, now),
        )
        connection.execute(
            "INSERT INTO branches VALUES ('', 'c', 1, NULL, NULL, 0, NULL, ?, NULL)", (now,)
        )
        connection.execute(
            "INSERT INTO entries VALUES ('', 'c', 1, 1, 'm', NULL, 'message', ?, ?, NULL)",
            (now, body),
        )
        connection.commit()
    store = SQLiteStore(path)
    assert [m.text for m in await store.read("s")] == ["old"]
    made = await store.append("s", [user("new")], expected_revision=1)
    assert made.revision == 2
    forked = await store.append("s", [user("x")], expected_revision=1, on_conflict="fork")
    assert [m.text for m in await store.read(forked.session_id)] == ["old", "x"]
    await store.close()


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
    broken = type(real[0])(number=3, name="broken", sql="CREATE TABLE t (x);\nSELECT no_such();\n")
    path = tmp_path / "chat.db"
    monkeypatch.setattr(sqlite_file, "migrations", lambda _: (*real, broken))
    store = SQLiteStore(path)
    with pytest.raises(StoreError, match="no_such"):
        await store.append("s", [user("x")])
    await store.close()
    assert rows(path, "SELECT name FROM sqlite_master WHERE name = 't'") == []
    monkeypatch.setattr(sqlite_file, "migrations", lambda _: real)
    store = SQLiteStore(path)
    await store.append("s", [user("x")])
    await store.close()
    numbers = [(migration.number,) for migration in real]
    assert rows(path, "SELECT number FROM migrations") == numbers


@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyError])
async def test_a_redaction_that_raises_anything_leaves_the_store_working(
    tmp_path: Path, error: type[BaseException]
) -> None:
    """Whatever a function of the user's raises in the store's thread, the thread goes on."""
    store = SQLiteStore(tmp_path / "chat.db")
    await store.append("s", [user("x")])

    def broken(message: Message) -> Message:
        raise error("bug")

    with pytest.raises((error, RuntimeError)):
        await store.redact("s", broken)
    assert (await store.append("s", [user("y")])).revision == 2
    await store.close()


async def test_media_go_with_their_last_use(tmp_path: Path) -> None:
    """Bytes are gone when a redaction changes the message that had them, or a run is discarded."""
    store = SQLiteStore(tmp_path / "chat.db")
    picture = Media(media_type="image/png", data=os.urandom(100_000))
    await store.append("s", [user("look", picture)])
    await store.append_to_run("s", "run", [user("look again", picture)])
    count = "SELECT (SELECT count(*) FROM media), (SELECT count(*) FROM media_uses)"
    assert rows(store.path, count) == [(1, 2)]
    assert await store.redact("s", lambda m: replace(m, parts=user("gone").parts)) == 2
    assert rows(store.path, count) == [(0, 0)]
    await store.append_to_run("s", "run", [user("once more", picture)])
    assert rows(store.path, count) == [(1, 1)]
    assert await store.discard_run("s", "run")
    assert rows(store.path, count) == [(0, 0)]
    await store.close()


async def test_a_cancelled_write_in_a_failing_batch_does_not_end_the_writer(tmp_path: Path) -> None:
    """A batch that holds a cancelled operation and fails as a whole is answered, and the next works."""
    store = SQLiteStore(tmp_path / "chat.db")
    await store.append("s", [user("before")])
    engine = store._engine
    is_held, gate = threading.Event(), threading.Event()

    def hold(_: sqlite3.Connection) -> None:
        is_held.set()
        gate.wait()

    def ends_it_for_all(connection: sqlite3.Connection) -> None:
        connection.execute("ROLLBACK")  # what SQLite does by itself when a disk is full
        raise sqlite3.OperationalError("disk full")

    holding = asyncio.create_task(engine.write(hold))
    await asyncio.to_thread(is_held.wait)
    # What comes now, while the writer is held, is one batch.
    operations = (lambda _: None), ends_it_for_all, (lambda _: None)
    tasks = [asyncio.create_task(engine.write(operation)) for operation in operations]
    await asyncio.sleep(0)  # they are queued
    tasks[0].cancel()
    await asyncio.wait({tasks[0]})
    gate.set()
    for task in tasks[1:]:
        with pytest.raises(StoreError, match="disk full"):
            await asyncio.wait_for(task, 10)
    await holding
    await store.append("s", [user("after")])
    assert [m.text for m in await store.read("s")] == ["before", "after"]
    await store.close()


async def test_a_read_sees_one_state(tmp_path: Path) -> None:
    """A read of several queries sees a fork before or after its parent's deletion, never between."""
    store = SQLiteStore(tmp_path / "chat.db")
    lengths: set[int] = set()
    is_over = False

    async def read() -> None:
        while not is_over:
            lengths.add(len(await store.read("fork")))

    readers = [asyncio.create_task(read()) for _ in range(2)]
    for _ in range(150):
        await store.append("parent", [user(str(n)) for n in range(5)])
        await store.delete("fork")
        await store.fork("parent", "fork")
        await store.delete("parent")
    is_over = True
    await asyncio.gather(*readers)
    assert lengths <= {0, 5}
    await store.close()
