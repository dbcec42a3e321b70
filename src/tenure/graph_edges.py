"""Steps of edges: which values an edge lets pass, and what it makes of them.

Steps are applied in order; each gets what the one before has passed on. A reply that calls tools is never
taken for an answer in words, and a condition on calls lets the whole reply pass, so that no call of it is
left without a result.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from tenure.messages import AssistantMessage, ToolCall, ToolMessage, ToolResult
from tenure.tools import Tool, ToolFunction, ToolOutcome

NO_MATCH = object()
"""What a step gives for a value that it does not let pass."""

Condition = Callable[[Any], bool | Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Step:
    """One condition or change of an edge.

    Args:
        label: What a drawing says of it.
        function: Returns what is passed on of a value, or `NO_MATCH`; may be async.
    """

    label: str
    function: Callable[[Any], object]

    async def passed(self, value: object) -> object:
        """What is passed on of a value."""
        found = self.function(value)
        return await cast("Awaitable[object]", found) if inspect.isawaitable(found) else found


def on_condition(condition: Condition) -> Step:
    """Let pass what a function, sync or async, says yes to."""

    async def passed(value: object) -> object:
        return value if await _holds(condition, value) else NO_MATCH

    return Step(_name(condition), passed)


def transformed(function: Callable[[Any], object]) -> Step:
    """Pass on what a function, sync or async, makes of the value."""
    return Step(_name(function), function)


def on_is_instance(kind: type | tuple[type, ...]) -> Step:
    """Let pass objects of a class."""
    names = [each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,))]
    return Step(
        f"is {' or '.join(names)}", lambda value: value if isinstance(value, kind) else NO_MATCH
    )


def on_tool_calls(condition: Condition | None = None) -> Step:
    """Let pass a reply that calls tools; with a condition, if it holds for one of the calls."""

    async def passed(value: object) -> object:
        calls = _calls(value)
        if condition is None:
            return value if calls else NO_MATCH
        for call in calls:
            if await _holds(condition, call):
                return value
        return NO_MATCH

    return Step("tool calls" if condition is None else f"tool calls: {_name(condition)}", passed)


def on_multiple_tool_calls(condition: Condition | None = None) -> Step:
    """Let pass a reply with two calls of tools or more; with a condition, if it holds for all of them."""

    async def passed(value: object) -> object:
        calls = _calls(value)
        if len(calls) < 2:
            return NO_MATCH
        holds = [condition is None or await _holds(condition, call) for call in calls]
        return value if all(holds) else NO_MATCH

    return Step("several tool calls", passed)


def on_tool_call(tool: str | Tool | ToolFunction) -> Step:
    """Let pass a reply that calls this tool, whatever else it calls."""
    name = _tool_name(tool)

    def passed(value: object) -> object:
        return value if any(call.name == name for call in _calls(value)) else NO_MATCH

    return Step(f"calls {name}", passed)


def on_tool_not_called(tool: str | Tool | ToolFunction) -> Step:
    """Let pass a reply that does not call this tool."""
    name = _tool_name(tool)

    def passed(value: object) -> object:
        is_reply = isinstance(value, AssistantMessage)
        has_it = any(call.name == name for call in _calls(value))
        return value if is_reply and not has_it else NO_MATCH

    return Step(f"does not call {name}", passed)


def on_assistant_message(condition: Condition | None = None) -> Step:
    """Pass on the text of a reply that calls no tool; with a condition, if it holds for the reply."""

    async def passed(value: object) -> object:
        if not isinstance(value, AssistantMessage) or value.tool_calls:
            return NO_MATCH
        if condition is not None and not await _holds(condition, value):
            return NO_MATCH
        return value.text

    return Step("answers", passed)


def on_tool_results(condition: Condition | None = None) -> Step:
    """Let pass a message with results of tools; with a condition, if it holds for all of them."""

    async def passed(value: object) -> object:
        results = _results(value)
        holds = [condition is None or await _holds(condition, result) for result in results]
        return value if results and all(holds) else NO_MATCH

    return Step("tool results", passed)


def on_tool_result(tool: str | Tool | ToolFunction) -> Step:
    """Let pass a message with a result of this tool."""
    name = _tool_name(tool)

    def passed(value: object) -> object:
        return value if any(result.name == name for result in _results(value)) else NO_MATCH

    return Step(f"result of {name}", passed)


def on_successful() -> Step:
    """Pass on what a tool returned, of an outcome that is a success."""
    return Step("success", lambda value: value.value if _is(value, error=False) else NO_MATCH)


def on_failure() -> Step:
    """Pass on what a model would read, of an outcome that is an error."""
    return Step("failure", lambda value: value.text if _is(value, error=True) else NO_MATCH)


def _is(value: object, *, error: bool) -> bool:
    return isinstance(value, ToolOutcome) and value.is_error is error


def _calls(value: object) -> tuple[ToolCall, ...]:
    return tuple(value.tool_calls) if isinstance(value, AssistantMessage) else ()


def _results(value: object) -> tuple[ToolResult, ...]:
    return tuple(value.tool_results) if isinstance(value, ToolMessage) else ()


async def _holds(condition: Condition, value: object) -> bool:
    answer = condition(value)
    return bool(await answer if inspect.isawaitable(answer) else answer)


def _name(function: object) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "condition" if name == "<lambda>" else name


def _tool_name(tool: str | Tool | ToolFunction) -> str:
    if isinstance(tool, str):
        return tool
    return tool.name if isinstance(tool, Tool) else getattr(tool, "__name__", "")
