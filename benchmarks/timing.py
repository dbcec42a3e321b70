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
        value: What `at_most` or `at_least` bounds; without either it has no goal and is only told.
        unit: That of the value and its bound; empty for a ratio.
        at_most: What the value may not exceed.
        at_least: What the value must reach.
    """

    work: str
    measured: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def result(self) -> str:
        """The value, in words."""
        return f"{self.value:.2f} {self.unit}".rstrip()

    @property
    def holds(self) -> bool | None:
        """Whether it is fast enough; None without a goal."""
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least

    @property
    def must_be(self) -> str:
        """The bound, in words."""
        if self.at_most is None and self.at_least is None:
            return "-"
        bound = f">= {self.at_least}" if self.at_most is None else f"<= {self.at_most}"
        return f"{bound} {self.unit}".rstrip()


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
