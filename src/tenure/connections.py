"""Which event loop has which model or embedder of pydantic-ai open, and when each is closed.

HTTP connections belong to the loop that opened them. `Connections` enters a model once in each loop
that uses it, and leaves it when that loop shuts down its generators (`asyncio.run` does so at its end,
`anyio.run` and `asyncio.Runner` too), or when the `Connections` themselves are let go before. Only
`providers.py` needs this.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from weakref import finalize

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task
    from collections.abc import AsyncGenerator, Callable
    from types import TracebackType


class Enterable(Protocol):
    """What has connections from `__aenter__` on until `__aexit__`."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
        /,
    ) -> object: ...


M = TypeVar("M", bound=Enterable)

_GRACE_S = 1.0
"""From letting go to closing; a guess. A model is often let go as the last thing before its loop ends,
and a loop that ends cancels what is just closing, after which nobody can close it."""


@dataclass(slots=True, eq=False)
class _Opened(Generic[M]):
    """One model in one loop."""

    model: M
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_entered: bool = False

    async def enter(self) -> None:
        async with self.lock:
            if not self.is_entered:
                await _end_of_this_loop(self)
                await self.model.__aenter__()
                self.is_entered = True

    async def leave(self) -> None:
        async with self.lock:
            if self.is_entered:
                self.is_entered = False
                await self.model.__aexit__(None, None, None)


class Connections(Generic[M]):
    """A model, open in each event loop that asks for it. Safe in threads."""

    def __init__(self, first: M, another: Callable[[], M] | None) -> None:
        """Keep a model; nothing is opened yet.

        Args:
            first: The model of the first loop.
            another: Makes one for each further loop. Without it all loops share the first, and with
                it one HTTP client, so that no two of them may run at once.
        """
        self._first = first
        self._another = another
        self._opened: dict[AbstractEventLoop, _Opened[M]] = {}
        self._is_fresh = True
        self._guard = Lock()
        finalize(self, _let_go, self._opened).atexit = False

    async def model(self) -> M:
        """Return the model of the running loop, entered."""
        loop = asyncio.get_running_loop()
        with self._guard:
            dead = [self._opened.pop(known) for known in list(self._opened) if known.is_closed()]
            if loop not in self._opened:
                self._opened[loop] = _Opened(self._for_new_loop())
            opened = self._opened[loop]
        for other in dead:
            with suppress(RuntimeError):  # a loop closed by hand takes its connections with it
                await other.leave()
        await opened.enter()
        return opened.model

    def _for_new_loop(self) -> M:
        if self._is_fresh or self._another is None:
            self._is_fresh = False
            return self._first
        return self._another()


# --- the end of a loop ---------------------------------------------------------------------------


class _LoopEnd:
    """Leaves what is open when a loop ends: a loop that ends closes its generators."""

    def __init__(self) -> None:
        self.opened: set[_Opened[Any]] = set()
        self.leaving: set[Task[None]] = set()
        self.is_over = False
        self.generator = self._wait()

    async def _wait(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self.is_over = True
            leaving = [opened.leave() for opened in self.opened]
            # Nobody is left to be told that a connection would not close.
            await asyncio.gather(*self.leaving, *leaving, return_exceptions=True)

    def leave_later(self, opened: _Opened[Any]) -> None:
        asyncio.get_running_loop().call_later(_GRACE_S, self._leave_now, opened)

    def _leave_now(self, opened: _Opened[Any]) -> None:
        if not self.is_over:
            task = asyncio.get_running_loop().create_task(self._leave(opened))
            self.leaving.add(task)
            task.add_done_callback(self.leaving.discard)

    async def _leave(self, opened: _Opened[Any]) -> None:
        await opened.leave()
        self.opened.discard(opened)


_ends: dict[AbstractEventLoop, _LoopEnd] = {}
_ends_guard = Lock()


async def _end_of_this_loop(opened: _Opened[Any]) -> None:
    """Have a model left at the end of the running loop."""
    loop = asyncio.get_running_loop()
    with _ends_guard:
        for known in [known for known in _ends if known.is_closed()]:
            del _ends[known]
        end, is_new = _ends.get(loop), loop not in _ends
        if end is None:
            end = _ends[loop] = _LoopEnd()
    end.opened.add(opened)
    if is_new:
        await anext(end.generator)  # from here on the loop knows it


def _let_go(opened: dict[AbstractEventLoop, _Opened[Any]]) -> None:
    """Leave what nobody holds any more; may be called in any thread."""
    for loop, item in opened.items():
        end = _ends.get(loop)
        if end is not None:
            with suppress(RuntimeError):  # the loop has just been closed
                loop.call_soon_threadsafe(end.leave_later, item)
