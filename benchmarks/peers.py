"""Storing a turn and loading the last 20 messages, next to what other libraries do for that.

Everyone gets the same texts on the same disk, in WAL mode and with the same `synchronous`, in
conversations that have 1,000 turns before the first measurement. Messages are made beforehand, each in
the library's own type. Each peer is used as its documentation says, in the way that is fastest for it:

- OpenAI Agents SDK: one `SQLiteSession` for each conversation, all on one file (`add_items`, `get_items`).
- LangGraph: one `AsyncSqliteSaver`, used directly (`aput`, `aget_tuple`). A compiled graph would write the
  same checkpoint and more. Its 1,000 turns are one checkpoint here, and not the 1,000 it would have.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from agents import SQLiteSession, TResponseInputItem
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from benchmarks.conversations import fill, texts, turn
from benchmarks.timing import Row, in_ms, medians_in_turns
from tenure.stores.sqlite import SQLiteStore

TURNS = 1_000  # stored before anything is measured
LAST = 20  # messages loaded after each turn

Synchronous: TypeAlias = Literal["NORMAL", "FULL"]

Step: TypeAlias = Callable[[int, int], Awaitable[object]]
"""Stores the turn of a round in a conversation and loads the last 20: `(conversation, round)`."""


@asynccontextmanager
async def tenure(
    folder: Path, synchronous: Synchronous, conversations: int, rounds: int
) -> AsyncIterator[Step]:
    """A `SQLiteStore`."""
    store = SQLiteStore(folder / "tenure.db", is_durable=synchronous == "FULL")
    new = [turn(TURNS + n) for n in range(rounds)]
    for conversation in range(conversations):
        await fill(store, str(conversation), TURNS)

    async def step(conversation: int, round_: int) -> object:
        await store.append(str(conversation), new[round_])
        loaded = await store.read(str(conversation), last=LAST)
        assert len(loaded) == LAST
        return loaded

    yield step
    await store.close()


@asynccontextmanager
async def openai_agents(
    folder: Path, synchronous: Synchronous, conversations: int, rounds: int
) -> AsyncIterator[Step]:
    """One `SQLiteSession` for each conversation, all on one file."""

    class Session(SQLiteSession):
        @staticmethod
        def _configure_connection(conn: sqlite3.Connection) -> None:
            """Set `synchronous` on the connection of each thread; it has no option for that."""
            SQLiteSession._configure_connection(conn)  # sets WAL
            conn.execute(f"PRAGMA synchronous = {synchronous}")

    def items(number: int) -> list[TResponseInputItem]:
        question, answer = texts(number)
        return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    new = [items(TURNS + n) for n in range(rounds)]
    sessions = [Session(str(n), folder / "agents.db") for n in range(conversations)]
    for session in sessions:
        await session.add_items([item for number in range(TURNS) for item in items(number)])
    for _ in range(20):  # it has a connection for each thread and session: open them all
        await asyncio.gather(*(session.get_items(limit=LAST) for session in sessions))

    async def step(conversation: int, round_: int) -> object:
        session = sessions[conversation]
        await session.add_items(new[round_])
        loaded = await session.get_items(limit=LAST)
        assert len(loaded) == LAST
        return loaded

    yield step
    for session in sessions:
        session.close()


@asynccontextmanager
async def langgraph(
    folder: Path, synchronous: Synchronous, conversations: int, rounds: int
) -> AsyncIterator[Step]:
    """One `AsyncSqliteSaver` whose checkpoints hold a list of messages."""

    def messages(number: int) -> list[BaseMessage]:
        question, answer = texts(number)
        return [HumanMessage(question, id=f"q{number}"), AIMessage(answer, id=f"a{number}")]

    new = [messages(TURNS + n) for n in range(rounds)]
    start = [message for number in range(TURNS) for message in messages(number)]
    states = [list(start) for _ in range(conversations)]
    async with AsyncSqliteSaver.from_conn_string(str(folder / "langgraph.db")) as saver:
        await saver.setup()  # sets WAL
        await saver.conn.execute(f"PRAGMA synchronous = {synchronous}")

        async def put(conversation: int) -> None:
            values = {"messages": states[conversation]}
            checkpoint = {**empty_checkpoint(), "channel_values": values}
            await saver.aput(config(conversation), checkpoint, {}, {})

        async def step(conversation: int, round_: int) -> object:
            states[conversation] += new[round_]
            await put(conversation)
            latest = await saver.aget_tuple(config(conversation))
            assert latest is not None
            loaded = latest.checkpoint["channel_values"]["messages"][-LAST:]
            assert len(loaded) == LAST
            return loaded

        for conversation in range(conversations):
            await put(conversation)
        yield step


def config(conversation: int) -> RunnableConfig:
    return {"configurable": {"thread_id": str(conversation), "checkpoint_ns": ""}}


Contestant: TypeAlias = Callable[[Path, Synchronous, int, int], AbstractAsyncContextManager[Step]]
PEERS: dict[str, Contestant] = {"SQLiteSession": openai_agents, "AsyncSqliteSaver": langgraph}


@dataclass(frozen=True)
class Comparison:
    """What a step of all conversations at once took us and a peer, in turns."""

    peer: str
    ours: float
    theirs: float

    def __str__(self) -> str:
        return f"{self.peer} {in_ms(self.theirs)}, ours {in_ms(self.ours)}"


async def compared(
    folder: Path, synchronous: Synchronous, conversations: int, rounds: int
) -> list[Comparison]:
    """Compare us with each peer; with one at a time, since a slow one leaves disk and caches busy."""

    def all_at_once(step: Step) -> Callable[[int], Awaitable[object]]:
        if conversations == 1:
            return lambda round_: step(0, round_)
        return lambda round_: asyncio.gather(*(step(n, round_) for n in range(conversations)))

    comparisons: list[Comparison] = []
    for name, peer in PEERS.items():
        disk = folder / name
        disk.mkdir()
        async with (
            peer(disk, synchronous, conversations, rounds) as theirs,
            tenure(disk, synchronous, conversations, rounds) as ours,
        ):
            medians = await medians_in_turns(rounds, all_at_once(theirs), all_at_once(ours))
        comparisons.append(Comparison(name, theirs=medians[0], ours=medians[1]))
    return comparisons


async def one_conversation(folder: Path, rounds: int) -> Row:
    """One conversation with `synchronous=NORMAL`: how many times faster than the faster peer."""
    comparisons = await compared(folder, "NORMAL", 1, rounds)
    return Row(
        work="a turn and the last 20, NORMAL: peer / ours",
        measured="\n".join(map(str, comparisons)),
        value=min(each.theirs / each.ours for each in comparisons),
        at_least=3,
    )


async def one_durable_conversation(folder: Path, rounds: int) -> Row:
    """One conversation with `synchronous=FULL`: how many times slower than the faster peer."""
    comparisons = await compared(folder, "FULL", 1, rounds)
    return Row(
        work="a turn and the last 20, FULL: ours / peer",
        measured="\n".join(map(str, comparisons)),
        value=max(each.ours / each.theirs for each in comparisons),
        at_most=1.1,
    )


async def many_durable_conversations(folder: Path, rounds: int) -> Row:
    """32 conversations at once with `synchronous=FULL`: how many times faster than the faster peer."""
    comparisons = await compared(folder, "FULL", 32, max(rounds // 10, 10))
    return Row(
        work="the same in 32 conversations at once, FULL: peer / ours",
        measured="\n".join(map(str, comparisons)),
        value=min(each.theirs / each.ours for each in comparisons),
        at_least=5,
    )


ALL = [one_conversation, one_durable_conversation, many_durable_conversations]
