"""Tools: what a model is told of a function, and what comes of calling it."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from tenure.errors import InvalidValueError
from tenure.messages import Media, Text, ToolCall, ToolResult
from tenure.tools import Tool, ToolError, ToolOutcome, ToolRegistry, output_parts, tool

pytestmark = pytest.mark.anyio


async def call(function: object, args: str = "{}") -> ToolOutcome:
    """What comes of a model's call with these arguments; it has five seconds."""
    registry = ToolRegistry([function])  # pyright: ignore
    async with asyncio.timeout(30):
        return await registry.execute(ToolCall(id="c", name=next(iter(registry)), args=args))


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(StrEnum):
    SMALL = "s"


class Address(BaseModel):
    city: str
    lines: list[str] = Field(default=[], description="Street lines.")


@dataclass
class Point:
    x: int
    y: int = 0


# --- what a model is told ------------------------------------------------------------------------


def google(text: str, times: int = 1) -> str:
    """Repeat a text.

    Use it for echoes.

    Args:
        text: What to repeat.
        times: How often.

    Returns:
        The echo.
    """
    return text * times


def numpy(text: str, times: int = 1) -> str:
    """Repeat a text.

    Use it for echoes.

    Parameters
    ----------
    text : str
        What to repeat.
    times : int
        How often.
    """
    return text * times


def sphinx(text: str, times: int = 1) -> str:
    """Repeat a text.

    Use it for echoes.

    :param text: What to repeat.
    :param times: How often.
    :returns: The echo.
    """
    return text * times


async def awaited(text: str, times: int = 1) -> str:
    """Repeat a text.

    Use it for echoes.

    Args:
        text: What to repeat.
        times: How often.
    """
    return text * times


@pytest.mark.parametrize("function", [google, numpy, sphinx, awaited])
def test_schema_comes_from_signature_and_docstring(function: Any) -> None:
    """Google, NumPy and Sphinx docstrings describe a tool alike, sync or async."""
    spec = Tool(function).spec
    assert spec.name == function.__name__
    assert spec.description == "Repeat a text.\n\nUse it for echoes."
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "What to repeat."},
            "times": {"type": "integer", "default": 1, "description": "How often."},
        },
        "required": ["text"],
        "additionalProperties": False,
    }


def test_schema_of_types() -> None:
    """Literals, enums, models, dataclasses and optional values are described as JSON schema says."""

    def order(
        size: Literal["s", "l"],
        colour: Colour,
        address: Address,
        at: Point | None = None,
        note: Annotated[str, Field(max_length=9, description="Short.")] = "",
    ) -> None: ...

    schema: Any = Tool(order).spec.parameters
    properties = schema["properties"]
    assert schema["required"] == ["size", "colour", "address"]
    assert properties["size"] == {"type": "string", "enum": ["s", "l"]}
    assert properties["at"]["default"] is None
    assert {"type": "null"} in properties["at"]["anyOf"]
    assert properties["note"]["maxLength"] == 9
    assert properties["note"]["description"] == "Short."
    assert schema["$defs"]["Colour"]["enum"] == ["red", "blue"]
    assert schema["$defs"]["Address"]["required"] == ["city"]
    assert schema["$defs"]["Point"]["properties"]["y"]["default"] == 0


def test_decorator_forms() -> None:
    """`@tool`, `@tool()` and `@tool(name=..., description=...)` all make tools that can be called."""

    @tool
    def one(a: int) -> int:
        """One."""
        return a

    @tool(name="second-tool", description="Two.")
    def two(a: int) -> int:
        """Not this."""
        return a

    assert (one.name, one.spec.description, one(3)) == ("one", "One.", 3)
    assert (two.name, two.spec.description, two(a=4)) == ("second-tool", "Two.", 4)
    assert repr(two) == "Tool('second-tool')"


