"""Agents whose runs die on the way, for the tests of persistence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tenure import (
    Agent,
    ChatMemory,
    Event,
    Feature,
    Graph,
    NodeCompleted,
    Persistence,
    RunContext,
    Store,
)
from tenure.messages import Message
from tenure.testing import ScriptedModel


class Died(BaseException):
    """Stands for the death of the process: nothing of a run goes on behind it."""


def line_of(*functions: Callable[[RunContext, Any], Any], name: str = "line") -> Graph[Any, Any]:
    """A graph of nodes one behind the other."""
    graph = Graph[Any, Any](name)
    before: Any = graph.start
    for function in functions:
        node = graph.node(function)
        graph.edge(before, node)
        before = node
    graph.edge(before, graph.finish)
    return graph


def agent_of(place: Store, graph: Graph[Any, Any] | None, *replies: Any, **options: Any) -> Agent:
    """An agent with both memories of a run; `options` are those of the agent."""
    features: list[Feature] = [ChatMemory(place), Persistence(place)]
    options.setdefault("features", features)
    return Agent(model=ScriptedModel(replies), strategy=graph, **options)


def dies_after(agent: Agent, path: str) -> None:
    """Have a run of the agent die when a node has returned, once its checkpoint is saved."""

    @agent.on_event
    def die(event: Event) -> None:
        if isinstance(event, NodeCompleted) and event.path == path:
            raise Died

    _ = die


async def died(agent: Agent, text: str, session_id: str = "s") -> None:
    with pytest.raises(Died):
        await agent.run(text, session_id)


def parts_of(messages: Iterable[Message]) -> list[object]:
    return [(message.role, message.parts) for message in messages]  # a summary covers other ids


async def said(store: Store, session_id: str = "s") -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in await store.read(session_id)]


def named(name: str) -> Callable[[RunContext, Any], str]:
    """A node that says its name behind what it is given."""

    def function(ctx: RunContext, text: Any) -> str:
        return f"{text} {name}"

    function.__name__ = name
    return function
