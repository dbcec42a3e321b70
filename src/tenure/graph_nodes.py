"""Ready nodes of graphs: functions of a run's context and a value, made by factories.

Each that asks the model opens write sessions of its own, so that what it says and the reply are in the
prompt when it has returned. A node that runs tools records nothing: the node that sends the results does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from tenure.compression import HistoryCompression
from tenure.messages import AssistantMessage, AssistantPart, Message, ToolMessage
from tenure.models import StreamFrame
from tenure.run import RunContext
from tenure.saying import user
from tenure.sessions import WriteSession
from tenure.signatures import awaited
from tenure.structured import OutputSchema, StructuredResult
from tenure.tools import Tool, ToolFunction, ToolOutcome, ToolSpec

T = TypeVar("T")

Said = str | Message
"""What a node that asks is given: a text of the user's, or a message."""

NodeOf = Callable[[RunContext, Any], Awaitable[T]]


def node_do_nothing() -> NodeOf[Any]:
    """Pass the value on."""

    async def do_nothing(ctx: RunContext, value: T) -> T:
        return value

    return do_nothing


def node_append_prompt(*messages: Message | Callable[[Any], Message]) -> NodeOf[Any]:
    """Append messages, or what functions make of the value; pass the value on."""

    async def append_prompt(ctx: RunContext, value: T) -> T:
        async with ctx.llm.write_session() as session:
            for each in messages:
                session.append_prompt(each(value) if callable(each) else each)
        return value

    return append_prompt


def node_llm_request(*, allow_tool_calls: bool = True) -> NodeOf[AssistantMessage]:
    """Append what was said, and ask; the output is the whole reply."""

    async def llm_request(ctx: RunContext, said: Said) -> AssistantMessage:
        async with _saying(ctx, said) as session:
            if allow_tool_calls:
                return await session.request_llm()
            return await session.request_llm_without_tools()

    return llm_request


def node_llm_request_multiple() -> NodeOf[Sequence[AssistantPart]]:
    """Append what was said, and ask; the output are the reply's parts."""

    async def llm_request_multiple(ctx: RunContext, said: Said) -> Sequence[AssistantPart]:
        async with _saying(ctx, said) as session:
            return await session.request_llm_multiple()

    return llm_request_multiple


def node_llm_request_only_calling_tools() -> NodeOf[AssistantMessage]:
    """Append what was said, and have the model call tools."""

    async def llm_request_only_calling_tools(ctx: RunContext, said: Said) -> AssistantMessage:
        async with _saying(ctx, said) as session:
            return await session.request_llm_only_calling_tools()

    return llm_request_only_calling_tools


def node_llm_request_force_one_tool(
    tool: str | type | ToolSpec | Tool | ToolFunction,
) -> NodeOf[AssistantMessage]:
    """Append what was said, and have the model call this tool."""

    async def llm_request_force_one_tool(ctx: RunContext, said: Said) -> AssistantMessage:
        async with _saying(ctx, said) as session:
            return await session.request_llm_force_one_tool(tool)

    return llm_request_force_one_tool


def node_llm_request_structured(
    output: object,
    *,
    examples: Sequence[object] = (),
    retries: int = 1,
    fixing_model: object = None,
) -> NodeOf[StructuredResult[Any]]:
    """Append what was said, and ask for an answer of a type; what was said stays when that fails.

    Args are those of `ReadSession.request_llm_structured`.
    """

    async def llm_request_structured(ctx: RunContext, said: Said) -> StructuredResult[Any]:
        async with _saying(ctx, said) as session:
            return await session.request_llm_structured(
                output, examples=examples, retries=retries, fixing_model=fixing_model
            )

    return llm_request_structured


def node_llm_request_streaming(
    on_frame: Callable[[StreamFrame], Awaitable[object] | None] | None = None,
) -> NodeOf[AssistantMessage]:
    """Append what was said, and have the reply streamed; the output is the whole reply.

    Args:
        on_frame: Is called with every frame; may be async. Frames are events of the run as well.
    """

    async def llm_request_streaming(ctx: RunContext, said: Said) -> AssistantMessage:
        async with _saying(ctx, said) as session:
            async for frame in session.request_llm_streaming():
                if on_frame is not None:
                    await awaited(on_frame(frame))
            reply = session.prompt.messages[-1]
        assert isinstance(reply, AssistantMessage)
        return reply

    return llm_request_streaming


