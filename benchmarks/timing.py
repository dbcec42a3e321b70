"""Measuring things in turns, and the disk."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison, for the table.

    Args:
        work: What was done.
        measured: What it took, in words.
        ratio: What `at_most` or `at_least` bounds; exactly one of the two is given.
        at_most: What the ratio may not exceed.
        at_least: What the ratio must reach.
    """

    work: str
    measured: str
    ratio: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def holds(self) -> bool:
        """Whether it is fast enough."""
        if self.at_most is not None:
            return self.ratio <= self.at_most
        assert self.at_least is not None
        return self.ratio >= self.at_least

    @property
    def must_be(self) -> str:
        """The bound, in words."""
        return f"<= {self.at_most}" if self.at_most is not None else f">= {self.at_least}"


def in_ms(*seconds: float) -> str:
    """Return times in words, slash between them."""
    return " / ".join(f"{taken * 1e3:.2f}" for taken in seconds) + " ms"


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


def median_sync(folder: Path, rounds: int) -> float:
    """Return the median seconds that one more page of a file takes to reach the disk."""
    taken: list[float] = []
    with (folder / "pages").open("wb", buffering=0) as file:
        for _ in range(rounds):
            start = time.perf_counter()
            file.write(bytes(4096))
            os.fsync(file)
            taken.append(time.perf_counter() - start)
    return median(taken)
