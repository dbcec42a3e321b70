"""Run every benchmark and print a table: `make bench`.

Each row compares things that are measured in turns in the same run, so that a noisy machine disturbs all of
them alike, and says what is the goal: a ratio, unless there is a unit. A row without a goal is there to be
known. With `--strict` the exit code is 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import sqlite3
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import conversations, memory_scale, peers, persistence, recall, views
from benchmarks.timing import Row, in_ms, median_sync

BENCHMARKS = [
    *conversations.ALL,
    *views.ALL,
    *memory_scale.ALL,
    *recall.ALL,
    *persistence.ALL,
    *peers.ALL,
]


async def measured(rounds: int, disk: Path) -> list[Row]:
    """Run all benchmarks, each in a new folder on this disk."""
    rows: list[Row] = []
    for benchmark in BENCHMARKS:
        with tempfile.TemporaryDirectory(prefix="tenure-bench-", dir=disk) as folder:
            rows.append(await benchmark(Path(folder), rounds))
    return rows


def main() -> int:
    """Parse the command line, print the table, return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="how often each thing is measured")
    parser.add_argument(
        "--disk",
        type=Path,
        default=Path("/var/tmp"),  # unlike /tmp, nowhere kept in RAM
        help="the folder on whose disk to measure",
    )
    parser.add_argument("--strict", action="store_true", help="fail when a goal is missed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tenure-bench-", dir=args.disk) as folder:
        sync = median_sync(Path(folder), args.rounds)
    rows = asyncio.run(measured(args.rounds, args.disk))
    table = Table("work", "measured (median)", "ratio or value", "goal", "holds")
    for row in rows:
        holds = {True: "yes", False: "NO", None: "-"}[row.holds]
        table.add_row(row.work, row.measured, row.result, row.must_be, holds)
    console = Console(width=120)
    console.print(table)
    console.print(
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"{platform.machine()} {platform.system()}; the disk takes {in_ms(sync)} to have a page"
    )
    return 1 if args.strict and any(row.holds is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
