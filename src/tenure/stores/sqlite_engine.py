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
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

from tenure.errors import StoreClosedError
from tenure.stores.sqlite_file import (
    empty_journal,
    identity,
    open_for_reading,
    open_for_writing,
    retried,
    translated,
)

T = TypeVar("T")
_Operation: TypeAlias = Callable[[sqlite3.Connection], object]
_Item: TypeAlias = tuple[_Operation, "Future[object]"]
_Answers: TypeAlias = dict["Future[object]", tuple[object, BaseException | None]]

_BATCH_SIZE = (
    256  # operations in one transaction; guess: bounds how long one COMMIT keeps others waiting
)
_READERS = 2  # threads; more only compete for the two or so cores that matter


def _journal_emptied(_: sqlite3.Connection) -> None:
    """Stands in the queue for what cannot be done in a transaction."""


class Engine:
    """A SQLite file, opened on first use, by threads of its own."""

    def __init__(self, path: Path, *, is_durable: bool) -> None:
        self._path = path
        self._is_durable = is_durable
        self._lock = threading.Lock()
        self._writes: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._writer: _Writer | None = None
        self._threads: list[_Writer | _Reader] = []
        self._pid = os.getpid()
        self.is_closed = False
        weakref.finalize(self, _stop, self._threads)
        _engines.add(self)

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
                self._threads.append(self._writer)
            return _queued(self._writes, operation)

    def read(self, operation: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Run `operation` on a connection that cannot write.

        Raises:
            StoreClosedError: After `close()`.
        """
        with self._lock:
            self._check_usable()
            if not any(isinstance(thread, _Reader) for thread in self._threads):
                self._threads += [_Reader(self._path, self._reads) for _ in range(_READERS)]
            return _queued(self._reads, operation)

    def empty_journal(self) -> Future[None]:
        """Empty the journal (WAL), so that what was erased is nowhere in the files; after the writes
        that are queued now.

        Waits for readers of other processes for as long as for their locks.
        """
        with self._lock:
            self._check_usable()
            future: Future[None] = Future()
            self._writes.put((_journal_emptied, cast("Future[object]", future)))
            return future

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
        self._file: tuple[int, int] | None = None
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
        """Do a batch, and answer all callers."""
        erasing = [future for operation, future in batch if operation is _journal_emptied]
        writing = [item for item in batch if item[0] is not _journal_emptied]
        if writing:
            self._write(writing)
        for future in erasing:
            if future.set_running_or_notify_cancel():
                try:
                    empty_journal(self._opened())
                    future.set_result(None)
                except BaseException as exc:
                    future.set_exception(translated(exc, self._path))

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and self._file != identity(self._path):
            self._connection.close()  # it was removed or replaced, and what is written to it is lost
            self._connection = None
        if self._connection is None:
            self._connection = open_for_writing(self._path, is_durable=self._is_durable)
            self._file = identity(self._path)
        return self._connection

    def _write(self, batch: list[_Item]) -> None:
        """Do a batch of operations in one transaction."""
        answers: _Answers = {}
        failure: BaseException | None = None
        try:
            _commit(self._opened(), batch, answers)
        # Whatever it is, the thread goes on and the callers hear of it.
        except BaseException as exc:
            failure = exc
            # One that was cancelled, before or in the batch, is nobody's to answer.
            left = [f for _, f in batch if f not in answers and not f.cancelled()]
            answers |= {f: (None, None) for f in left if f.set_running_or_notify_cancel()}
        for future, (result, error) in answers.items():
            if (error := failure or error) is not None:
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
        self._file: tuple[int, int] | None = None
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
            connection = self._opened()
            # One transaction, so that an operation of several queries sees one state.
            connection.execute("BEGIN")
            try:
                result = operation(connection)
            finally:
                if connection.in_transaction:  # an error of the disk ends it
                    connection.execute("COMMIT")
            future.set_result(result)
        # Whatever it is, the thread goes on and the caller hears of it.
        except BaseException as exc:
            future.set_exception(translated(exc, self._path))

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and self._file != identity(self._path):
            self._connection.close()
            self._connection = None
        if self._connection is None:
            self._connection = open_for_reading(self._path)
            self._file = identity(self._path)
        return self._connection


def _commit(connection: sqlite3.Connection, batch: list[_Item], answers: _Answers) -> None:
    """Run a batch in one transaction, adding each operation's result or error to `answers`.

    An operation can be cancelled until the file's lock is there.
    """
    retried(lambda: connection.execute("BEGIN IMMEDIATE"))
    try:
        for operation, future in batch:
            if not future.set_running_or_notify_cancel():
                continue
            answers[future] = (None, None)
            is_alone = len(batch) == 1  # then the transaction itself is all the protection it needs
            if not is_alone:
                connection.execute("SAVEPOINT operation")
            try:
                answers[future] = (operation(connection), None)
            except BaseException as exc:
                answers[future] = (None, exc)
                if is_alone or not connection.in_transaction:  # a full disk ends it for all
                    raise
                connection.execute("ROLLBACK TO operation")
            if not is_alone:
                connection.execute("RELEASE operation")
        retried(lambda: connection.execute("COMMIT"))
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
