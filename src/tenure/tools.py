"""Tools: Python functions that a model may call.

`@tool` makes a `Tool` of a function: its JSON schema and descriptions come from the signature and the
docstring, and what a model writes as arguments is validated before the function runs. Calling goes
through `ToolRegistry.execute`, which never raises for what a model or a tool did wrong: a bad argument,
an unknown name and an exception become a `ToolOutcome` whose text the model reads, and can act on.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias, cast, overload

from tenure.errors import InvalidValueError, UnknownToolError
from tenure.messages import Json, Media, ResultPart, Text, ToolCall, ToolResult
from tenure.signatures import arguments_adapter, docstring_of, explained, is_async, schema_of
from tenure.values import to_tagged_json

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what every provider accepts as a tool's name

ToolFunction: TypeAlias = Callable[..., object]

OnUnknown: TypeAlias = Literal["retry", "fail"]
"""What a resumed run does about a call that had started and whose end is not known; see `Tool`."""


class ToolError(Exception):
    """Raise this in a tool to tell the model, in your own words, what it did wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What a model is told of a tool.

    Args:
        name: 1 to 64 letters, digits, `_` or `-`.
        description: What it does and when to use it.
        parameters: The JSON schema of its arguments; an object schema.
    """

    name: str
    description: str
    parameters: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """What came of a tool call.

    Args:
        kind: `"success"`; `"validation_error"` when the arguments were bad or the tool raised
            `ToolError`; `"failure"` for everything else that went wrong.
        parts: What the model reads.
        value: What the function returned; None unless it succeeded.
        error: The exception, if there was one.
    """

    kind: Literal["success", "failure", "validation_error"]
    parts: tuple[ResultPart, ...]
    value: object = None
    error: Exception | None = None

    @property
    def is_error(self) -> bool:
        """Whether the call did not succeed."""
        return self.kind != "success"

    @property
    def text(self) -> str:
        """The text parts, joined by newlines."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    def result_of(self, call: ToolCall) -> ToolResult:
        """Return this outcome as the answer to `call`."""
        return ToolResult(call_id=call.id, name=call.name, parts=self.parts, is_error=self.is_error)


class Tool:
    """A function, and what a model is told of it. Made by `@tool`; still callable as the function.

    A plain function runs in a worker thread, so that it cannot block the event loop; an async one
    runs on the loop.

    Attributes:
        function: The function itself.
        spec: What a model is told of it.
        on_unknown: What is done, when a run is resumed after its process died, about a call of this
            tool that had started and whose end is not known: `"retry"` runs it again, `"fail"` gives
            the model an error result that says so.
    """

    def __init__(
        self,
        function: ToolFunction,
        *,
        name: str | None = None,
        description: str | None = None,
        on_unknown: OnUnknown = "fail",
    ) -> None:
        """Read the signature and the docstring of `function`; the arguments are those of `tool`.

        Raises:
            InvalidValueError: The name is not one that providers accept, a parameter has a type
                that has no JSON schema, or `on_unknown` has another value.
        """
        if isinstance(function, type):
            raise InvalidValueError(
                f"The class {function.__name__} is no tool; give a function, or an object of a class "
                "with __call__."
            )
        self.function = function
        chosen = name if name is not None else getattr(function, "__name__", "")
        if not _NAME.fullmatch(chosen):
            raise InvalidValueError(
                f"{chosen!r} cannot name a tool: use 1 to 64 letters, digits, '_' or '-', "
                "for instance with @tool(name=...)."
            )
        if on_unknown not in ("retry", "fail"):
            raise InvalidValueError(f"on_unknown={on_unknown!r} must be 'retry' or 'fail'.")
        self.on_unknown: OnUnknown = on_unknown
        summary, parameters = docstring_of(function)
        self._adapter = arguments_adapter(function, chosen)
        self.spec = ToolSpec(
            name=chosen,
            description=description if description is not None else summary,
            parameters=schema_of(self._adapter, chosen, parameters),
        )
        self.__doc__ = function.__doc__

    @property
    def name(self) -> str:
        """The name under which a model calls it."""
        return self.spec.name

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call the function itself, with nothing validated."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"

    async def execute(self, args: Mapping[str, Json]) -> ToolOutcome:
        """Validate the arguments, run the function and return what came of it.

        Never raises for a bad argument or for an `Exception` of the function; cancellation passes.
        """
        from pydantic import ValidationError

        try:
            positional, named = self._adapter.validate_python(dict(args))
        except ValidationError as exc:
            return _refused(f"Invalid arguments for tool {self.name!r}: {explained(exc)}", exc)
        try:
            if is_async(self.function):
                value = await self.function(*positional, **named)
            else:
                value = await asyncio.to_thread(self._run, positional, named)
                if inspect.isawaitable(value):
                    value = await value
            return ToolOutcome(kind="success", parts=output_parts(value), value=value)
        except ToolError as exc:
            return _refused(text_of_error(exc), exc)
        except Exception as exc:
            _log.debug("tool %s failed: %s", self.name, type(exc).__name__)
            return _failed(
                f"Tool {self.name!r} failed: {type(exc).__name__}: {text_of_error(exc)}", exc
            )

    def _run(self, positional: tuple[object, ...], named: dict[str, object]) -> object:
        try:
            return self.function(*positional, **named)
        except StopIteration as exc:
            # A future cannot hold it: whoever awaits the thread would wait for ever.
            raise RuntimeError("the function raised StopIteration") from exc


