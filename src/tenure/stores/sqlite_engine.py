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
import os
import queue
import sqlite3
import threading
import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from tenure.errors import StoreClosedError
from tenure.stores.sqlite_calls import Call, Calls, Operation, answer_all, answered, next_batch
from tenure.stores.sqlite_file import (
    empty_journal,
    open_for_reading,
    open_for_writing,
    retried,
    translated,
)

T = TypeVar("T")

_BATCH_SIZE = (
    256  # operations in one transaction; guess: bounds how long one COMMIT keeps others waiting
)
_READERS = 2  # threads; more only compete for the two or so cores that matter

_READ_BATCH_SIZE = (
    16  # reads in a row of one of them; guess: few enough to leave some to the others
)


def _journal_emptied(_: sqlite3.Connection) -> None:
    """Stands in the queue for what cannot be done in a transaction."""


class Engine:
    """A SQLite file, opened on first use, by threads of its own."""

    def __init__(self, path: Path, *, is_durable: bool) -> None:
        self._path = path
        self._is_durable = is_durable
        self._lock = threading.Lock()
        self._writes: Calls = queue.SimpleQueue()
        self._reads: Calls = queue.SimpleQueue()
        self._writer: _Writer | None = None
        self._readers: list[_Reader] = []
        self._pid = os.getpid()
        self.is_closed = False

    async def write(self, operation: Operation[T]) -> T:
        """Run `operation` in a transaction; returns after the COMMIT.

        An exception of the operation's own undoes it and is raised here. When the caller is cancelled
        before the operation's turn, it has no effect at all.

        Raises:
            StoreClosedError: After `close()`.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        call = Call(operation, answer)
        self._queue_write(call)
        return await answered(call, answer)

    def write_blocking(self, operation: Operation[T]) -> T:
        """The same, for a thread without an event loop: it waits here."""
        answer: Future[T] = Future()
        self._queue_write(Call(operation, answer))
        return answer.result()

    async def read(self, operation: Operation[T]) -> T:
        """Run `operation` on a connection that cannot write.

        Raises:
            StoreClosedError: After `close()`.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        call = Call(operation, answer)
        with self._lock:
            self._check_usable()
            if not self._readers:
                self._readers = [_Reader(self._path, self._reads) for _ in range(_READERS)]
                for reader in self._readers:
                    weakref.finalize(self, reader.stop)
            self._reads.put(call)
        return await answered(call, answer)

    async def empty_journal(self) -> None:
        """Empty the journal (WAL), so that what was erased is nowhere in the files; after the writes
        that are queued now.

        Waits for readers of other processes for as long as for their locks.
        """
        await self.write(_journal_emptied)

    async def closed(self) -> None:
        """Do what is queued, then end the threads and close the file."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
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

    def _queue_write(self, call: Call[T]) -> None:
        with self._lock:
            self._check_usable()
            if self._writer is None:
                self._writer = _Writer(self._path, self._writes, is_durable=self._is_durable)
                weakref.finalize(self, self._writer.stop)
            self._writes.put(call)

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


class _Writer(threading.Thread):
    """The only thread that writes."""

    def __init__(self, path: Path, own: Calls, *, is_durable: bool) -> None:
        super().__init__(name="tenure-writer", daemon=True)
        self._calls = own
        self._path = path
        self._is_durable = is_durable
        self._connection: sqlite3.Connection | None = None
        self.start()

    def stop(self) -> None:
        self._calls.put(None)

    def run(self) -> None:
        is_stopping = False
        while not is_stopping:
            batch, is_stopping = next_batch(self._calls, threads=1, at_most=_BATCH_SIZE)
            self._serve(batch)
            del batch  # hold no caller's data while waiting
        if self._connection is not None:
            self._connection.close()

    def _serve(self, batch: list[Call[Any]]) -> None:
        """Do a batch, and answer all callers."""
        if writing := [call for call in batch if call.operation is not _journal_emptied]:
            self._write(writing)
        for call in batch:
            if call.operation is _journal_emptied and call.begins():
                try:
                    empty_journal(self._opened())
                except BaseException as exc:
                    call.error = translated(exc, self._path)
                answer_all([call])

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = open_for_writing(self._path, is_durable=self._is_durable)
        return self._connection

    def _write(self, batch: list[Call[Any]]) -> None:
        """Do a batch of operations in one transaction."""
        begun: list[Call[Any]] = []
        failure: BaseException | None = None
        try:
            _commit(self._opened(), batch, begun)
        # Whatever it is, the thread goes on and the callers hear of it.
        except BaseException as exc:
            failure = exc
            begun += [call for call in batch if call.begins()]
        _answer(begun, failure, self._path)


class _Reader(threading.Thread):
    """One of the threads that read; they share a queue."""

    def __init__(self, path: Path, shared: Calls) -> None:
        super().__init__(name="tenure-reader", daemon=True)
        self._calls = shared
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self.start()

    def stop(self) -> None:
        self._calls.put(None)

    def run(self) -> None:
        is_stopping = False
        while not is_stopping:
            batch, is_stopping = next_batch(self._calls, threads=_READERS, at_most=_READ_BATCH_SIZE)
            self._serve(batch)
            del batch  # hold no caller's data while waiting
        if self._connection is not None:
            self._connection.close()

    def _serve(self, batch: list[Call[Any]]) -> None:
        """Do a batch, and answer all callers."""
        begun: list[Call[Any]] = []
        failure: BaseException | None = None
        try:
            if self._connection is None:
                self._connection = open_for_reading(self._path)
            # One transaction, so that an operation of several queries sees one state.
            self._connection.execute("BEGIN")
            try:
                for call in batch:
                    if call.begins():
                        begun.append(call)
                        call.run(self._connection)
            finally:
                self._connection.execute("COMMIT")
        # Whatever it is, the thread goes on and the callers hear of it.
        except BaseException as exc:
            failure = exc
            begun += [call for call in batch if call.begins()]
        _answer(begun, failure, self._path)


def _commit(connection: sqlite3.Connection, batch: list[Call[Any]], begun: list[Call[Any]]) -> None:
    """Run a batch in one transaction, adding each operation that has begun to `begun`.

    An operation can be cancelled until the file's lock is there.
    """
    retried(lambda: connection.execute("BEGIN IMMEDIATE"))
    is_alone = len(batch) == 1  # then the transaction itself is all the protection it needs
    try:
        for call in batch:
            if not call.begins():
                continue
            begun.append(call)
            if not is_alone:
                connection.execute("SAVEPOINT operation")
            call.run(connection)
            if call.error is not None:
                if is_alone or not connection.in_transaction:  # a full disk ends it for all
                    raise call.error
                connection.execute("ROLLBACK TO operation")
            if not is_alone:
                connection.execute("RELEASE operation")
        retried(lambda: connection.execute("COMMIT"))
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _answer(begun: list[Call[Any]], failure: BaseException | None, path: Path) -> None:
    """Answer all calls that have begun; if the whole batch failed, with its error."""
    for call in begun:
        if (error := failure or call.error) is not None:
            call.error = translated(error, path)
    answer_all(begun)
