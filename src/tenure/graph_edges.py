"""Steps of edges: which values an edge lets pass, and what it makes of them.

Steps are applied in order; each gets what the one before has passed on. A reply that calls tools is never
taken for an answer in words, and a condition on calls lets the whole reply pass, so that no call of it is
left without a result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tenure.messages import AssistantMessage, ToolCall, ToolMessage, ToolResult
from tenure.signatures import awaited
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
        return await awaited(self.function(value))


def on_condition(condition: Condition) -> Step:
    """Let pass what a function, sync or async, says yes to."""
    return _letting(_name(condition), condition)


def transformed(function: Callable[[Any], object]) -> Step:
    """Pass on what a function, sync or async, makes of the value."""
    return Step(_name(function), function)


def on_is_instance(kind: type | tuple[type, ...]) -> Step:
    """Let pass objects of a class."""
    names = [each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,))]
    return _letting(f"is {' or '.join(names)}", lambda value: isinstance(value, kind))


def on_tool_calls(condition: Condition | None = None) -> Step:
    """Let pass a reply that calls tools; with a condition, if it holds for one of the calls."""

    async def holds(value: object) -> bool:
        if condition is None:
            return bool(_calls(value))
        for call in _calls(value):
            if await awaited(condition(call)):
                return True
        return False

    return _letting("tool calls" if condition is None else f"tool calls: {_name(condition)}", holds)


def on_multiple_tool_calls(condition: Condition | None = None) -> Step:
    """Let pass a reply with two calls of tools or more; with a condition, if it holds for all of them."""

    async def holds(value: object) -> bool:
        return len(calls := _calls(value)) > 1 and await _holds_for_all(condition, calls)

    return _letting("several tool calls", holds)


def on_tool_call(tool: str | Tool | ToolFunction) -> Step:
    """Let pass a reply that calls this tool, whatever else it calls."""
    name = _tool_name(tool)
    return _letting(f"calls {name}", lambda value: _has(name, _calls(value)))


def on_tool_not_called(tool: str | Tool | ToolFunction) -> Step:
    """Let pass a reply that does not call this tool."""
    name = _tool_name(tool)
    return _letting(
        f"does not call {name}",
        lambda value: isinstance(value, AssistantMessage) and not _has(name, _calls(value)),
    )


def on_assistant_message(condition: Condition | None = None) -> Step:
    """Pass on the text of a reply that calls no tool; with a condition, if it holds for the reply."""

    async def passed(value: object) -> object:
        if not isinstance(value, AssistantMessage) or value.tool_calls:
            return NO_MATCH
        return value.text if await _holds_for_all(condition, [value]) else NO_MATCH

    return Step("answers", passed)


def on_tool_results(condition: Condition | None = None) -> Step:
    """Let pass a message with results of tools; with a condition, if it holds for all of them."""

    async def holds(value: object) -> bool:
        return bool(results := _results(value)) and await _holds_for_all(condition, results)

    return _letting("tool results", holds)


def on_tool_result(tool: str | Tool | ToolFunction) -> Step:
    """Let pass a message with a result of this tool."""
    name = _tool_name(tool)
    return _letting(f"result of {name}", lambda value: _has(name, _results(value)))


def on_successful() -> Step:
    """Pass on what a tool returned, of an outcome that is a success."""
    return Step("success", lambda value: value.value if _is(value, error=False) else NO_MATCH)


def on_failure() -> Step:
    """Pass on what a model would read, of an outcome that is an error."""
    return Step("failure", lambda value: value.text if _is(value, error=True) else NO_MATCH)


def _letting(label: str, condition: Condition) -> Step:
    """A step that passes on what its condition holds for, as it is."""

    async def passed(value: object) -> object:
        return value if await awaited(condition(value)) else NO_MATCH

    return Step(label, passed)


async def _holds_for_all(condition: Condition | None, values: Iterable[object]) -> bool:
    return condition is None or all([await awaited(condition(value)) for value in values])


def _has(name: str, items: Iterable[ToolCall | ToolResult]) -> bool:
    return any(item.name == name for item in items)


def _is(value: object, *, error: bool) -> bool:
    return isinstance(value, ToolOutcome) and value.is_error is error


def _calls(value: object) -> tuple[ToolCall, ...]:
    return tuple(value.tool_calls) if isinstance(value, AssistantMessage) else ()


def _results(value: object) -> tuple[ToolResult, ...]:
    return tuple(value.tool_results) if isinstance(value, ToolMessage) else ()


def _name(function: object) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "condition" if name == "<lambda>" else name


def _tool_name(tool: str | Tool | ToolFunction) -> str:
    if isinstance(tool, str):
        return tool
    return tool.name if isinstance(tool, Tool) else getattr(tool, "__name__", "")
