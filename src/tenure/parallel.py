"""Running one function over many items at once, a few at a time.

The libraries for this are under licences that do not fit ours (aiostream) or take all items at once
(`asyncio.gather`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from contextlib import aclosing
from enum import Enum, auto
from typing import TypeVar, cast

A = TypeVar("A")
R = TypeVar("R")


class _End(Enum):
    END = auto()


async def mapped(
    function: Callable[[A], Awaitable[R]],
    items: Iterable[A] | AsyncIterable[A],
    *,
    concurrency: int,
    ordered: bool,
) -> AsyncGenerator[R]:
    """Yield the results of `function` for each item, as they finish or in the order of the items.

    At most `concurrency` calls are running or have a result that is not yielded yet; the next item is
    only taken when there is room for it. When a call or the items raise, or this generator is closed,
    the calls that are still running are cancelled and waited for, and `items` is closed if it is a
    generator, too.
    """
    source = _iterated(items)
    running: list[asyncio.Task[R]] = []  # in the order of their items
    fetching: asyncio.Task[A | _End] | None = None
    is_exhausted = False
    try:
        while True:
            if fetching is None and not is_exhausted and len(running) < concurrency:
                fetching = asyncio.ensure_future(anext(source, _End.END))
            awaited = {*(running[:1] if ordered else running), *([fetching] if fetching else [])}
            if not awaited:
                return
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if fetching is not None and fetching.done():
                item, fetching = fetching.result(), None
                if isinstance(item, _End):
                    is_exhausted = True
                else:
                    running.append(asyncio.ensure_future(function(item)))
            while (task := _finished(running[:1] if ordered else running)) is not None:
                running.remove(task)
                yield task.result()
    finally:
        left: list[asyncio.Task[object]] = [*running, *([fetching] if fetching else [])]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await source.aclose()


def _finished(tasks: Iterable[asyncio.Task[R]]) -> asyncio.Task[R] | None:
    return next((task for task in tasks if task.done()), None)


async def _iterated(items: Iterable[A] | AsyncIterable[A]) -> AsyncGenerator[A]:
    if isinstance(items, AsyncGenerator):
        async with aclosing(cast("AsyncGenerator[A]", items)) as items:
            async for item in items:
                yield item
    elif isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