def test_what_to_do_about_unknown_ends() -> None:
    """`on_unknown` is "fail" unless a tool says otherwise, however the tool is made."""

    @tool(on_unknown="retry")
    def again(a: int) -> int:
        return a

    registry = ToolRegistry(
        [
            google,
            Tool(functools.partial(Shop().left), name="left"),
            tool(numpy),
            tool()(sphinx),
            again,
            Tool(Shop(), name="shop", on_unknown="retry"),
        ]
    )
    found = {made.name: made.on_unknown for made in registry.values()}
    assert found == {
        "google": "fail",
        "left": "fail",
        "numpy": "fail",
        "sphinx": "fail",
        "again": "retry",
        "shop": "retry",
    }


@pytest.mark.parametrize("value", ["again", "", None, True])
def test_other_ways_with_unknown_ends_are_refused(value: Any) -> None:
    """`on_unknown` is "retry" or "fail" and nothing else; a tool says so when it is made."""
    with pytest.raises(InvalidValueError, match="must be 'retry' or 'fail'"):
        tool(on_unknown=value)(google)


def test_function_without_docstring_has_no_description() -> None:
    """Nothing is made up; a partial has the description of its function."""

    def bare(a: int) -> None: ...

    assert Tool(bare).spec.description == ""
    assert Tool(functools.partial(google, times=2), name="twice").spec.description.startswith(
        "Repeat"
    )


def test_default_that_json_has_not_is_left_out() -> None:
    """A default value that no schema can hold makes the parameter optional, without a warning."""

    def odd(a: object = object()) -> None: ...

    assert Tool(odd).spec.parameters["properties"] == {"a": {}}
    assert "required" not in Tool(odd).spec.parameters


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda a: a, "'<lambda>' cannot name a tool"),
        (functools.partial(google), "'' cannot name a tool"),
        (print, "positional-only parameter 'args'"),
        (len, "positional-only parameter 'obj'"),
        (int, "The class int is no tool"),
        (Point.__eq__, "is a method without its object"),
    ],
)
def test_unusable_functions_are_refused(function: Any, why: str) -> None:
    """A function that a model could not call is refused when the tool is made, with what to do."""
    with pytest.raises(InvalidValueError) as caught:
        Tool(function)
    assert why in str(caught.value)


def test_names_are_those_that_providers_take() -> None:
    """1 to 64 letters, digits, underscores and hyphens, and no newline behind them."""
    assert Tool(google, name="a-B_9" + "x" * 59).name.startswith("a-B_9")
    for name in ("", "a b", "é", "x" * 65, "a\n", "a.b"):
        with pytest.raises(InvalidValueError, match="cannot name a tool"):
            Tool(google, name=name)


def test_types_without_schema_are_refused() -> None:
    """A parameter that JSON cannot describe is named when the tool is made."""

    class Foreign: ...

    def one(a: Foreign) -> None: ...

    def two(a: Missing) -> None: ...  # noqa: F821 # pyright: ignore

    for function in (one, two):
        with pytest.raises(InvalidValueError, match=f"Tool '{function.__name__}' has a parameter"):
            Tool(function)


def test_registry_refuses_duplicates_and_strangers() -> None:
    """Two tools of one name, or an object that is no function, are refused."""
    with pytest.raises(InvalidValueError, match="Two tools are named 'google'"):
        ToolRegistry([google, Tool(numpy, name="google")])
    with pytest.raises(InvalidValueError, match="7 is not a tool"):
        ToolRegistry([7])  # pyright: ignore


def test_registry_keeps_order() -> None:
    """Specs come in the order in which the tools were given; it reads like a mapping."""
    registry = ToolRegistry([numpy, google])
    assert [spec.name for spec in registry.specs] == list(registry) == ["numpy", "google"]
    assert len(registry) == 2
    assert registry["google"].function is google


# --- arguments -----------------------------------------------------------------------------------


async def test_arguments_are_validated_and_converted() -> None:
    """A tool gets objects of the types that it asks for."""
    seen: list[object] = []

    def take(colour: Colour, address: Address, at: Point, when: datetime, *, n: int = 1) -> None:
        seen.extend((colour, address, at, when, n))

    args = {
        "colour": "blue",
        "address": {"city": "Oslo"},
        "at": {"x": 2},
        "when": "2026-01-01T00:00:00Z",
        "n": "5",
    }
    outcome = await call(take, json.dumps(args))
    assert outcome.kind == "success"
    when = datetime(2026, 1, 1, tzinfo=UTC)
    assert seen == [Colour.BLUE, Address(city="Oslo"), Point(x=2), when, 5]


