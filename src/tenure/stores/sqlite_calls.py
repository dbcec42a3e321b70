"""How an operation gets from an event loop to a thread of the SQLite driver, and its answer back.

Waking an event loop costs as much as a small query, so a thread answers all calls of a batch at once, with
one wake-up for each loop.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")

Operation: TypeAlias = Callable[[sqlite3.Connection], T]


class Call(Generic[T]):
    """An operation that waits for its turn in a thread, and somebody who waits for what comes of it."""

    def __init__(self, operation: Operation[T], answer: asyncio.Future[T] | Future[T]) -> None:
        """Make a call.

        Args:
            operation: What to do.
            answer: What a coroutine waits for, or a thread.
        """
        self.operation = operation
        self.answer = answer
        self.error: BaseException | None = None
        self.is_over = False
        self._result: T | None = None
        self._turn = threading.Lock()  # never released: whoever is first has it

    def begins(self) -> bool:
        """Begin, if it has not begun before and was not withdrawn; says whether it does."""
        return self._turn.acquire(blocking=False)

    def withdraw(self) -> bool:
        """Make sure that it never begins, if it has not begun; says whether that is so."""
        return self._turn.acquire(blocking=False)

    def run(self, connection: sqlite3.Connection) -> None:
        """Do the operation and keep what comes of it, for `answer_all` to tell."""
        try:
            self._result = self.operation(connection)
        except BaseException as exc:
            self.error = exc

    def tell(self) -> None:
        """Give the answer, in the thread of the loop that waits for it."""
        # Another type than T only when there is an error.
        answer: asyncio.Future[Any] | Future[Any] = self.answer
        self.is_over = True
        if answer.cancelled():
            return
        if self.error is not None:
            answer.set_exception(self.error)
        else:
            answer.set_result(self._result)


Calls: TypeAlias = "queue.SimpleQueue[Call[Any] | None]"
"""What waits for a thread; None ends one."""


async def answered(call: Call[T], answer: asyncio.Future[T]) -> T:
    """Return what comes of a call.

    When the caller is cancelled: an operation that has not begun never happens; one that has begun
    is waited for, so that the next read tells whether it was done.
    """
    try:
        return await answer  # not shielded, which would cost another turn of the loop
    except asyncio.CancelledError:
        if not call.withdraw() and not call.is_over:
            over: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            over.add_done_callback(lambda _: over.exception())  # nobody is left to be told
            call.answer = over
            await asyncio.wait({over})
        raise


def next_batch(calls: Calls, *, threads: int, at_most: int) -> tuple[list[Call[Any]], bool]:
    """Wait for a call, and return it with some that wait behind it; and whether to end after them.

    Args:
        calls: Where they wait.
        threads: How many threads take calls from there; each takes its share of what waits.
        at_most: How many calls to return.
    """
    batch: list[Call[Any]] = []
    call = calls.get()
    share = min(at_most, 1 + calls.qsize() // threads)
    with suppress(queue.Empty):
        while call is not None:
            batch.append(call)
            if len(batch) == share:
                break
            call = calls.get_nowait()
    return batch, call is None


def answer_all(calls: Iterable[Call[Any]]) -> None:
    """Tell everybody what came of their calls."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Call[Any]]] = {}
    for call in calls:
        if isinstance(call.answer, Future):
            call.tell()
        else:
            by_loop.setdefault(call.answer.get_loop(), []).append(call)
    for loop, its in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed, so nobody waits
            loop.call_soon_threadsafe(_tell_all, its)


def _tell_all(calls: Iterable[Call[Any]]) -> None:
    for call in calls:
        call.tell()
