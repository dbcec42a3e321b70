"""How the SQLite driver reaches its file: one writer thread, a few reader threads, and the opening.

`sqlite.py` says what is read and written; this file says how. All writes of a process go through one
thread, which takes what has queued up meanwhile into one transaction (group commit): each operation under
its own savepoint, in queue order, so that one that fails undoes only itself. Callers are answered after
the COMMIT; if that fails, all of them are, with its error. Reads run beside the writer in threads of
their own. The event loop never waits for the disk.

The threads hold no reference to the store: when it is collected, they are told to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

from tenure.errors import SchemaVersionError, StoreClosedError, StoreError, StoreOpenError
from tenure.stores.migrations import migrations

T = TypeVar("T")
_Operation: TypeAlias = Callable[[sqlite3.Connection], object]
_Item: TypeAlias = tuple[_Operation, "Future[object]"]
_Answer: TypeAlias = tuple["Future[object]", object, Exception | None]

_BATCH_SIZE = (
    256  # operations in one transaction; guess: bounds how long one COMMIT keeps others waiting
)
_BUSY_TIMEOUT_S = 30.0  # how long a foreign writer may hold the file before callers get an error
_RETRY_S = (0.0002, 0.002)  # jitter between tries; SQLite's own handler starves writers
_READERS = 2  # threads; more only compete for the two or so cores that matter


class Engine:
    """A SQLite file, opened on first use, by threads of its own."""

    def __init__(self, path: Path, *, is_durable: bool) -> None:
        self._path = path
        self._is_durable = is_durable
        self._lock = threading.Lock()
        self._writes: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._writer: _Writer | None = None
        self._readers: list[_Reader] = []
        self._pid = os.getpid()
        self.is_closed = False

    def write(self, operation: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Run `operation` in a transaction; the future is done after the COMMIT.

        An exception of the operation's own undoes it and is the future's. A future that is
        cancelled before its turn has no effect at all.

        Raises:
            StoreClosedError: After `close()`.
        """
        with self._lock:
            self._check_usable()
            if self._writer is None:
                self._writer = _Writer(self._path, self._writes, is_durable=self._is_durable)
                weakref.finalize(self, self._writer.stop)
            return _queued(self._writes, operation)

    def read(self, operation: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Run `operation` on a connection that cannot write.

        Raises:
            StoreClosedError: After `close()`.
        """
        with self._lock:
            self._check_usable()
            if not self._readers:
                self._readers = [_Reader(self._path, self._reads) for _ in range(_READERS)]
                for reader in self._readers:
                    weakref.finalize(self, reader.stop)
            return _queued(self._reads, operation)

    def close(self) -> None:
        """Do what is queued, then end the threads and close the file. Blocks until that is done."""
        with self._lock:
            if self.is_closed:
                return
            self._forget_after_fork()
            self.is_closed = True
            threads = [*self._readers, *([self._writer] if self._writer is not None else [])]
        for thread in threads:
            thread.stop()
        for thread in threads:
            thread.join()

    def _check_usable(self) -> None:
        if self.is_closed:
            raise StoreClosedError(
                f"The store {str(self._path)!r} was closed; open it again to use it."
            )
        self._forget_after_fork()

    def _forget_after_fork(self) -> None:
        """Start anew in a child process: threads do not live on in it, and connections must not."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._writer, self._readers = None, []
            self._writes, self._reads = queue.SimpleQueue(), queue.SimpleQueue()


async def finished(future: Future[T]) -> T:
    """Return an operation's result.

    When the caller is cancelled: an operation that has not begun never happens; one that has begun
    is waited for, so that the next read tells whether it was done.
    """
    waiting = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if not future.cancel():
            await asyncio.wait({waiting})
            if not waiting.cancelled():
                waiting.exception()  # nobody is left to be told
        raise


def _queued(
    target: queue.SimpleQueue[_Item | None], operation: Callable[[sqlite3.Connection], T]
) -> Future[T]:
    future: Future[T] = Future()
    # The two belong together: the thread gives this future only this operation's result.
    target.put((operation, cast("Future[object]", future)))
    return future


class _Writer(threading.Thread):
    """The only thread that writes."""

    def __init__(
        self, path: Path, own: queue.SimpleQueue[_Item | None], *, is_durable: bool
    ) -> None:
        super().__init__(name="tenure-writer", daemon=True)
        self._queue = own
        self._path = path
        self._is_durable = is_durable
        self._connection: sqlite3.Connection | None = None
        self.start()

    def stop(self) -> None:
        self._queue.put(None)

    def run(self) -> None:
        is_stopping = False
        while not is_stopping:
            batch: list[_Item] = []
            item = self._queue.get()
            while item is not None:
                batch.append(item)
                if len(batch) == _BATCH_SIZE or self._queue.empty():
                    break
                item = self._queue.get()
            is_stopping = item is None
            self._serve(batch)
            del batch, item  # hold no caller's data while waiting
        if self._connection is not None:
            self._connection.close()

    def _serve(self, batch: list[_Item]) -> None:
        """Do a batch in one transaction and answer all callers."""
        answers: list[_Answer] = []
        try:
            if self._connection is None:
                self._connection = open_for_writing(self._path, is_durable=self._is_durable)
            _commit(self._connection, batch, answers)
        except Exception as exc:
            answered = {future for future, _, _ in answers}
            late = [f for _, f in batch if f not in answered and f.set_running_or_notify_cancel()]
            answers = [(future, None, exc) for future in (*answered, *late)]
        for future, result, error in answers:
            if error is not None:
                future.set_exception(translated(error, self._path))
            else:
                future.set_result(result)


class _Reader(threading.Thread):
    """One of the threads that read; they share a queue."""

    def __init__(self, path: Path, shared: queue.SimpleQueue[_Item | None]) -> None:
        super().__init__(name="tenure-reader", daemon=True)
        self._queue = shared
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self.start()

    def stop(self) -> None:
        self._queue.put(None)

    def run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._serve(*item)
            del item  # hold no caller's data while waiting
        if self._connection is not None:
            self._connection.close()

    def _serve(self, operation: _Operation, future: Future[object]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            if self._connection is None:
                self._connection = open_for_reading(self._path)
            future.set_result(operation(self._connection))
        except Exception as exc:
            future.set_exception(translated(exc, self._path))


def _commit(connection: sqlite3.Connection, batch: list[_Item], answers: list[_Answer]) -> None:
    """Run a batch in one transaction, adding each operation's result or error to `answers`.

    An operation can be cancelled until the file's lock is there.
    """
    _retried(lambda: connection.execute("BEGIN IMMEDIATE"))
    try:
        for operation, future in batch:
            if not future.set_running_or_notify_cancel():
                continue
            connection.execute("SAVEPOINT operation")
            try:
                answers.append((future, operation(connection), None))
            except Exception as exc:
                answers.append((future, None, exc))
                if not connection.in_transaction:  # a full disk ends the whole transaction
                    raise
                connection.execute("ROLLBACK TO operation")
            connection.execute("RELEASE operation")
        _retried(lambda: connection.execute("COMMIT"))
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _retried(action: Callable[[], T]) -> T:
    """Do what another process's lock may refuse, again and again, each time after a short random wait."""
    deadline = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            return action()
        except sqlite3.OperationalError as exc:
            if not _is_busy(exc) or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(*_RETRY_S))  # noqa: S311


def _is_busy(exc: sqlite3.Error) -> bool:
    return (exc.sqlite_errorcode & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


# --- opening -------------------------------------------------------------------------------------


def open_for_writing(path: Path, *, is_durable: bool) -> sqlite3.Connection:
    """Open the file, creating it if need be, and bring its schema up to date."""
    connection = _connected(path)
    try:
        _retried(lambda: connection.execute("PRAGMA journal_mode = WAL"))
        connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
        connection.execute("PRAGMA secure_delete = ON")
        _migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open the file for reads. A file that is not there, or not of this schema, is brought up first."""
    if not path.exists() or not _is_current(path):
        open_for_writing(path, is_durable=False).close()
    connection = _connected(path, timeout_s=_BUSY_TIMEOUT_S)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _connected(path: Path, *, timeout_s: float = 0.0) -> sqlite3.Connection:
    if path.is_dir():
        raise StoreOpenError(f"The database {str(path)!r} is a directory; give the path of a file.")
    if not path.parent.is_dir():
        raise StoreOpenError(
            f"The database {str(path)!r} cannot be made: there is no folder "
            f"{str(path.parent)!r}; make it first."
        )
    # One thread uses a connection at a time; closing happens in another one, after the last use.
    return sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)


def _is_current(path: Path) -> bool:
    """Whether nothing is left to migrate. Raises for a file from a newer version."""
    with contextlib.closing(_connected(path, timeout_s=_BUSY_TIMEOUT_S)) as connection:
        return _applied(connection, path) == len(migrations("sqlite_migrations"))


def _applied(connection: sqlite3.Connection, path: Path) -> int:
    """Return the number of the last migration that the file has had; 0 for a new one."""
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'migrations'"
    if connection.execute(query).fetchone() is None:
        return 0
    number: int = connection.execute("SELECT max(number) FROM migrations").fetchone()[0] or 0
    newest = migrations("sqlite_migrations")[-1].number
    if number > newest:
        raise SchemaVersionError(
            f"The database {str(path)!r} has schema version {number}, and this tenure knows up to "
            f"{newest}; install a newer tenure."
        )
    return number


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    _retried(lambda: connection.execute("BEGIN IMMEDIATE"))
    try:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS migrations "
            "(number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at TEXT NOT NULL)"
        )
        applied = _applied(connection, path)
        for migration in migrations("sqlite_migrations")[applied:]:
            for statement in _statements(migration.sql):
                connection.execute(statement)
            connection.execute(
                "INSERT INTO migrations VALUES (?, ?, ?)",
                (migration.number, migration.name, datetime.now(UTC).isoformat()),
            )
        _retried(lambda: connection.execute("COMMIT"))
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> list[str]:
    """Split a script where SQLite itself says that a statement is complete."""
    statements: list[str] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    return statements


# --- errors --------------------------------------------------------------------------------------


def translated(exc: Exception, path: Path) -> Exception:
    """Return what the caller is told of an exception in one of the threads, by SQLite's error code."""
    if not isinstance(exc, sqlite3.Error):
        return exc
    name = getattr(exc, "sqlite_errorname", "") or ""
    where = f"The database {str(path)!r}"
    error: StoreError
    if name.startswith("SQLITE_NOTADB"):
        error = StoreOpenError(
            f"{where} is not an SQLite file; give another path, or move it away."
        )
    elif name.startswith("SQLITE_READONLY"):
        error = StoreOpenError(
            f"{where} is read-only; make the file and its folder writable, or give another path."
        )
    elif name.startswith(("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        error = StoreOpenError(
            f"{where} cannot be opened ({exc}); check the path and its permissions."
        )
    elif name.startswith("SQLITE_CORRUPT"):
        error = StoreError(f"{where} is damaged ({exc}); restore it from a copy.")
    elif name.startswith("SQLITE_FULL"):
        error = StoreError(f"{where} cannot grow: the disk is full; nothing of this was stored.")
    elif name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        error = StoreError(
            f"{where} was locked by another process for {_BUSY_TIMEOUT_S:.0f} seconds; nothing of "
            "this was stored, try again."
        )
    else:
        error = StoreError(f"{where} failed: {exc} ({name or type(exc).__name__}).")
    error.__cause__ = exc
    return error
