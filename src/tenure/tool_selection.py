"""Which tools a subgraph offers: those of the graph around it, none, some, or those that the model chooses.

The model chooses by answering a question of the code's own: it is sent behind the prompt as it is, without
tools, and neither it nor the answer is in any prompt afterwards.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tenure.errors import InvalidValueError
from tenure.messages import AssistantMessage, Message
from tenure.models import Model, ModelRequest, StreamFrame
from tenure.run import RunContext
from tenure.structured import OutputSchema
from tenure.summaries import transcript
from tenure.tools import Tool, ToolFunction, ToolOutcome, ToolRegistry, ToolSpec

ToolSelection: TypeAlias = (
    Literal["all", "none", "auto"] | Iterable[str | type | Tool | ToolFunction]
)
"""Which tools a subgraph offers: those of the graph around it, none, those of them that the model finds
relevant, or these."""

CHOOSE_TOOLS = (
    "Do not answer the conversation now. Before the task below is taken on, choose the tools that are "
    "relevant to it: all that it may need, and no others. Answer with the names of these tools as they are "
    "written in the list; with none, if it needs no tool."
)
"""How the question begins; the task and the tools follow."""


def checked_selection(tools: ToolSelection) -> ToolSelection:
    """Return a selection that can be used again and again.

    Raises:
        InvalidValueError: It is another text, or a single tool that is in no list.
    """
    if isinstance(tools, str):
        if tools in ("all", "none", "auto"):
            return tools
    elif isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] # users err
        return tuple(tools)
    raise InvalidValueError(
        f"tools={tools!r} must be 'all', 'none', 'auto' or a list of the agent's tools."
    )


@asynccontextmanager
async def offering(
    ctx: RunContext, tools: ToolSelection, *, task: str, given: object
) -> AsyncGenerator[None]:
    """Offer these tools inside the block; afterwards the tools are as before.

    Args:
        ctx: The run's context.
        tools: What `checked_selection` has returned.
        task: What is done inside the block; for `"auto"`.
        given: What it is done with; for `"auto"`.

    Raises:
        UnknownToolError: The agent has no such tool.
        StructuredOutputError: The model was asked, and its answer cannot be read; nothing has changed.
    """
    if tools == "all":
        yield
        return
    before = ctx.llm.tools
    await _offer(ctx, await _selected(ctx, tools, task=task, given=given))
    try:
        yield
    finally:
        await _offer(ctx, before)


async def _offer(ctx: RunContext, tools: Sequence[ToolSpec]) -> None:
    async with ctx.llm.write_session() as session:
        session.tools = tuple(tools)


async def _selected(
    ctx: RunContext, tools: ToolSelection, *, task: str, given: object
) -> Sequence[ToolSpec]:
    if tools == "auto":
        return await _chosen(ctx, task=task, given=given)
    return [] if isinstance(tools, str) else [ctx.tools.find(each).spec for each in tools]


async def _chosen(ctx: RunContext, *, task: str, given: object) -> Sequence[ToolSpec]:
    """Those of the offered tools that the model names, in their order; names of others count nothing."""
    offered = ctx.llm.tools
    if not offered:
        return ()
    question = _Question(_asked(offered, task=task, given=given))
    async with ctx.llm.fork(_Aside(ctx)).read_session() as session:
        names = (await session.request_llm_structured(question)).unwrap()
    return [spec for spec in offered if spec.name in names]


def _asked(offered: Sequence[ToolSpec], *, task: str, given: object) -> str:
    said = transcript([given]) if isinstance(given, Message) else str(given)
    # In one line each, so that no description can be taken for another tool.
    lines = [f"- {spec.name}: {' '.join(spec.description.split())}" for spec in offered]
    listed = "\n".join(lines)
    return f"{CHOOSE_TOOLS}\n\nTask: {task}\n\nIts input:\n{said}\n\nTools:\n{listed}"


class _Question(OutputSchema[list[str]]):
    """Names that are asked for with a question; like every instruction it is in one request only."""

    def __init__(self, question: str) -> None:
        super().__init__(list[str])
        self._question = question

    def instruction(self, examples: Iterable[list[str]] = (), *, with_schema: bool) -> str:
        told = super().instruction(examples, with_schema=with_schema)
        return f"{self._question}\n\n{told}".rstrip()


@dataclass(frozen=True, slots=True)
class _Aside:
    """How a run reaches models and tools, where every question is an aside, which is not streamed."""

    ctx: RunContext

    @property
    def tools(self) -> ToolRegistry:
        return self.ctx.tools

    async def ask(
        self, model: Model, request: ModelRequest, *, aside: bool = False
    ) -> AssistantMessage:
        return await self.ctx.ask(model, request, aside=True)

    def stream(self, model: Model, request: ModelRequest) -> AsyncGenerator[StreamFrame]:
        return self.ctx.stream(model, request)

    async def call_tool(self, tool: Tool, args: Mapping[str, object]) -> ToolOutcome:
        return await self.ctx.call_tool(tool, args)
