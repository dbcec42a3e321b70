"""What it costs that a run can be resumed: a checkpoint after each node, a record of each tool call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.conversations import fill, turn
from benchmarks.timing import Row, in_ms, medians_in_turns
from tenure import Agent, AssistantMessage, ChatMemory, Feature, Graph, Persistence, RunContext
from tenure.memory import Owner
from tenure.messages import ToolCall
from tenure.stores.run_records import NewCall
from tenure.stores.sqlite import SQLiteStore
from tenure.testing import ScriptedModel

WINDOW = 50
NODES = 20  # of the graph
CALLS = 5  # of the tool, in a run of the tool loop


def features(store: SQLiteStore, window: int | None, *, is_persistent: bool) -> list[Feature]:
    """A memory of the conversation, with or without checkpoints."""
    memory = ChatMemory(store)
    if window is not None:
        memory.window_size(window)
    return [memory, Persistence(store)] if is_persistent else [memory]


class Talker:
    """An agent whose graph is nodes one behind the other, each of which adds a turn to the prompt.

    Attributes:
        nodes: How many seconds each node took in each run, from its beginning to that of the next.
    """

    def __init__(self, store: SQLiteStore, window: int | None, *, is_persistent: bool) -> None:
        self.nodes: list[list[float]] = []
        self._begun: list[float] = []
        graph = Graph[Any, Any]("talking")
        before: Any = graph.start
        for number in range(NODES):
            node = graph.node(self._talk, name=f"talk{number}")
            graph.edge(before, node)
            before = node
        graph.edge(before, graph.finish)
        self._agent = Agent(
            model=ScriptedModel([]),
            strategy=graph,
            features=features(store, window, is_persistent=is_persistent),
        )

    async def run(self, text: str, session_id: str) -> None:
        """Run the agent, and note what the nodes took."""
        self._begun = []
        await self._agent.run(text, session_id)
        self.nodes.append([after - before for before, after in pairwise(self._begun)])

    async def _talk(self, ctx: RunContext, _: object) -> int:
        self._begun.append(time.perf_counter())
        async with ctx.llm.write_session() as session:
            session.append_prompt(*turn(len(self._begun)))
        return len(self._begun)


async def checkpoint(folder: Path, rounds: int) -> Row:
    """What a node's checkpoint takes, beyond an append of what the node has said."""
    store = SQLiteStore(folder / "chat.db")
    for name in ("kept", "plain", "appended"):
        await fill(store, name, 50)
    kept, plain = (Talker(store, WINDOW, is_persistent=each) for each in (True, False))
    new = [turn(number) for number in range(rounds)]
    with_, without, append = await medians_in_turns(
        rounds,
        lambda n: kept.run(f"question {n}", "kept"),
        lambda n: plain.run(f"question {n}", "plain"),
        lambda n: store.append("appended", new[n]),
    )
    await store.close()
    each = (with_ - without) / NODES
    return Row(
        work=f"a checkpoint, beyond an append: (a run of {NODES} nodes with - without) / {NODES} - append",
        measured=f"({with_ * 1e3:.2f} - {without * 1e3:.2f}) / {NODES} - {in_ms(append)}",
        value=(each - append) * 1e3,
        unit="ms",
        at_most=2,
    )


async def by_history(folder: Path, rounds: int, window: int | None, work: str) -> Row:
    """What a node's checkpoint takes in a conversation of 10,000 messages, and in one of 100.

    Only nodes are timed, and not the run around them, which loads and stores the history.
    """
    store = SQLiteStore(folder / "chat.db")
    talkers: list[Talker] = []
    for is_persistent in (True, False):
        await fill(store, f"long {is_persistent}", 5_000)
        for number in range(rounds):  # a new one for each round, so that it stays short
            await fill(store, f"short {is_persistent} {number}", 50)
        talkers += [Talker(store, window, is_persistent=is_persistent) for _ in range(2)]
    kept_long, kept_short, plain_long, plain_short = talkers
    await medians_in_turns(
        rounds,
        lambda n: kept_long.run(f"question {n}", "long True"),
        lambda n: plain_long.run(f"question {n}", "long False"),
        lambda n: kept_short.run(f"question {n}", f"short True {n}"),
        lambda n: plain_short.run(f"question {n}", f"short False {n}"),
    )
    await store.close()
    counted = [[took for run in talker.nodes[rounds // 10 :] for took in run] for talker in talkers]
    kept, kept_in_short, plain, plain_in_short = map(median, counted)
    long, short = kept - plain, kept_in_short - plain_in_short
    return Row(work=work, measured=in_ms(long, short), value=long / short, at_most=1.3)


async def with_a_window(folder: Path, rounds: int) -> Row:
    """The prompt has the last 50 messages in both."""
    work = f"a checkpoint with a window of {WINDOW}, on 10,000 messages / on 100"
    return await by_history(folder, rounds, WINDOW, work)


async def without_a_window(folder: Path, rounds: int) -> Row:
    """The prompt has the whole conversation, the loading of which takes far longer than the nodes do."""
    work = "a checkpoint of a prompt of 10,000 messages / of 100"
    return await by_history(folder, max(rounds // 10, 10), None, work)


async def recorded_call(folder: Path, rounds: int) -> Row:
    """A tool call is written down before the tool runs, and what has come of it afterwards."""
    store = SQLiteStore(folder / "chat.db")
    await fill(store, "s", 50)
    await store.begin_run("s", "r", owner=Owner(agent_id="a"), input="go")
    call = NewCall(
        node_path="strategy/tools",
        position=0,
        origin="m",
        place=0,
        tool="look",
        args='{"number": 1}',
    )

    async def begin_and_end(_: int) -> None:
        begun = await store.begin_call("s", "r", call)
        await store.end_call("s", "r", begun.number, outcome='{"outcome": "it is there"}')

    (took,) = await medians_in_turns(rounds, begin_and_end)
    await store.close()
    return Row(
        work="a record of a tool call: its beginning and its end",
        measured=in_ms(took),
        value=took * 1e3,
        unit="ms",
    )


def look(number: int) -> str:
    """Look something up."""
    return f"{number} is there"


def replies(rounds: int) -> Iterator[AssistantMessage | str]:
    """What a model says in so many runs of the tool loop."""
    numbers = count()
    for _ in range(rounds):
        for _ in range(CALLS):
            number = next(numbers)
            call = ToolCall(id=f"c{number}", name="look", args=f'{{"number": {number}}}')
            yield AssistantMessage(parts=(call,))
        yield "It is there."


async def tool_loop(folder: Path, rounds: int) -> Row:
    """A run of the default strategy, whose model takes no time, with and without checkpoints."""
    store = SQLiteStore(folder / "chat.db")
    agents: list[Agent] = []
    for name in ("kept", "plain"):
        await fill(store, name, 50)
        agents.append(
            Agent(
                model=ScriptedModel([*replies(rounds)]),
                tools=[look],
                features=features(store, WINDOW, is_persistent=name == "kept"),
            )
        )
    kept, plain = agents
    with_, without = await medians_in_turns(
        rounds,
        lambda n: kept.run(f"question {n}", "kept"),
        lambda n: plain.run(f"question {n}", "plain"),
    )
    await store.close()
    return Row(
        work=f"a run of the tool loop with {CALLS} calls, with checkpoints / without",
        measured=in_ms(with_, without),
        value=with_ / without,
    )


ALL = [checkpoint, with_a_window, without_a_window, recorded_call, tool_loop]
