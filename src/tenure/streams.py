"""Streams of an LLM session: what is taken from them step by step, and broken off with the block.

A `SessionStream` runs its generator in a task of its own, one step for each item that somebody asks for. So
the generator starts and ends in one task, as timeouts and cancel scopes in it need, and the session can
end it whatever its reader does: leave it, wait for it in another task, or keep it for too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Generic, TypeVar

T = TypeVar("T")


class SessionStream(AsyncIterator[T], Generic[T]):
    """An async iterator that ends with its session. Used after the block it raises `SessionClosedError`.

    Leaving an `async for` early does not close it: `aclose()` does, `contextlib.aclosing` does, and so does
    the end of the block.
    """

    def __init__(
        self,
        items: AsyncGenerator[T],
        require_open: Callable[[], object],
        handed_over: Callable[[T], object] | None = None,
    ) -> None:
        """Take items from a generator, once somebody asks for them.

        Args:
            items: What to iterate over.
            require_open: Raises when the session has ended.
            handed_over: Is told of each item that its reader gets; not of one that came too late.
        """
        self._items = items
        self._require_open = require_open
        self._handed_over = handed_over
        self._task: asyncio.Task[None] | None = None
        self._asked = asyncio.Semaphore(0)
        self._found: asyncio.Queue[tuple[T] | None] = asyncio.Queue()

    async def __anext__(self) -> T:
        self._require_open()
        if self._task is None:
            self._task = asyncio.create_task(self._produce())
            self._task.add_done_callback(lambda _: self._found.put_nowait(None))
        self._asked.release()
        try:
            found = await self._found.get()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        self._require_open()
        if found is not None:
            if self._handed_over is not None:
                self._handed_over(found[0])
            return found[0]
        self._found.put_nowait(None)  # for whoever asks once more
        if not self._task.cancelled():
            self._task.result()
        raise StopAsyncIteration

    def break_off(self) -> None:
        """Have the iteration end soon, without waiting for it."""
        # A second time would disturb it in cleaning up.
        if self._task is not None and not self._task.cancelling():
            self._task.cancel()

    async def aclose(self) -> None:
        """Break the iteration off, and wait until what it was doing has ended."""
        if self._task is None:
            await self._items.aclose()
        else:
            self.break_off()
            await asyncio.wait({self._task})
            if not self._task.cancelled():
                self._task.exception()  # whoever has left a stream does not want its errors

    async def _produce(self) -> None:
        async with aclosing(self._items) as items:
            await self._asked.acquire()
            async for item in items:
                self._found.put_nowait((item,))
                await self._asked.acquire()
