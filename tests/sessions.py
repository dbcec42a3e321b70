"""What the tests of LLM sessions share: tools, a context to open sessions on, and what was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tenure import (
    Agent,
    Event,
    Message,
    ModelRequest,
    ReadSession,
    RunContext,
    ToolCall,
    ToolError,
    assistant,
    tool,
    tool_result,
    user,
)
from tenure.testing import ScriptedModel
from tenure.testing.scripted import Reply


@tool
def search(query: str = "") -> str:
    """Search."""
    return f"found {query}"


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
def broken() -> str:
    """Fail."""
    raise KeyError("drawer")


@tool
def picky() -> str:
    """Refuse."""
    raise ToolError("say please")


class Shop:
    """Is a tool."""

    def __call__(self, of: int) -> int:
        """Ask the shop."""
        return of * 10


async def given(*replies: Reply, events: list[Event] | None = None, **options: Any) -> RunContext:
    """The context of a run whose strategy does nothing; the prompt is the message `q`."""

    async def strategy(ctx: RunContext, _: str) -> RunContext:
        return ctx

    options = {"model": ScriptedModel(replies), "tools": [search, add], **options}
    agent = Agent(strategy=strategy, prompt=[user("q")], **options)
    if events is not None:
        agent.on_event(events.append)
    ctx = (await agent.run("")).output
    assert isinstance(ctx, RunContext)
    return ctx


def requests_of(ctx: RunContext) -> list[ModelRequest]:
    assert isinstance(ctx.llm.model, ScriptedModel)
    return ctx.llm.model.requests


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


def roles(messages: Any) -> str:
    return "".join(message.role[0] for message in messages)


def names(request: ModelRequest) -> list[str]:
    return [spec.name for spec in request.tools]


async def settle() -> None:
    """Let everything run that can run."""
    for _ in range(30):
        await asyncio.sleep(0)


def tool_history() -> tuple[Message, ...]:
    """A call with its result."""
    call = ToolCall(id="c1", name="search", args='{"query": "x"}')
    return assistant(call), tool_result(call, "found x")


async def all_of(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


KINDS: dict[str, Callable[[ReadSession], Awaitable[object]]] = {
    "llm": lambda s: s.request_llm(),
    "multiple": lambda s: s.request_llm_multiple(),
    "without_tools": lambda s: s.request_llm_without_tools(),
    "only_calling_tools": lambda s: s.request_llm_only_calling_tools(),
    "force_one_tool": lambda s: s.request_llm_force_one_tool("search"),
    "multiple_choices": lambda s: s.request_llm_multiple_choices(1),
    "structured": lambda s: s.request_llm_structured(int),
    "one_shot": lambda s: s.request_llm_structured_one_shot(int),
    "streaming": lambda s: all_of(s.request_llm_streaming()),
}
