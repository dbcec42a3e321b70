"""The tool calls of a run: hooks, events, and what tells one call from every other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from tenure.events import ToolCallCompleted, ToolCallReused, ToolCallStarted
from tenure.idempotency import calling
from tenure.messages import AssistantMessage, ToolCall, ToolMessage

if TYPE_CHECKING:
    from tenure.feature import Feature
    from tenure.run import RunContext
    from tenure.tools import Tool, ToolOutcome

T = TypeVar("T")

ToolExecution: TypeAlias = Callable[[], Awaitable["ToolOutcome"]]
"""Runs a tool; call it once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedCall:
    """A tool call, and where it comes from.

    Args:
        call: The call.
        origin: The id of the assistant message that has it; empty when code calls the tool.
        place: Its place among the calls of that message, or among those of the node, from 0.
        tool: The tool, unless there is none of this name.
    """

    call: ToolCall
    origin: str
    place: int
    tool: Tool | None


async def executed_tools(ctx: RunContext, calls: Sequence[ToolCall]) -> ToolMessage:
    """See `RunContext.execute_tools`."""
    placed = [_placed(ctx, call) for call in calls]
    outcomes = await _all(
        _watched(ctx, each, partial(ctx.tools.execute, each.call)) for each in placed
    )
    results = tuple(o.result_of(c) for o, c in zip(outcomes, calls, strict=True))
    return ToolMessage(parts=results, id=ctx.clock.new_id(), created_at=ctx.clock.now())


async def called_tool(ctx: RunContext, tool: Tool, args: Mapping[str, object]) -> ToolOutcome:
    """See `RunContext.call_tool`."""
    call = ToolCall(name=tool.name, args=_described(args))
    return await _watched(ctx, _of_code(ctx, call, tool), partial(tool.execute, args))


async def _watched(ctx: RunContext, placed: PlacedCall, execute: ToolExecution) -> ToolOutcome:
    call = placed.call
    for feature in ctx.features:
        known = await feature.known_outcome(ctx, placed)
        if known is not None:
            await ctx.send(ToolCallReused(call=call, outcome=known))
            return known
    for feature in ctx.features:
        await feature.before_tool_call(ctx, call)
    await ctx.send(ToolCallStarted(call=call))
    for feature in reversed(ctx.features):
        execute = _through(feature, ctx, placed, execute)
    with calling(ctx.next_call_key()):
        outcome = await execute()
    for feature in ctx.features:
        await feature.after_tool_call(ctx, call, outcome)
    await ctx.send(ToolCallCompleted(call=call, outcome=outcome))
    return outcome


def _through(
    feature: Feature, ctx: RunContext, placed: PlacedCall, execute: ToolExecution
) -> ToolExecution:
    return lambda: feature.execute_tool(ctx, placed, execute)


def _placed(ctx: RunContext, call: ToolCall) -> PlacedCall:
    """A call with the last message of the prompt that has it."""
    tool = ctx.tools.get(call.name)
    for message in reversed(ctx.llm.prompt.messages):
        if isinstance(message, AssistantMessage) and call in message.tool_calls:
            same = [n for n, other in enumerate(message.tool_calls) if other is call]
            place = same[0] if same else message.tool_calls.index(call)  # read from a checkpoint
            return PlacedCall(call=call, origin=message.id, place=place, tool=tool)
    return _of_code(ctx, call, tool)


def _of_code(ctx: RunContext, call: ToolCall, tool: Tool | None) -> PlacedCall:
    place = ctx.calls_of_code[call]
    ctx.calls_of_code[call] += 1
    return PlacedCall(call=call, origin="", place=place, tool=tool)


def _described(args: Mapping[str, object]) -> str:
    """Arguments that code has chosen, as JSON for whoever watches; any object can be among them."""
    try:
        return json.dumps(dict(args), default=str, skipkeys=True)
    except (ValueError, RecursionError):  # a circle
        return json.dumps({str(name): f"<{type(value).__name__}>" for name, value in args.items()})


async def _all(coroutines: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """Run coroutines at the same time; when one raises, cancel the rest, wait for it, and raise that."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