async def test_bad_arguments_are_explained() -> None:
    """The model reads which argument is wrong and why, and not what it wrote."""
    outcome = await call(google, '{"times": "secret", "more": 1}')
    assert outcome.kind == "validation_error"
    assert outcome.text == (
        "Invalid arguments for tool 'google': text: Missing required argument; times: Input should "
        "be a valid integer, unable to parse string as an integer; more: Unexpected keyword argument"
    )


@pytest.mark.parametrize(
    "args", ["{", "nonsense", '{"a": 1}}', "[" * 100_000, '{"a":' * 50_000, "9" * 5000]
)
async def test_bad_json_is_told_to_the_model(args: str) -> None:
    """B5: arguments that are no JSON, however deep or long, are a validation error."""
    outcome = await call(google, args)
    assert outcome.kind == "validation_error"
    assert outcome.text.startswith("Failed to parse tool arguments: ")


@pytest.mark.parametrize(
    ("args", "kind"), [("[]", "list"), ("null", "NoneType"), ('"{}"', "str"), ("1", "int")]
)
async def test_json_that_is_no_object_is_told_to_the_model(args: str, kind: str) -> None:
    """Arguments must be a JSON object."""
    outcome = await call(google, args)
    expected = f"Failed to parse tool arguments: expected a JSON object, got {kind}."
    assert (outcome.kind, outcome.text) == ("validation_error", expected)


async def test_deep_arguments_do_not_stop_the_run() -> None:
    """Arguments nested as deep as JSON allows come to an outcome."""

    def echo(a: Any) -> Any:
        return a

    outcome = await call(echo, '{"a": ' + "[" * 900 + "]" * 900 + "}")
    assert outcome.kind == "failure"
    assert (await call(echo, '{"a": ' + "[" * 100 + "]" * 100 + "}")).text == "[" * 100 + "]" * 100


async def test_no_arguments_at_all() -> None:
    """An empty text stands for no arguments."""

    def ping() -> str:
        return "pong"

    assert (await call(ping, "")).text == "pong"


async def test_unknown_tool() -> None:
    """B5: the text for a tool that does not exist is Koog's."""
    outcome = await ToolRegistry([google]).execute(ToolCall(name="nope"))
    assert outcome.kind == "failure"
    assert outcome.text == (
        "Tool with name 'nope' not found in the tool registry. Use one of the available tools."
    )


async def test_odd_parameter_names() -> None:
    """Parameters may be called args, kwargs or like anything else inside."""

    def odd(args: int, kwargs: int, function: int) -> int:
        return args + kwargs + function

    assert (await call(odd, '{"args": 1, "kwargs": 2, "function": 3}')).value == 6


# --- errors --------------------------------------------------------------------------------------


async def test_exception_is_a_failure() -> None:
    """What a tool raises is told to the model, and kept."""

    async def broken() -> None:
        raise KeyError("x")

    outcome = await call(broken)
    assert (outcome.kind, outcome.text) == ("failure", "Tool 'broken' failed: KeyError: 'x'")
    assert isinstance(outcome.error, KeyError)
    assert outcome.is_error


async def test_tool_error_is_told_in_its_own_words() -> None:
    """B5: `ToolError` is a validation error with exactly its message."""

    def strict() -> None:
        raise ToolError("No such city; ask the user.")

    outcome = await call(strict)
    assert (outcome.kind, outcome.text) == ("validation_error", "No such city; ask the user.")


async def test_validation_error_inside_a_tool_is_a_failure() -> None:
    """A tool whose own data does not validate has failed; the arguments were not wrong."""

    def parse() -> int:
        return TypeAdapter(int).validate_python("x")

    outcome = await call(parse)
    assert outcome.kind == "failure"
    assert outcome.text.startswith("Tool 'parse' failed: ValidationError")


async def test_stop_iteration_does_not_hang() -> None:
    """A plain tool that raises StopIteration, which no future can hold, has failed like any other."""

    def first() -> object:
        return next(iter([]))

    outcome = await call(first)
    assert outcome.text == "Tool 'first' failed: RuntimeError: the function raised StopIteration"


