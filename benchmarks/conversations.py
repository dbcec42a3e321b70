"""How the conversation log behaves as conversations grow, and as many write at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiosqlite

from benchmarks.timing import Row, in_ms, medians_in_turns
from tenure import Message, assistant, user
from tenure.stores.sqlite import SQLiteStore

TASKS = 32
APPENDS = 4  # of each task in a round


def texts(number: int) -> tuple[str, str]:
    """The words of one question and its answer, of ordinary length."""
    return f"question {number} " + "word " * 30, f"answer {number} " + "word " * 60


def turn(number: int) -> list[Message]:
    """One question and its answer."""
    question, answer = texts(number)
    return [user(question), assistant(answer)]


async def fill(store: SQLiteStore, session_id: str, turns: int) -> None:
    """Append so many turns, in large batches."""
    for start in range(0, turns, 500):
        numbers = range(start, min(start + 500, turns))
        await store.append(session_id, [message for n in numbers for message in turn(n)])


async def long_and_short(folder: Path, rounds: int, *, short_turns: int) -> SQLiteStore:
    """A store with a conversation `long` of 10,000 messages, and a short one for each round."""
    store = SQLiteStore(folder / "chat.db")
    await fill(store, "long", 5_000)
    for round_ in range(rounds):  # a new one for each round, so that it stays short
        await fill(store, f"short{round_}", short_turns)
    return store


async def append_to_a_long_conversation(folder: Path, rounds: int) -> Row:
    """Append one turn to a conversation of 10,000 messages, and to one of 10."""
    store = await long_and_short(folder, rounds, short_turns=5)
    long, short = await medians_in_turns(
        rounds,
        lambda n: store.append("long", turn(n)),
        lambda n: store.append(f"short{n}", turn(n)),
    )
    await store.close()
    return Row(
        work="append a turn to 10,000 messages / to 10",
        measured=in_ms(long, short),
        value=long / short,
        at_most=1.3,
    )


async def load_the_end_of_a_long_conversation(folder: Path, rounds: int) -> Row:
    """Load the last 20 messages of 100,000, and of 100."""
    store = SQLiteStore(folder / "chat.db")
    await fill(store, "long", 50_000)
    await fill(store, "short", 50)
    long, short = await medians_in_turns(
        rounds,
        lambda _: store.read("long", last=20),
        lambda _: store.read("short", last=20),
    )
    await store.close()
    return Row(
        work="load the last 20 of 100,000 messages / of 100",
        measured=in_ms(long, short),
        value=long / short,
        at_most=2,
    )


async def append_durably_from_many_tasks(folder: Path, rounds: int) -> Row:
    """Append 128 turns, each of which waits for the disk: from 32 tasks, and in an aiosqlite loop."""
    store = SQLiteStore(folder / "chat.db", is_durable=True)
    insert = "INSERT INTO messages (session_id, body) VALUES (?, ?)"
    async with aiosqlite.connect(folder / "loop.db") as connection:
        await connection.execute("PRAGMA journal_mode = WAL")
        await connection.execute("PRAGMA synchronous = FULL")
        await connection.execute(
            "CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT, body TEXT)"
        )

        async def task(number: int) -> None:
            for _ in range(APPENDS):
                await store.append(f"task{number}", turn(number))

        async def ours(_: int) -> None:
            await asyncio.gather(*(task(number) for number in range(TASKS)))

        async def loop(_: int) -> None:
            for number in range(TASKS * APPENDS):
                await connection.executemany(insert, [(str(number), t) for t in texts(number)])
                await connection.commit()

        looped, grouped = await medians_in_turns(max(rounds // 10, 10), loop, ours)
    await store.close()
    return Row(
        work="128 durable appends: aiosqlite loop / 32 tasks",
        measured=in_ms(looped, grouped),
        value=looped / grouped,
        at_least=10,
    )


ALL = [
    append_to_a_long_conversation,
    append_durably_from_many_tasks,
    load_the_end_of_a_long_conversation,
]
