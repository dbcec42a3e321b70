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
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from tenure.errors import StoreClosedError
from tenure.stores.sqlite_calls import Call, Calls, Operation, answer_all, answered, next_batch
from tenure.stores.sqlite_file import (
    empty_journal,
    identity,
    open_for_reading,
    open_for_writing,
    retried,
    translated,
)

T = TypeVar("T")

# Operations in one transaction; a guess that bounds how long one COMMIT keeps others waiting.
_BATCH_SIZE = 256
_READERS = 2  # threads; more only compete for the two or so cores that matter
# Reads in a row of one of them; a guess, few enough to leave some to the others.
_READ_BATCH_SIZE = 16


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
        self._threads: list[_Writer | _Reader] = []
        self._pid = os.getpid()
        self.is_closed = False
        weakref.finalize(self, _stop, self._threads)
        _engines.add(self)

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

    def begin_write(self, operation: Operation[T]) -> Future[T]:
        """The same, queued at once and then done whoever waits for it, with an event loop or without."""
        answer: Future[T] = Future()
        self._queue_write(Call(operation, answer))
        return answer

    async def read(self, operation: Operation[T]) -> T:
        """Run `operation` on a connection that cannot write.

        Raises:
            StoreClosedError: After `close()`.
        """
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        call = Call(operation, answer)
        with self._lock:
            self._check_usable()
            if not any(isinstance(thread, _Reader) for thread in self._threads):
                self._threads += [_Reader(self._path, self._reads) for _ in range(_READERS)]
            self._reads.put(call)
        return await answered(call, answer)

    async def empty_journal(self) -> None:
        """Empty the journal (WAL), so that what was erased is nowhere in the files; after the writes
        that are queued now, and before those that are queued later.

        Waits for readers of other processes for as long as for their locks.
        """
        await self.write(_journal_emptied)

    def begin_emptying_journal(self) -> None:
        """The same, queued at once and then done whoever waits for it."""
        self.begin_write(_journal_emptied)

    async def closed(self) -> None:
        """Do what is queued, then end the threads and close the file."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            if self.is_closed:
                return
            self._forget_after_fork()
            self.is_closed = True
            threads = list(self._threads)
        _stop(threads)
        for thread in threads:
            thread.join()

    def rest(self) -> None:
        """Do what is queued, close the file and let nobody use it; until `go_on`, in whatever process.

        SQLite's locks are lost in a child process, which is not told: when the parent then closes the
        file, it removes the journal that the child writes to. So no connection may live through a fork.
        """
        self._lock.acquire()
        self._forget_after_fork()
        if threading.current_thread() in self._threads:
            return  # an operation forks; it cannot wait for itself
        _stop(self._threads)
        for thread in self._threads:
            thread.join()
        self._writer = None
        self._threads.clear()

    def go_on(self) -> None:
        """Open the file again on the next use."""
        self._lock.release()

    def _queue_write(self, call: Call[T]) -> None:
        with self._lock:
            self._check_usable()
            if self._writer is None:
                self._writer = _Writer(self._path, self._writes, is_durable=self._is_durable)
                self._threads.append(self._writer)
            self._writes.put(call)

    def _check_usable(self) -> None:
        if self.is_closed:
            raise StoreClosedError(
                f"The store {str(self._path)!r} was closed; open it again to use it."
            )
        self._forget_after_fork()

    def _forget_after_fork(self) -> None:
        """Start anew in a child process that an operation has forked: threads do not live on in it."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._writer = None
            self._threads.clear()
            self._writes, self._reads = queue.SimpleQueue(), queue.SimpleQueue()


def _stop(threads: list[_Writer | _Reader]) -> None:
    for thread in threads:
        thread.stop()


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_resting: list[Engine] = []
_forking = threading.Lock()


def _before_fork() -> None:
    _forking.acquire()
    _resting.extend(_engines)
    for engine in _resting:
        engine.rest()


def _after_fork() -> None:
    for engine in _resting:
        engine.go_on()
    _resting.clear()
    _forking.release()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )


class _Writer(threading.Thread):
    """The only thread that writes."""

    def __init__(self, path: Path, own: Calls, *, is_durable: bool) -> None:
        super().__init__(name="tenure-writer", daemon=True)
        self._calls = own
        self._path = path
        self._is_durable = is_durable
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
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
        """Do a batch in queue order, and answer all callers."""
        for is_emptying, calls in groupby(batch, lambda call: call.operation is _journal_emptied):
            if is_emptying:
                self._empty_journal([call for call in calls if call.begins()])
            else:
                self._write(list(calls))

    def _empty_journal(self, begun: list[Call[Any]]) -> None:
        failure: BaseException | None = None
        try:
            if begun:
                empty_journal(self._opened())
        except BaseException as exc:
            failure = exc
        _answer(begun, failure, self._path)

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and self._file != identity(self._path):
            self._connection.close()  # it was removed or replaced, and what is written to it is lost
            self._connection = None
        if self._connection is None:
            self._connection = open_for_writing(self._path, is_durable=self._is_durable)
            self._file = identity(self._path)
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
        self._file: tuple[int, int] | None = None
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
            connection = self._opened()
            # One transaction, so that an operation of several queries sees one state.
            connection.execute("BEGIN")
            try:
                for call in batch:
                    if call.begins():
                        begun.append(call)
                        call.run(connection)
            finally:
                if connection.in_transaction:  # an error of the disk ends it
                    connection.execute("COMMIT")
        # Whatever it is, the thread goes on and the callers hear of it.
        except BaseException as exc:
            failure = exc
            begun += [call for call in batch if call.begins()]
        _answer(begun, failure, self._path)

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and self._file != identity(self._path):
            self._connection.close()
            self._connection = None
        if self._connection is None:
            self._connection = open_for_reading(self._path)
            self._file = identity(self._path)
        return self._connection


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