async def test_exception_without_text() -> None:
    """An exception whose own text cannot be made does not stop the run."""

    class MuteError(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def mute() -> None:
        raise MuteError

    assert (await call(mute)).text == "Tool 'mute' failed: MuteError: (no text)"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_wish_to_stop_passes(error: type[BaseException]) -> None:
    """Ctrl-C and exit() end the program, in an async tool and in a plain one."""

    async def leave() -> None:
        raise error

    def leave_thread() -> None:
        raise error

    for function in (leave, leave_thread):
        with pytest.raises(error):
            asyncio.run(ToolRegistry([function]).execute(ToolCall(name=function.__name__)))


async def test_cancellation_passes() -> None:
    """A cancelled run is cancelled also inside a tool; it is no result."""
    started = asyncio.Event()

    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(call(wait))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancellation_does_not_wait_for_a_thread() -> None:
    """A run is cancelled at once, though a plain tool's thread goes on to its end."""
    started, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        go_on.wait(5)

    task = asyncio.create_task(call(slow))
    await asyncio.to_thread(started.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not go_on.is_set()
    go_on.set()


# --- where tools run -----------------------------------------------------------------------------


async def test_plain_tools_do_not_block_the_loop() -> None:
    """C82: while a plain tool waits, the event loop turns: it is what wakes the tool."""
    woken = threading.Event()

    def wait() -> bool:
        return woken.wait(5)

    task = asyncio.create_task(call(wait))
    for _ in range(10):
        await asyncio.sleep(0)
    woken.set()
    assert (await task).value is True


async def test_async_tools_run_on_the_loop() -> None:
    """An async tool runs in the loop's own thread."""

    async def where() -> bool:
        return threading.current_thread() is here

    here = threading.current_thread()
    assert (await call(where)).value is True


async def test_plain_tools_see_context_variables() -> None:
    """A worker thread has the context variables of whoever asked."""
    variable: ContextVar[str] = ContextVar("variable", default="unset")

    def look() -> str:
        return variable.get()

    variable.set("set")
    assert (await call(look)).text == "set"


# --- all kinds of functions ----------------------------------------------------------------------


class Shop:
    """Not this text."""

    def __init__(self) -> None:
        self.stock = 5

    def left(self, of: int = 1) -> int:
        """What is left.

        Args:
            of: Which thing.
        """
        return self.stock * of

    async def later(self, of: int) -> int:
        return self.stock * of

    @classmethod
    def named(cls, of: int) -> str:
        return f"{cls.__name__} {of}"

    @staticmethod
    def free(of: int) -> int:
        return of

    def __call__(self, of: int) -> int:
        """Ask the shop.

        Args:
            of: Which thing.
        """
        return self.stock + of


class AsyncShop:
    async def __call__(self, of: int) -> int:
        return of + 1


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (Shop().left, 10),
        (Shop().later, 10),
        (Shop.named, "Shop 2"),
        (Shop.free, 2),
        (Tool(Shop(), name="shop"), 7),
        (Tool(AsyncShop(), name="shop"), 3),
        (Tool(lambda of: of, name="same"), "2"),
        (Tool(functools.partial(Shop().left), name="left"), 10),
        (Tool(functools.partial(Shop().later), name="later"), 10),
    ],
)
async def test_anything_callable_is_a_tool(function: object, value: object) -> None:
    """Methods, callable objects, lambdas and partials run with their arguments converted."""
    assert (await call(function, '{"of": "2"}')).value == value


async def test_partial_offers_what_is_left() -> None:
    """Arguments that a partial fixed by position are not offered; those fixed by name have defaults."""
    fixed = Tool(functools.partial(google, "ab"), name="fixed")
    assert list(fixed.spec.parameters["properties"]) == ["times"]  # pyright: ignore
    assert (await call(fixed, '{"times": "2"}')).text == "abab"
    named = Tool(functools.partial(google, times=3), name="named")
    assert (await call(named, '{"text": "x"}')).text == "xxx"
    assert (await call(named, '{"text": 1}')).kind == "validation_error"


