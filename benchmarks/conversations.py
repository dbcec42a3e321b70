"""How the conversation log behaves as conversations grow."""

from __future__ import annotations

from pathlib import Path

from benchmarks.timing import Row, medians_in_turns
from tenure import Message, assistant, user
from tenure.stores.sqlite import SQLiteStore


def turn(number: int) -> list[Message]:
    """One question and its answer, of ordinary length."""
    return [
        user(f"question {number} " + "word " * 30),
        assistant(f"answer {number} " + "word " * 60),
    ]


async def append_to_a_long_conversation(folder: Path, rounds: int) -> Row:
    """Append one turn to a conversation of 10,000 messages, and to one of 10."""
    store = SQLiteStore(folder / "chat.db")
    for start in range(0, 5_000, 500):
        batch = [message for n in range(start, start + 500) for message in turn(n)]
        await store.append("long", batch)
    for round_ in range(rounds):  # a new short conversation for each round, so that it stays short
        await store.append(f"short{round_}", [message for n in range(5) for message in turn(n)])
    short, long = await medians_in_turns(
        rounds,
        lambda n: store.append(f"short{n}", turn(n)),
        lambda n: store.append("long", turn(n)),
    )
    await store.close()
    return Row(
        work="append a turn to 10,000 messages / to 10",
        measured=f"{long * 1e3:.3f} ms / {short * 1e3:.3f} ms",
        ratio=long / short,
        limit=1.3,
    )


ALL = [append_to_a_long_conversation]
