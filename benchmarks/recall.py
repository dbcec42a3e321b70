"""What a run with memory costs, next to its parts."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from benchmarks.conversations import fill, turn
from benchmarks.timing import Row, in_ms, medians_in_turns
from tenure import Agent, ChatMemory, LongTermMemory, Memories, NewMemory, Owner, Participant
from tenure.stores.sqlite import SQLiteStore
from tenure.testing import ScriptedModel

MEMORIES = 10_000
WINDOW = 50
BATCH = 500


def told(number: int) -> str:
    """What one memory says: words of its own, and some that many have."""
    return f"Note {number}: the parcel {number % 97} of town {number % 31} is in room {number % 13}"


async def remembering(store: SQLiteStore, name: str, memories: int) -> None:
    """Have an agent remember so many texts."""
    async with Memories.open(store, agent_id=name, embedder=None) as opened:
        for first in range(0, memories, BATCH):
            await opened.add_many([told(n) for n in range(first, first + BATCH)])


def agent_on(store: SQLiteStore, name: str, rounds: int) -> Agent:
    """An agent with both kinds of memory, and replies for so many runs."""
    return Agent(
        model=ScriptedModel([f"Reply {n}." for n in range(rounds)]),
        name=name,
        store=store,
        features=[ChatMemory(store).window_size(WINDOW), LongTermMemory(embedder=None)],
    )


async def run_and_its_parts(folder: Path, rounds: int) -> Row:
    """A run over 10,000 messages and memories, next to a bare run, a load, a search and an append."""
    store = SQLiteStore(folder / "long.db")
    await fill(store, "long", 5_000)
    await remembering(store, "long", MEMORIES)
    agent, bare = agent_on(store, "long", rounds), Agent(model=ScriptedModel(["ok"] * rounds))
    memories, owner, numbers = agent.memory, Owner(agent_id="part"), count()
    await remembering(store, "part", MEMORIES)

    def question(number: int) -> str:
        return f"In which room is the parcel {number % 97} of town {number % 31}?"

    async def whole(number: int) -> object:
        return await agent.run(question(number), "long")

    async def bare_run(number: int) -> object:
        return await bare.run(question(number))

    async def load(_: int) -> object:
        return await store.read("long", last=WINDOW)

    async def search(number: int) -> object:
        return await memories.search(question(number), limit=WINDOW)

    async def append(number: int) -> object:
        messages = turn(next(numbers))
        new = [NewMemory(content=f"{m.text} {number}", session_id="part") for m in messages]
        by = Participant(owner=owner, memories=new)
        return await store.append("part", messages, run_id=f"r{number}", by=by)

    took, *parts = await medians_in_turns(rounds, whole, bare_run, load, search, append)
    await store.close()
    return Row(
        work="a run with memory, 10,000 messages and memories / bare run + load + search + append",
        measured=in_ms(took, *parts),
        value=took / sum(parts),
        at_most=1.5,
    )


async def long_and_short(folder: Path, rounds: int) -> Row:
    """The same run on a long conversation and on a short one."""
    store = SQLiteStore(folder / "both.db")
    agents: list[Agent] = []
    for name, turns in (("long", 5_000), ("short", 50)):
        await fill(store, name, turns)
        await remembering(store, name, MEMORIES)
        agents.append(agent_on(store, name, rounds))
    long, short = agents

    async def on_long(number: int) -> object:
        return await long.run(f"Where is parcel {number % 97}?", "long")

    async def on_short(number: int) -> object:
        return await short.run(f"Where is parcel {number % 97}?", "short")

    taken = await medians_in_turns(rounds, on_long, on_short)
    await store.close()
    return Row(
        work="the same run, 10,000 messages / 100 messages",
        measured=in_ms(*taken),
        value=taken[0] / taken[1],
        at_most=1.3,
    )


ALL = [run_and_its_parts, long_and_short]