def test_callable_object_is_described_by_its_call() -> None:
    """The docstring of `__call__` counts, and not the one of the class."""
    spec: Any = Tool(Shop(), name="shop").spec
    assert spec.description == "Ask the shop."
    assert spec.parameters["properties"]["of"]["description"] == "Which thing."


async def test_types_of_the_enclosing_function() -> None:
    """Types that are local to the function that makes the tool are found, as text annotations too."""

    class Local(BaseModel):
        n: int

    def take(local: Local, more: list[Local] | None = None) -> int:
        return local.n

    assert take.__annotations__["local"] == "Local"
    assert (await call(take, '{"local": {"n": "7"}}')).value == 7


# --- what a model reads --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is \ud83d\0", "as it is \ud83d\0"),
        (None, ""),
        (3, "3"),
        (1.5, "1.5"),
        (True, "true"),
        (Decimal("1.10"), '{"$Decimal": "1.10"}'),
        ([1, "ä", None], '[1, "ä", null]'),
        ({"b": 1, "a": [2]}, '{"b": 1, "a": [2]}'),
        (
            Address(city="Oslo", lines=["a"]),
            f'{{"${__name__}.Address": {{"city": "Oslo", "lines": ["a"]}}}}',
        ),
        ([Point(1)], f'[{{"${__name__}.Point": {{"x": 1, "y": 0}}}}]'),
        (datetime(2026, 1, 1, tzinfo=UTC), '{"$datetime": "2026-01-01T00:00:00+00:00"}'),
        (Colour.RED, f'{{"${__name__}.Colour": "red"}}'),
        (Size.SMALL, f'{{"${__name__}.Size": "s"}}'),
        (b"hi", '{"$bytes": "aGk="}'),
        ((), '{"$tuple": []}'),
    ],
)
async def test_outputs_are_written_as_json(value: object, text: str) -> None:
    """A text is read as it is, None is empty, and everything else is tagged JSON."""

    def give() -> object:
        return value

    outcome = await call(give)
    assert (outcome.kind, outcome.text, outcome.value) == ("success", text, value)


def test_output_of_a_str_subclass_is_its_text() -> None:
    """A subclass of str is a text: its characters are kept, in a plain one."""

    class Markup(str):
        def __str__(self) -> str:
            return "other"

    (part,) = output_parts(Markup("<b>"))
    assert part == Text(text="<b>")
    assert isinstance(part, Text)
    assert type(part.text) is str


def test_output_of_parts() -> None:
    """Media and texts are parts already, alone or in a list with other things."""
    picture = Media(media_type="image/png", data=b"png")
    assert output_parts(picture) == (picture,)
    assert output_parts(["see", picture, 3]) == (Text(text="see"), picture, Text(text="3"))
    assert output_parts((Text(text="a"),)) == (Text(text="a"),)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "result of type object"),
        ({"a": [1, object()]}, 'result["a"][1] of type object'),
        ([threading.Lock()], "result[0] of type _thread.lock"),
        (print, "result of type builtin_function_or_method"),
    ],
)
async def test_outputs_without_json_are_named(value: object, what: str) -> None:
    """A result that cannot be written fails with its type, and never becomes some text in silence."""

    def give() -> object:
        return value

    outcome = await call(give)
    assert outcome.kind == "failure"
    assert outcome.text.startswith(
        f"Tool 'give' failed: InvalidValueError: {what} cannot be written as JSON: "
    )
    assert isinstance(outcome.error, InvalidValueError)


async def test_endless_output_is_a_failure() -> None:
    """A list that holds itself is a failure, not a crash."""
    circle: list[object] = []
    circle.append(circle)

    def give() -> object:
        return circle

    assert (await call(give)).kind == "failure"


def test_outcome_answers_a_call() -> None:
    """The result has the call's id and name, and C58: whether it failed."""
    outcome = ToolOutcome(kind="failure", parts=(Text(text="boom"),))
    assert outcome.result_of(ToolCall(id="c", name="t")) == ToolResult(
        call_id="c", name="t", parts=(Text(text="boom"),), is_error=True
    )
