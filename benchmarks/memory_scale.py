"""How long it takes to add memories and to find them again, next to the least that it could take.

    python -m benchmarks.memory_scale [--sizes 1000 10000 100000]

Texts are 25 words of a Zipf distribution over 20,000, in sessions of 50; vectors are random, of 384
dimensions and unit norm; queries are eight words of the same distribution, with their vectors given. All of
it comes from one seed. The peers get the same vectors: `np.vecdot` over them all, and sqlite-vec, by way of
apsw, since many Pythons cannot load an extension. `python -m benchmarks` takes the rows of `ALL` from here.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import apsw
import numpy as np
import sqlite_vec
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.timing import Row, in_ms
from tenure import MemoryFilter, NewMemory, Owner
from tenure.stores.memory_base import Embedded, EmbedderRecord, MemoryQuery, MemoryStore
from tenure.stores.sqlite import SQLiteStore
from tenure.terms import query_terms

DIMENSIONS = 384
RANDOM = EmbedderRecord(identity="random", name="", dimensions=DIMENSIONS)
OWNER = Owner(agent_id="benchmark")
BATCH = 500
QUERIES = 40


@dataclass(frozen=True)
class Corpus:
    """What is stored and asked."""

    texts: list[str]
    vectors: NDArray[np.float32]
    queries: list[str]

    def asked(self, number: int, **fields: object) -> MemoryQuery:
        """A query with its vector, ten of the best wanted."""
        place = number % len(self.queries)
        fields = {"limit": 10, **fields}
        return MemoryQuery(
            text=self.queries[place],
            vector=self.vectors[place],
            identity=RANDOM.identity,
            **fields,  # type: ignore[arg-type]
        )


def corpus(size: int) -> Corpus:
    """Make so many texts and vectors; the same ones every time."""
    random = np.random.default_rng(0)
    words = np.array([f"w{n}" for n in range(20_000)])
    shares = 1 / np.arange(1, len(words) + 1)
    shares /= shares.sum()
    picked = words[random.choice(len(words), (size, 25), p=shares)]
    asked = words[random.choice(len(words), (QUERIES, 8), p=shares)]
    vectors = random.normal(size=(size, DIMENSIONS)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Corpus([" ".join(row) for row in picked], vectors, [" ".join(row) for row in asked])


async def filled(path: Path, made: Corpus) -> SQLiteStore:
    """A store with all of it."""
    store = SQLiteStore(path)
    memories = store.memories(OWNER)
    for start in range(0, len(made.texts), BATCH):
        new = [
            NewMemory(content=text, session_id=f"s{n // 50}", position=n)
            for n, text in enumerate(made.texts[start : start + BATCH], start)
        ]
        added = await memories.add(new)
        embedded = [
            Embedded(id=memory.id, content_hash=memory.content_hash, vector=vector)
            for memory, vector in zip(added, made.vectors[start:], strict=False)
        ]
        await memories.set_vectors(RANDOM, embedded)
    return store


async def searched(memories: MemoryStore, queries: Sequence[MemoryQuery]) -> float:
    """The median time of these searches, after one of each, in seconds."""
    times: list[float] = []
    for _ in range(2):
        times = []
        for query in queries:
            start = time.perf_counter()
            await memories.search(query)
            times.append(time.perf_counter() - start)
    return median(times)


def timed(work: Callable[[int], object], rounds: int = QUERIES) -> float:
    """The median time of some work, in seconds."""
    times: list[float] = []
    for number in range(rounds):
        start = time.perf_counter()
        work(number)
        times.append(time.perf_counter() - start)
    return median(times)


def bare_scan(made: Corpus) -> float:
    """The cosines of all vectors with one, in NumPy."""
    return timed(lambda n: np.vecdot(made.vectors, made.vectors[n]))


def bare_postings(path: Path, made: Corpus) -> float:
    """The SQL query for which memories have the words of a query."""
    sql = "SELECT number, tf FROM memory_postings WHERE tenant = '' AND owner = 1 AND term = ?"
    with closing(sqlite3.connect(path)) as connection:
        return timed(
            lambda n: [
                connection.execute(sql, (term,)).fetchall() for term in query_terms(made.queries[n])
            ]
        )


def reading(made: Corpus) -> float:
    """Reading the bytes of all vectors, on one core: the fastest of three ways to look at each once."""
    whole = made.vectors.view(np.uint64).reshape(-1)
    ways = (np.bitwise_or.reduce, np.add.reduce, np.maximum.reduce)
    return min(timed(lambda _, way=way: way(whole), 10) for way in ways)


def by_sqlite_vec(made: Corpus) -> float:
    """The ten nearest by sqlite-vec, in RAM."""
    connection = apsw.Connection(":memory:")
    connection.enable_load_extension(True)
    connection.load_extension(sqlite_vec.loadable_path())
    connection.execute(f"CREATE VIRTUAL TABLE v USING vec0(vector float[{DIMENSIONS}])")
    with connection:
        connection.executemany(
            "INSERT INTO v (rowid, vector) VALUES (?, ?)",
            ((n, vector.tobytes()) for n, vector in enumerate(made.vectors)),
        )
    nearest = "SELECT rowid FROM v WHERE vector MATCH ? AND k = 10"
    taken = timed(
        lambda n: connection.execute(nearest, (made.vectors[n].tobytes(),)).fetchall(), 20
    )
    connection.close()
    return taken


async def search_among_ten_thousand(folder: Path, rounds: int) -> Row:
    """A search of both legs in a warm owner of 10,000 memories, and its bare parts."""
    made = corpus(10_000)
    store = await filled(folder / "m.db", made)
    memories = store.memories(OWNER)
    ours = await searched(memories, [made.asked(n) for n in range(QUERIES)])
    scan, postings = bare_scan(made), bare_postings(folder / "m.db", made)
    await store.close()
    return Row(
        work="search 10,000 memories / bare scan and postings",
        measured=in_ms(ours, scan + postings),
        value=ours / (scan + postings),
        at_most=3,
    )


async def nearest_of_a_hundred_thousand(folder: Path, rounds: int) -> Row:
    """The vector leg over 100,000 memories, and reading their bytes."""
    made = corpus(100_000)
    store = await filled(folder / "m.db", made)
    queries = [made.asked(n, metric="cosine") for n in range(QUERIES)]
    ours = await searched(store.memories(OWNER), queries)
    bytes_read, extension = reading(made), by_sqlite_vec(made)
    await store.close()
    return Row(
        work="the nearest of 100,000 x 384 / reading the bytes",
        measured=f"{in_ms(ours, bytes_read)}, sqlite-vec {in_ms(extension)}",
        value=ours / bytes_read,
        at_most=2,
    )


ALL = [search_among_ten_thousand, nearest_of_a_hundred_thousand]


async def measured(size: int, folder: Path) -> tuple[str, ...]:
    """A row of the table."""
    made = corpus(size)
    start = time.perf_counter()
    store = await filled(folder / f"{size}.db", made)
    adding = time.perf_counter() - start
    memories = store.memories(OWNER)
    warm = await searched(memories, [made.asked(n) for n in range(QUERIES)])
    label = MemoryFilter(session_id="s3")
    filtered = await searched(memories, [made.asked(n, filter=label) for n in range(QUERIES)])
    await store.close()
    again = SQLiteStore(folder / f"{size}.db")
    start = time.perf_counter()
    await again.memories(OWNER).search(made.asked(0))
    cold = time.perf_counter() - start
    await again.close()
    scan, postings = bare_scan(made), bare_postings(folder / f"{size}.db", made)
    times = (warm, filtered, cold, scan, postings, by_sqlite_vec(made))
    return f"{size:,}", f"{size / adding:,.0f}", *(f"{taken * 1e3:,.2f}" for taken in times)


def main() -> int:
    """Parse the command line, print the table, return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_scale", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"))
    args = parser.parse_args()
    table = Table(
        "memories", "added / s", "search ms", "in a session", "first search", "np.vecdot",
        "postings", "sqlite-vec",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="tenure-bench-", dir=args.disk) as folder:
        for size in args.sizes:
            table.add_row(*asyncio.run(measured(size, Path(folder))))
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