def node_execute_tools(*, parallel: bool = True) -> NodeOf[ToolMessage]:
    """Run what a reply calls; the output are the results, in the order of the calls, not recorded.

    Args:
        parallel: Whether all run at the same time, or one after the other.
    """

    async def execute_tools(ctx: RunContext, reply: AssistantMessage) -> ToolMessage:
        if parallel:
            return await ctx.execute_tools(reply.tool_calls)
        results = [await ctx.execute_tools([call]) for call in reply.tool_calls]
        parts = tuple(part for message in results for part in message.parts)
        return ToolMessage(parts=parts, id=ctx.clock.new_id(), created_at=ctx.clock.now())

    return execute_tools


def node_llm_send_tool_results(*, allow_tool_calls: bool = True) -> NodeOf[AssistantMessage]:
    """Append results of tools behind their calls, and ask again."""
    return node_llm_request(allow_tool_calls=allow_tool_calls)


def node_llm_send_tool_results_only_calling_tools() -> NodeOf[AssistantMessage]:
    """Append results of tools behind their calls, and have the model call more."""
    return node_llm_request_only_calling_tools()


def node_llm_send_tool_results_force_one_tool(
    tool: str | type | ToolSpec | Tool | ToolFunction,
) -> NodeOf[AssistantMessage]:
    """Append results of tools behind their calls, and have the model call this tool."""
    return node_llm_request_force_one_tool(tool)


def node_execute_single_tool(
    tool: str | type | Tool | ToolFunction, *, append_prompt: bool = True
) -> NodeOf[ToolOutcome]:
    """Run one tool with the value as its arguments; the output is what came of it.

    Args:
        tool: One of the agent's tools.
        append_prompt: Whether to tell the model, in two messages of the user's, since it has not
            called the tool itself.
    """

    async def execute_single_tool(ctx: RunContext, args: Mapping[str, object]) -> ToolOutcome:
        name = ctx.tools.find(tool).name
        async with ctx.llm.write_session() as session:
            outcome = await session.call_tool(tool, args)
            if append_prompt:
                said = f"I called the tool {name} with {dict(args)!r}."
                session.append_prompt(user(said, clock=ctx.clock))
                gave = f"The tool {name} gave: {outcome.text}"
                session.append_prompt(user(gave, clock=ctx.clock))
        return outcome

    return execute_single_tool


def node_llm_compress_history(
    strategy: HistoryCompression | None = None,
    *,
    preserve_memory: bool = True,
    retrieval_model: object = None,
) -> NodeOf[Any]:
    """Put summaries in the place of the history; pass the value on.

    Args are those of `WriteSession.replace_history_with_tldr`.
    """

    async def llm_compress_history(ctx: RunContext, value: T) -> T:
        async with ctx.llm.write_session() as session:
            await session.replace_history_with_tldr(
                strategy, preserve_memory=preserve_memory, retrieval_model=retrieval_model
            )
        return value

    return llm_compress_history


def node_set_structured_output(output: object, *, examples: Iterable[object] = ()) -> NodeOf[Any]:
    """Tell the model for the rest of the run what type its answers are to have; pass the value on.

    The instruction stays in the prompt, as a message of the user's.
    """
    schema = OutputSchema[object](output)
    said = schema.instruction(examples, with_schema=True)

    async def set_structured_output(ctx: RunContext, value: T) -> T:
        async with ctx.llm.write_session() as session:
            session.append_prompt(user(said, clock=ctx.clock))
        return value

    return set_structured_output


@asynccontextmanager
async def _saying(ctx: RunContext, said: Said) -> AsyncGenerator[WriteSession]:
    """A write session in which something was said already; that stays when asking fails."""
    async with ctx.llm.write_session() as session:
        session.append_prompt(user(said, clock=ctx.clock) if isinstance(said, str) else said)
    async with ctx.llm.write_session() as session:
        yield session
