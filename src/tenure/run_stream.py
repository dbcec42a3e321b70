"""A run as it goes on: its events, in an `async for`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING

from tenure.events import Event, EventHandler, RunCompleted, RunFailed, RunResult
from tenure.models import TextDelta

if TYPE_CHECKING:
    from types import TracebackType


class RunStream:
    """The events of one run, as an async iterable; the last one is `RunCompleted`.

    Leaving the loop early cancels the run; leaving the `async with` block around it also waits until the
    run has ended. After that there are no more events.

    Attributes:
        result: What the run gave; None until it has completed.
    """

    def __init__(
        self, start: Callable[[EventHandler], Coroutine[object, object, RunResult]]
    ) -> None:
        self.result: RunResult | None = None
        self._start = start
        self._task: asyncio.Task[RunResult] | None = None
        self._is_over = False
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(0)  # the run goes on only as fast as its events are taken

    async def __aiter__(self) -> AsyncGenerator[Event]:
        # One for each loop, so that it is let go with the loop, and then ends the run.
        try:
            while (event := await self._next()) is not None:
                yield event
        finally:
            await self._end()

    async def text(self) -> AsyncIterator[str]:
        """Iterate over the pieces of the replies' text only."""
        async with self:
            async for event in self:
                if isinstance(event, TextDelta):
                    yield event.text

    async def __aenter__(self) -> RunStream:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end()

    async def _next(self) -> Event | None:
        """The next event; None at the end. Raises what the run has raised."""
        if self._is_over:
            return None
        if self._task is None:
            self._task = asyncio.create_task(self._start(self._put))
            self._task.add_done_callback(self._note_end)
        self._room.release()
        event = await self._events.get()
        if event is None:
            self._is_over = True
            await self._task
        elif isinstance(event, RunCompleted):
            self.result = event.result
        return event

    async def _put(self, event: Event) -> None:
        if not isinstance(event, RunFailed):  # the exception itself says it
            self._events.put_nowait(event)
            await self._room.acquire()

    def _note_end(self, task: asyncio.Task[RunResult]) -> None:
        if not task.cancelled():
            task.exception()  # is raised by `_next`, or the reader has left
        self._events.put_nowait(None)

    async def _end(self) -> None:
        self._is_over = True
        if self._task is not None:
            if not self._task.cancelling():  # a second time would disturb it in cleaning up
                self._task.cancel()
            await asyncio.wait({self._task})
