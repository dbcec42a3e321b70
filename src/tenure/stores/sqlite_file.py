"""The file of the SQLite driver: opening it, waiting for its lock, its schema, and what its errors mean."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from tenure.errors import SchemaVersionError, StoreError, StoreOpenError
from tenure.stores.migrations import migrations

T = TypeVar("T")

BUSY_TIMEOUT_S = 30.0
"""How long a foreign writer may hold the file before callers get an error."""

_RETRY_S = (0.0002, 0.002)  # jitter between tries; SQLite's own handler starves writers

# --- opening -------------------------------------------------------------------------------------


def open_for_writing(path: Path, *, is_durable: bool) -> sqlite3.Connection:
    """Open the file, creating it if need be, and bring its schema up to date."""
    connection = _connected(path)
    try:
        retried(lambda: connection.execute("PRAGMA journal_mode = WAL"))
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
    connection = _connected(path, timeout_s=BUSY_TIMEOUT_S)
    connection.execute("PRAGMA query_only = ON")
    return connection


def identity(path: Path) -> tuple[int, int] | None:
    """Tell a file from every other one that has been at this path; None when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _connected(path: Path, *, timeout_s: float = 0.0) -> sqlite3.Connection:
    if path.is_dir():
        raise StoreOpenError(f"The database {str(path)!r} is a directory; give the path of a file.")
    if not path.parent.is_dir():
        raise StoreOpenError(
            f"The database {str(path)!r} cannot be made: there is no folder "
            f"{str(path.parent)!r}; make it first."
        )
    # One thread uses a connection at a time; closing happens in another one, after the last use.
    connection = sqlite3.connect(
        path, timeout=timeout_s, isolation_level=None, check_same_thread=False
    )
    connection.row_factory = sqlite3.Row
    return connection


def _is_current(path: Path) -> bool:
    """Whether nothing is left to migrate. Raises for a file from a newer version."""
    with contextlib.closing(_connected(path, timeout_s=BUSY_TIMEOUT_S)) as connection:
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
    retried(lambda: connection.execute("BEGIN IMMEDIATE"))
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
        retried(lambda: connection.execute("COMMIT"))
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


# --- waiting ------------------------------------------------------------------------------------


def retried(action: Callable[[], T]) -> T:
    """Do what another process's lock may refuse, again and again, each time after a short random wait."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            return action()
        except sqlite3.OperationalError as exc:
            if not _is_busy(exc) or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(*_RETRY_S))  # noqa: S311


def _is_busy(exc: sqlite3.Error) -> bool:
    return (exc.sqlite_errorcode & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def empty_journal(connection: sqlite3.Connection) -> None:
    """Move everything out of the journal and truncate it.

    Raises:
        StoreError: Somebody went on reading what is in it.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        is_busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if not is_busy:
            return
        if time.monotonic() > deadline:
            raise StoreError(
                "The data was erased from the database, but a reader kept its journal in use for "
                f"{BUSY_TIMEOUT_S:.0f} seconds; erase once more when it has ended."
            )
        time.sleep(random.uniform(*_RETRY_S))  # noqa: S311


# --- errors --------------------------------------------------------------------------------------


def translated(exc: BaseException, path: Path) -> BaseException:
    """Return what the caller is told of an exception in one of the threads, by SQLite's error code."""
    if isinstance(exc, StopIteration):  # which no future can hold
        error_of_users = RuntimeError("a function that was given to the store raised StopIteration")
        error_of_users.__cause__ = exc
        return error_of_users
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
            f"{where} was locked by another process for {BUSY_TIMEOUT_S:.0f} seconds; nothing of "
            "this was stored, try again."
        )
    else:
        error = StoreError(f"{where} failed: {exc} ({name or type(exc).__name__}).")
    error.__cause__ = exc
    return error
