"""Measuring two things in turns."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison, for the table.

    Args:
        work: What was done.
        measured: What it took, in words.
        ratio: What must not be larger than `limit`.
        limit: What must hold.
    """

    work: str
    measured: str
    ratio: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether it is fast enough."""
        return self.ratio <= self.limit


async def medians_in_turns(
    rounds: int, *works: Callable[[int], Awaitable[object]]
) -> tuple[float, ...]:
    """Run each work once a round, in turns, and return the median seconds of each.

    Args:
        rounds: How often; the first tenth warms up and does not count.
        works: Each is given the number of the round.
    """
    seconds: list[list[float]] = [[] for _ in works]
    for round_ in range(rounds):
        for work, taken in zip(works, seconds, strict=True):
            start = time.perf_counter()
            await work(round_)
            taken.append(time.perf_counter() - start)
    return tuple(median(taken[rounds // 10 :]) for taken in seconds)
