"""An agent with a graph of ten nodes, tools, a subgraph and branches, for the tests of persistence.

It writes a line to a file for everything that happens, so that what several processes did can be counted.
As a program it runs once, and can be killed on the way: `python journey.py STORE LOG INPUT DEATH POLICY`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from tenure import (
    Agent,
    AssistantMessage,
    ChatMemory,
    Event,
    Feature,
    Graph,
    NodeCompleted,
    Persistence,
    RunContext,
    Store,
    ToolCall,
    ToolMessage,
    Usage,
    assistant,
    idempotency_key,
    open_store,
    tool,
)
from tenure import graph_edges as edges
from tenure import graph_nodes as nodes
from tenure.graph import BranchOutcome
from tenure.models import ModelRequest
from tenure.testing import ScriptedModel
from tenure.tools import OnUnknown

TEN_NODES = [
    "journey/plan",
    "journey/ask",
    "journey/execute",
    "journey/send",
    "journey/book",
    "journey/inner/weigh",
    "journey/inner/pack",
    "journey/inner",
    "journey/both/left/a",
    "journey/both/left/b",
    "journey/both/left",
    "journey/both/right",
    "journey/both",
    "journey/check",
    "journey/compress",
    "journey/answer",
]
"""Every node that returns, in order: ten of the graph, and those inside of two of them."""


def answer(request: ModelRequest) -> AssistantMessage:
    """What the model says, which depends on nothing but what it was asked."""
    last = request.messages[-1]
    spent = Usage(input_tokens=10, output_tokens=1, requests=1)
    if isinstance(last, ToolMessage):
        return replace(assistant(f"seen {len(last.tool_results)} results"), usage=spent)
    if last.text.startswith("plan"):
        call = ToolCall(id="c1", name="look", args='{"at": "map"}')
        other = ToolCall(id="c2", name="look", args='{"at": "sky"}')
        return replace(assistant("looking", call, other), usage=spent)
    return replace(assistant(f"answer to {last.text[-40:]}"), usage=spent)


class Journey:
    """The agent, and what it does."""

    def __init__(
        self,
        store: Store | str,
        log: Path,
        *,
        death: str = "",
        features: Sequence[Feature] | None = None,
        on_unknown: OnUnknown = "fail",
    ) -> None:
        self.log = log
        self.death = death
        self.model = ScriptedModel([answer] * 100)
        note = self.note

        @tool(on_unknown=on_unknown)
        def look(at: str) -> str:
            """Look at something."""
            note(f"tool look {at}", idempotency_key())
            self.die_in(f"look {at}")
            return f"the {at}"

        @tool(on_unknown=on_unknown)
        def book(what: str) -> str:
            """Book something."""
            note(f"tool book {what}", idempotency_key())
            self.die_in(f"book {what}")
            return f"booked {what}"

        given = [ChatMemory(store).window_size(50), Persistence(store, values=["count"])]
        self.agent = Agent(
            model=self.model,
            system_prompt="Be brief.",
            tools=[look, book],
            strategy=self.graph(),
            features=given if features is None else features,
        )
        self.agent.on_event(self.watch)

    def note(self, what: str, detail: str = "") -> None:
        with self.log.open("a") as file:
            file.write(f"{what}\t{detail}\n")

    def die_in(self, what: str) -> None:
        if self.death == f"in {what}":
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, event: Event) -> None:
        if isinstance(event, NodeCompleted):
            self.note(f"node {event.path}")
            if self.death == f"after {event.path}":
                os.kill(os.getpid(), signal.SIGKILL)

    def graph(self) -> Graph[str, str]:
        graph = Graph[str, str]("journey")

        @graph.node
        def plan(ctx: RunContext, text: str) -> str:
            ctx.storage["count"] = 1
            return f"plan {text}"

        ask = graph.node(nodes.node_llm_request(), name="ask")
        execute = graph.node(nodes.node_execute_tools(parallel=False), name="execute")
        send = graph.node(nodes.node_llm_send_tool_results(), name="send")

        @graph.node
        async def book(ctx: RunContext, reply: AssistantMessage) -> str:
            async with ctx.llm.write_session() as session:
                await session.call_tool("book", {"what": "hotel"})
                outcome = await session.call_tool("book", {"what": "train"})
            return f"{reply.text}, {outcome.value}"

        inner = graph.subgraph(self.inner(), name="inner")

        left = Graph[str, str]("left")
        a = left.node(self.branch_node("a"), name="a")
        b = left.node(self.branch_node("b"), name="b")
        left.edge(left.start, a)
        left.edge(a, b)
        left.edge(b, left.finish)
        both = graph.parallel(
            {"left": left, "right": self.branch_node("right")},
            name="both",
            merge=merged,
            concurrency=1,  # so that no tool of a branch is running when the other one is interrupted
        )

        @graph.node
        def check(ctx: RunContext, text: str) -> str:
            count = ctx.storage["count"]
            assert isinstance(count, int)
            ctx.storage["count"] = count + 1
            return f"{text} {ctx.storage['count']}"

        compress = graph.node(nodes.node_llm_compress_history(), name="compress")
        last = graph.node(nodes.node_llm_request(), name="answer")
        graph.edge(graph.start, plan)
        graph.edge(plan, ask)
        graph.edge(ask, execute, edges.on_tool_calls())
        graph.edge(execute, send)
        graph.edge(send, book)
        graph.edge(book, inner)
        graph.edge(inner, both)
        graph.edge(both, check)
        graph.edge(check, compress)
        graph.edge(compress, last)
        graph.edge(last, graph.finish, edges.on_assistant_message())
        return graph

    def inner(self) -> Graph[str, str]:
        graph = Graph[str, str]("inner")

        @graph.node
        def weigh(ctx: RunContext, text: str) -> str:
            count = ctx.storage["count"]
            assert isinstance(count, int)
            ctx.storage["count"] = count + 1
            return text

        @graph.node
        async def pack(ctx: RunContext, text: str) -> str:
            async with ctx.llm.write_session() as session:
                await session.call_tool("book", {"what": "bag"})
            return f"{text}, packed"

        graph.edge(graph.start, weigh)
        graph.edge(weigh, pack)
        graph.edge(pack, graph.finish)
        return graph

    def branch_node(self, name: str) -> Callable[[RunContext, str], Any]:
        async def node(ctx: RunContext, text: str) -> str:
            async with ctx.llm.write_session() as session:
                await session.call_tool("look", {"at": name})
                session.append_prompt(assistant(f"thought of {name}"))
            return f"{text} {name}"

        return node


def merged(outcomes: Sequence[BranchOutcome[str]]) -> BranchOutcome[str]:
    """Takes the left one."""
    return outcomes[0]


def happened(log: Path) -> list[str]:
    """What has happened, in all processes, in the order of the alphabet: that of branches may differ."""
    return sorted(line.partition("\t")[0] for line in log.read_text().splitlines())


if __name__ == "__main__":
    url, log, said, death, policy = sys.argv[1:]
    store = open_store(url)
    store.lease_ttl_s = 0.5  # so that whoever comes after a death need not wait for long
    journey = Journey(store, Path(log), death=death, on_unknown=cast("OnUnknown", policy))
    result = asyncio.run(journey.agent.run(said, "s"))
    print(result.output)