@overload
def tool(function: ToolFunction, /) -> Tool: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, on_unknown: OnUnknown = "fail"
) -> Callable[[ToolFunction], Tool]: ...
def tool(
    function: ToolFunction | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    on_unknown: OnUnknown = "fail",
) -> Tool | Callable[[ToolFunction], Tool]:
    """Make a tool of a sync or async function.

    Args:
        function: The function, when there are no parentheses behind `@tool`.
        name: Its name for the model; the function's own by default.
        description: What the model is told of it; by default the docstring up to its sections. The
            docstring's `Args:` section (Google, NumPy or Sphinx style) describes the parameters.
        on_unknown: What a resumed run does about a call that had started when the run's process died,
            so that nobody knows what came of it. `"retry"` is for tools whose effect happens once
            however often they are called, as with `idempotency_key`; `"fail"` is for all others.

    Raises:
        InvalidValueError: See `Tool`.
    """
    if function is not None:
        return Tool(function, name=name, description=description, on_unknown=on_unknown)
    return lambda decorated: Tool(
        decorated, name=name, description=description, on_unknown=on_unknown
    )


class ToolRegistry(Mapping[str, Tool]):
    """The tools that can be run, by name, in the order in which they were given."""

    def __init__(self, tools: Iterable[Tool | ToolFunction] = ()) -> None:
        """Take tools; a plain function is made one.

        Raises:
            InvalidValueError: Two of them have one name, or one is not a function.
        """
        self._tools: dict[str, Tool] = {}
        for item in tools:
            if not callable(item):
                raise InvalidValueError(f"{item!r} is not a tool; give a function or a @tool.")
            made = item if isinstance(item, Tool) else Tool(item)
            if made.name in self._tools:
                raise InvalidValueError(
                    f"Two tools are named {made.name!r}; rename one with @tool(name=...)."
                )
            self._tools[made.name] = made

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What a model is told of the tools, in order."""
        return tuple(tool.spec for tool in self._tools.values())

    def find(self, tool: str | type | Tool | ToolFunction) -> Tool:
        """Return a registered tool.

        Args:
            tool: Its name, the tool or the function itself, or the class of which it is an object.

        Raises:
            UnknownToolError: There is no such tool, or there are several of that class.
        """
        if isinstance(tool, str):
            found = [self._tools[tool]] if tool in self._tools else []
        elif isinstance(tool, type):
            found = [t for t in self._tools.values() if isinstance(t, tool) or _is_of(t, tool)]
        else:
            found = [t for t in self._tools.values() if tool in (t, t.function)]
        if len(found) == 1:
            return found[0]
        name = tool if isinstance(tool, str) else getattr(tool, "__name__", repr(tool))
        names = ", ".join(t.name for t in found) if found else ", ".join(self._tools) or "none"
        if found:
            raise UnknownToolError(f"Several tools are of the class {name}: {names}; give a name.")
        raise UnknownToolError(
            f'Tool "{name}" is not defined in the tool registry; the agent has: {names}. Give it to '
            "the agent with tools=[...], or use one of these."
        )

    async def execute(self, call: ToolCall) -> ToolOutcome:
        """Run what a model called. Whatever is wrong with the call is in the outcome, not raised."""
        found = self._tools.get(call.name)
        if found is None:
            return _failed(
                f"Tool with name '{call.name}' not found in the tool registry. "
                "Use one of the available tools."
            )
        try:
            args: object = json.loads(call.args or "{}")
        except (ValueError, RecursionError) as exc:
            return _refused(f"Failed to parse tool arguments: {exc}", exc)
        if not isinstance(args, dict):
            return _refused(
                f"Failed to parse tool arguments: expected a JSON object, got {type(args).__name__}."
            )
        return await found.execute(cast("dict[str, Json]", args))


def _is_of(tool: Tool, cls: type) -> bool:
    """Whether a tool is an object of a class with `__call__`, or a method of an object of it."""
    return isinstance(tool.function, cls) or isinstance(
        getattr(tool.function, "__self__", None), cls
    )


def output_parts(value: object) -> tuple[ResultPart, ...]:
    """Return what a model reads of a tool's return value.

    A text is taken as it is, `Text` and `Media` are parts already (alone or in a list or tuple), None
    is an empty text, and everything else is written as tagged JSON, which `values.py` describes.

    Raises:
        InvalidValueError: Something in it has no exact form; the text names its type and its place.
    """
    if isinstance(value, (Text, Media)):
        return (value,)
    if isinstance(value, (list, tuple)):
        items = cast("list[object] | tuple[object, ...]", value)
        if items and any(isinstance(item, (Text, Media)) for item in items):
            return tuple(part for item in items for part in output_parts(item))
    if value is None:
        return (Text(text=""),)
    if isinstance(value, str) and not isinstance(value, Enum):
        return (Text(text=str.__str__(value)),)  # of a subclass, the characters alone
    return (Text(text=to_tagged_json(cast("object", value))),)


def text_of_error(error: Exception) -> str:
    """Return what an exception says, whatever its class makes of that."""
    try:
        return str(error)
    except Exception:  # its own __str__ is wrong
        return "(no text)"


def _failed(text: str, error: Exception | None = None) -> ToolOutcome:
    return ToolOutcome(kind="failure", parts=(Text(text=text),), error=error)


def _refused(text: str, error: Exception | None = None) -> ToolOutcome:
    return ToolOutcome(kind="validation_error", parts=(Text(text=text),), error=error)
