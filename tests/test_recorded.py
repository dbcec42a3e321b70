"""What nodes return, as JSON and back: our own values, the user's, and what is refused when written."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import timeit
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum, StrEnum
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tenure import (
    Agent,
    AssistantMessage,
    LLMParams,
    Media,
    Memory,
    Message,
    NamedTool,
    NodeCompleted,
    Opaque,
    Prompt,
    Reasoning,
    RunContext,
    StructuredOutputError,
    StructuredResult,
    Text,
    ToolCall,
    ToolError,
    ToolMessage,
    ToolOutcome,
    ToolResult,
    Usage,
    UserMessage,
    WholeHistory,
    assistant,
    tool,
    user,
)
from tenure import graph_nodes as nodes
from tenure.errors import InvalidValueError
from tenure.graph import Graph
from tenure.mappings import EMPTY
from tenure.memory import Provenance
from tenure.recorded import RecordedError, from_recorded, to_recorded
from tenure.testing import ScriptedModel
from tenure.testing.histories import random_history
from tenure.values import from_tagged

WHAT = "The output of node 'strategy/plan'"


class Colour(Enum):
    RED = "red"


class Size(StrEnum):
    SMALL = "s"


class Pair(NamedTuple):
    left: Any
    right: Any = 0


@dataclass
class Point:
    x: Any
    y: Any = None


class Order(BaseModel):
    number: int
    note: Any = None


@dataclass(frozen=True)
class Registered:
    """Only one that was registered can be in a set."""

    name: str

    def __hash__(self) -> int:
        return REGISTERED[id(self)]


REGISTERED: dict[int, int] = {}
TYPES = (Colour, Size, Pair, Point, Order)


class SoldOutError(Exception):
    pass


def again(value: object, types: tuple[type, ...] = TYPES) -> Any:
    """The value after a way through a text of JSON."""
    text = json.dumps(to_recorded(value, WHAT, types=types), allow_nan=False)
    return from_recorded(json.loads(text), WHAT, types=types)


def exactly(value: Any) -> object:
    """All that there is to know of a value, also what its equality ignores. `EMPTY` is a dict here."""
    cls: Any = type(value)
    if isinstance(value, dict):
        return (dict, [(exactly(key), exactly(item)) for key, item in value.items()])
    if isinstance(value, list | tuple):
        return (cls, [exactly(item) for item in value])
    if isinstance(value, set | frozenset):
        return (cls, sorted(repr(exactly(item)) for item in value))
    if isinstance(value, BaseModel):
        return (cls, exactly(dict(value)), value.model_fields_set)
    if isinstance(value, Exception):
        return (cls, str(value), vars(value))
    if isinstance(value, np.ndarray):
        return (cls, value.dtype, value.shape, value.tolist())
    if dataclasses.is_dataclass(value):
        return (cls, [exactly(getattr(value, f.name)) for f in dataclasses.fields(value)])
    return (cls, repr(value))


def parts_of(history: list[Message]) -> list[Any]:
    return [part for message in history for part in message.parts]


# --- our own values ------------------------------------------------------------------------------

histories = st.integers(0, 2**32).map(random_history)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(histories)
def test_messages_are_exact(history: list[Message]) -> None:
    """All messages and bare parts come back whole: with ids, times, unknown parts and unknown fields."""
    for value in (history, tuple(history), *history, *parts_of(history)):
        found = again(value)
        assert found == value
        assert exactly(found) == exactly(value)


@pytest.mark.parametrize(
    "part",
    [
        Text(text="two halves: \ud83d\udf78", provider={"$ref": 1}, extra={"later": [None]}),
        Text(text=""),
        Media(media_type="image/png", data=b"", filename="x"),
        Media(media_type="image/png", url="https://example.org"),
        Reasoning(text="hm", provider={"signature": "s"}),
        ToolCall(name="add", args="not JSON"),
        ToolResult(name="add", parts=(Text(text="3"), Opaque(kind="x", data={"y": 1}))),
        Opaque(kind="video_call", data={"minutes": 3, "$x": {"$y": 1}}),
        Opaque(kind="$x"),
        Opaque(kind="", data={"parts": [{"kind": "text"}]}),
    ],
)
def test_each_kind_of_part_alone(part: object) -> None:
    """A part is known without a message around it, also in what the user's classes hold."""
    for value in (part, [part], (part,), {"a": part}, {(1,): part}, Point(part), Pair(part)):
        assert exactly(again(value)) == exactly(value)
    order = Order(number=1, note=[part])
    assert exactly(again(order)) == exactly(order)


def message_of(seed: int) -> st.SearchStrategy[Message]:
    return st.sampled_from(random_history(seed) or [user("hi")])


leaves = st.one_of(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(), max_size=5),
    st.integers(0, 999).flatmap(message_of),
    st.sampled_from([Colour.RED, Size.SMALL, Text(text="x"), Opaque(kind="x"), Usage(requests=1)]),
    st.just(EMPTY),
)
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3) | st.just("$tenure:message"), inner, max_size=3),
        st.dictionaries(st.integers() | st.tuples(st.integers()), inner, max_size=2),
        st.builds(Point, inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(lambda note: Order(number=1, note=note), inner),
        st.builds(lambda value: ToolOutcome(kind="success", parts=(), value=value), inner),
        st.builds(lambda value: StructuredResult(message=assistant("x"), value=value), inner),
    ),
    max_leaves=6,
)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(nested)
def test_containers_of_everything_are_exact(value: object) -> None:
    """Whatever containers, classes of the user's and our own values hold each other comes back."""
    assert exactly(again(value)) == exactly(value)


def test_sets_of_messages() -> None:
    """Messages and parts are in sets as they were."""
    for value in ({user("a"), assistant("b")}, frozenset([Text(text="x"), Text(text="y")])):
        assert exactly(again(value)) == exactly(value)


def test_the_rest_of_our_values() -> None:
    """Prompts with all their params, usage, specs of tools and memories come back without `types`."""

    @tool
    def add(a: int, b: int = 0) -> int:
        """Add two numbers."""
        return a + b

    now = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    memory = Memory(
        id="1", tenant="", agent_id="a", user_id=None, content="c", content_hash="b2:", metadata={},
        created_at=now, updated_at=now, provenance=Provenance(run_id="r", message_ids=("m",)),
        embedding=np.array([0.1, -0.7], "float32"), signals={"words": 0.5},
    )  # fmt: skip
    prompt = Prompt(
        id="p",
        messages=(user("a"), AssistantMessage(parts=(ToolCall(name="add"),))),
        params=LLMParams(temperature=0.5, tool_choice=NamedTool("add"), additional={"top_p": 0.9}),
    )
    for value in (prompt, Prompt(), Usage(details={"cached": 3}), Usage(), add.spec, memory):
        found = again(value, ())
        assert found == value
        assert exactly(found) == exactly(value)
    assert not again(memory).embedding.flags.writeable
    assert again(replace(memory, embedding=None)) == memory
    assert again(Usage()).details is EMPTY
    assert again([EMPTY])[0] is EMPTY


def test_reading_is_open_to_later_fields() -> None:
    """What is written before one of our classes gets a field is read with the field's default."""
    data: Any = to_recorded(Usage(input_tokens=1), WHAT)
    del data["$tenure:usage"]["requests"]
    assert from_recorded(data, WHAT) == Usage(input_tokens=1)
    outcome: Any = to_recorded(ToolOutcome(kind="success", parts=(), value=1), WHAT)
    del outcome["$tenure:outcome"]["error"]
    assert from_recorded(outcome, WHAT) == ToolOutcome(kind="success", parts=(), value=1)


def test_message_from_a_newer_version() -> None:
    """Fields that a newer tenure has written into a message are there when it is written again."""
    data: Any = to_recorded(assistant("x"), WHAT)
    data["$tenure:message"]["mood"] = {"$tuple": [1]}
    data["$tenure:message"]["parts"].append({"kind": "hologram", "depth": 3})
    found: Any = from_recorded(data, WHAT)
    assert found.extra == {"mood": (1,)}
    assert found.parts[-1] == Opaque(kind="hologram", data={"depth": 3})
    assert to_recorded(found, WHAT) == data


def test_what_messages_hold_beside_json() -> None:
    """Subclasses of texts and numbers become those, as in a store; tuples and NaN are kept."""

    class Markup(str):
        __slots__ = ()

    held = {
        "a": Markup("b"), Markup("c"): Size.SMALL, "d": np.float64(0.5), "e": (1, [2]),
        "f": float("inf"), "g": 10**700, "h": type("Number", (int,), {})(7),
    }  # fmt: skip
    message = UserMessage(parts=(Text(text=Markup("hi")),), id=Markup("m"), metadata=held)
    found = again(message)
    assert found == message
    assert [type(item) for item in found.metadata.values()] == [
        str,
        str,
        float,
        tuple,
        float,
        int,
        int,
    ]
    assert type(found.text) is type(found.id) is str
    with pytest.raises(InvalidValueError, match="subclass of str"):  # elsewhere they are refused
        to_recorded([message, Markup("x")], WHAT)


# --- errors in outcomes --------------------------------------------------------------------------


class SpecialToolError(ToolError):
    pass


class Mute(Exception):  # noqa: N818 # a name of the user's
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (StructuredOutputError("no JSON", raw="x \ud83d"), None),
        (StructuredOutputError(), None),
        (ToolError("no such city"), None),
        (ToolError(), None),
        (SpecialToolError("no"), ToolError("no")),
        (ValueError("wrong"), RecordedError("ValueError", "wrong")),
        (KeyError(), RecordedError("KeyError", "")),
        (SoldOutError("no 7"), RecordedError(f"{__name__}.SoldOutError", "no 7")),
        (Mute(), RecordedError(f"{__name__}.Mute", "(no text)")),
        (
            ExceptionGroup("two", [ValueError("a")]),
            RecordedError("ExceptionGroup", "two (1 sub-exception)"),
        ),
        (RecordedError("app.LostError", "gone"), None),
    ],
)  # fmt: skip
def test_errors_of_outcomes(error: Exception, found: Exception | None) -> None:
    """Errors of ours that tools and answers have come back; of others, the name and the text do."""
    outcome = ToolOutcome(kind="failure", parts=(Text(text="failed"),), error=error)
    read = again([outcome])[0]
    assert exactly(read.error) == exactly(found or error)
    assert (read.kind, read.parts, read.value) == (outcome.kind, outcome.parts, None)
    assert exactly(again(read)) == exactly(read)
    if isinstance(error, StructuredOutputError):
        result: StructuredResult[int] = StructuredResult(message=assistant("x"), error=error)
        assert exactly(again(result)) == exactly(result)
        with pytest.raises(StructuredOutputError):
            again(result).unwrap()


def test_recorded_errors_say_what_they_were() -> None:
    """A `RecordedError` has the name and the text of the exception, also as a copy."""
    error = RecordedError("app.SoldOutError", "no 7")
    assert str(error) == "app.SoldOutError: no 7"
    assert str(RecordedError("KeyError", "")) == "KeyError"
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert exactly(other) == exactly(error)


# --- what is refused -----------------------------------------------------------------------------


OtherPoint = dataclasses.make_dataclass("Point", ["x"])
OtherPoint.__module__ = __name__


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (object, " of type object cannot be written as JSON: no exact form of it is known"),
        (lambda: {"a": [1, {object()}]}, ' at ["a"][1][0] of type object cannot be written'),
        (lambda: Point([ValueError("secret")]), " at .x[0] of type ValueError cannot be written"),
        (lambda: RecordedError("a", "secret"), " of type tenure.recorded.RecordedError cannot be"),
        (lambda: SoldOutError("secret"), f" of type {__name__}.SoldOutError cannot be written"),
        (
            lambda: ToolOutcome(kind="success", parts=(), value={"a": object()}),
            ' at .value["a"] of type object cannot be written as JSON',
        ),
        (
            lambda: StructuredResult(message=assistant("x"), value=[print]),
            " at .value[0] of type builtin_function_or_method cannot be written as JSON",
        ),
        (
            lambda: [replace(user("x"), metadata={"a": {"secret"}})],
            " at [0] of type tenure.messages.UserMessage cannot be written as JSON: an object of type "
            "set is not JSON; put plain JSON values into metadata and provider fields.",
        ),
        (
            lambda: [Text(text="secret", provider={1: "secret"})],
            " at [0] of type tenure.messages.Text cannot be written as JSON: key 1 is of type int, and "
            "not a text; put plain",
        ),
        (
            lambda: Media(media_type="x", data="secret"),  # pyright: ignore
            " of type tenure.messages.Media cannot be written as JSON: a field is of the wrong type",
        ),
        (
            lambda: replace(assistant("x"), usage=Usage(input_tokens="secret")),  # pyright: ignore
            " of type tenure.messages.AssistantMessage cannot be written as JSON: input_tokens is of type",
        ),
        (
            lambda: Text(text="x", extra={"kind": "secret"}),
            " of type tenure.messages.Text cannot be written as JSON: extra holds 'kind', which is",
        ),
    ],
)  # fmt: skip
def test_refusals(make: Callable[[], object], why: str) -> None:
    """A refusal is one sentence of what it is, the place, the type and the reason, and of no contents."""
    with pytest.raises(InvalidValueError) as caught:
        to_recorded(make(), WHAT, types=TYPES)
    assert str(caught.value).startswith(WHAT + why)
    assert str(caught.value).count(".\n") == 0
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (Point(1), ""),
        (Colour.RED, ""),
        (Pair(1), ""),
        (Order(number=1), ""),
        ([user("x"), {"a": Order(number=1)}], ' at [1]["a"]'),
        (ToolOutcome(kind="success", parts=(), value=(Order(number=1),)), " at .value[0]"),
        (StructuredResult(message=assistant("x"), value=Order(number=1)), " at .value"),
    ],
)
def test_classes_that_could_not_be_read(value: object, place: str) -> None:
    """An instance of a class that is not among the types is refused when it is written."""
    with pytest.raises(InvalidValueError) as caught:
        to_recorded(value, WHAT)
    text = str(caught.value)
    name = text.rpartition("types=[")[2].removesuffix("]).")
    assert name in {"Point", "Colour", "Pair", "Order"}
    assert text == (
        f"{WHAT}{place} of type {__name__}.{name} cannot be written as JSON: it could not be read "
        f"again; give Persistence(types=[{name}])."
    )
    data = to_recorded(value, WHAT, types=TYPES)
    with pytest.raises(InvalidValueError) as caught:
        from_recorded(data, WHAT)
    assert str(caught.value).startswith(f"{WHAT} cannot be read (")
    assert f"give Persistence(types=[{name}])" in str(caught.value)


def test_two_classes_of_one_name() -> None:
    """A class is refused if the one of its name among the types is another one."""
    with pytest.raises(InvalidValueError, match="types= has another class of this name"):
        to_recorded(OtherPoint(1), WHAT, types=[Point])
    with pytest.raises(InvalidValueError, match="two classes named"):
        to_recorded(1, WHAT, types=[Point, OtherPoint])


def test_instances_are_read_once_before_they_count_as_written() -> None:
    """What the user's own code would not let be built again is refused when it is written."""
    value = Registered("a")
    REGISTERED[id(value)] = 1
    with pytest.raises(InvalidValueError, match=r"'strategy/plan' could not be read again \(What"):
        to_recorded({value}, WHAT, types=[Registered])


def test_types_are_checked_both_ways() -> None:
    """What cannot be built is no type, even if nothing of it is in the value."""
    for act in (to_recorded, from_recorded):
        with pytest.raises(InvalidValueError, match="types= takes enums"):
            act(1, WHAT, types=[int])


def test_circles_and_depth() -> None:
    """What holds itself, or is nested too deeply, also in a message, is refused."""
    circle: list[object] = []
    circle.append(circle)
    deep: Any = {}
    for _ in range(200):
        deep = {"a": deep}
    for value, why in (
        (circle, "it holds itself"),
        (deep, "more than 128 levels"),
        (replace(user("x"), metadata=deep), "more than 128 levels"),
    ):
        with pytest.raises(InvalidValueError, match=why):
            to_recorded(value, WHAT)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"$tenure:message": {"role": "king"}}, "unknown role 'king'"),
        ({"$tenure:message": {"role": "user"}}, "A stored user message cannot be read (user.parts"),
        ({"$tenure:message": 1}, "under '$tenure:message' does not fit"),
        ({"$tenure:part": {"kind": "text"}}, "A stored part of kind 'text' cannot be read (text"),
        ({"$tenure:part": {}}, "A stored part of kind None cannot be read (kind"),
        ({"$tenure:part": {"kind": ["text"]}}, "cannot be read"),
        ({"$tenure:part": []}, "cannot be read"),
        ({"$tenure:usage": {"tokens": 1}}, "has the field 'tokens'"),
        ({"$tenure:outcome": {"kind": "success"}}, "lacks the field 'parts'"),
        (
            {"$tenure:outcome": {"kind": "failure", "error": {"kind": "cosmic", "text": "x"}}},
            "it holds an error of an unknown kind",
        ),
        ({"$tenure:outcome": {"kind": "failure", "error": "x"}}, "an error of an unknown kind"),
        ({"$tenure:hologram": {}}, "the unknown tag '$tenure:hologram'"),
        ({"$what": 1}, "the unknown tag '$what'"),
    ],
)
def test_damaged_data(data: object, why: str) -> None:
    """Data that is damaged, or of a newer version, is one error of what it was to be."""
    with pytest.raises(InvalidValueError) as caught:
        from_recorded([data], WHAT)
    assert str(caught.value).startswith(f"{WHAT} cannot be read (")
    assert why in str(caught.value)


def test_results_of_tools_know_none_of_this() -> None:
    """The tags of our own values are unknown in tagged JSON of tool results."""
    with pytest.raises(InvalidValueError, match="unknown tag"):
        from_tagged(to_recorded(user("x"), WHAT))


# --- nodes, and the cost -------------------------------------------------------------------------


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def fail() -> str:
    """Fail."""
    raise RuntimeError("broken")


CALL = AssistantMessage(
    parts=(Text(text="let me see"), ToolCall(id="c1", name="add", args='{"a": 1, "b": 2}'))
)
ANSWER = AssistantMessage(
    parts=(Text(text="3"),), usage=Usage(input_tokens=4, output_tokens=1), model="m"
)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("node", "value", "replies"),
    [
        (nodes.node_do_nothing(), {"a": (1,)}, []),
        (nodes.node_append_prompt(user("x")), "in", []),
        (nodes.node_llm_request(), "in", [ANSWER]),
        (nodes.node_llm_request(allow_tool_calls=False), "in", [ANSWER]),
        (nodes.node_llm_request_multiple(), "in", [CALL]),
        (nodes.node_llm_request_only_calling_tools(), "in", [CALL]),
        (nodes.node_llm_request_force_one_tool("add"), "in", [CALL]),
        (nodes.node_llm_request_structured(Order), "in", ['{"number": 7}']),
        (nodes.node_llm_request_structured(int, retries=0), "in", ["not one"]),
        (nodes.node_llm_request_streaming(), "in", [ANSWER]),
        (nodes.node_execute_tools(), CALL, []),
        (nodes.node_execute_tools(parallel=False), CALL, []),
        (nodes.node_llm_send_tool_results(), "in", [ANSWER]),
        (nodes.node_llm_send_tool_results_only_calling_tools(), "in", [CALL]),
        (nodes.node_llm_send_tool_results_force_one_tool("add"), "in", [CALL]),
        (nodes.node_execute_single_tool(add), {"a": 1, "b": 2}, []),
        (nodes.node_llm_compress_history(WholeHistory()), "in", ["short"]),
        (nodes.node_set_structured_output(Order), "in", []),
    ],
)
async def test_outputs_of_ready_nodes(node: Any, value: Any, replies: list[Any]) -> None:
    """What each ready node returns is equal, and of the same type, when it is read back."""
    graph = Graph[str, object]()

    @graph.node
    def give(ctx: RunContext, text: str) -> object:
        return value

    tested = graph.node(node, name="tested")
    graph.edge(graph.start, give)
    graph.edge(give, tested)
    graph.edge(tested, graph.finish)
    model = ScriptedModel(replies)
    output = (await Agent(model=model, tools=[add, fail], strategy=graph).run("hi")).output
    found = again(output)
    assert exactly(found) == exactly(output)
    if getattr(output, "error", None) is None:  # exceptions are equal to none but themselves
        assert found == output


@pytest.mark.anyio
async def test_a_failing_tool() -> None:
    """The outcome of a tool that failed comes back with what is left of its exception."""
    seen: list[Any] = []

    async def strategy(ctx: RunContext, text: str) -> str:
        for each in (nodes.node_execute_single_tool(fail), nodes.node_execute_single_tool(add)):
            seen.append(await each(ctx, {}))
        return ""

    await Agent(model=ScriptedModel([]), tools=[add, fail], strategy=strategy).run("hi")
    failed, refused = map(again, seen)
    assert (failed.kind, str(failed.error)) == ("failure", "RuntimeError: broken")
    assert (refused.kind, refused.parts) == ("validation_error", seen[1].parts)
    assert refused.error.type_name == "pydantic_core._pydantic_core.ValidationError"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "options"), [(ANSWER, {}), ('{"number": 7}', {"output_type": Order})]
)
async def test_outputs_of_the_tool_loop(answer: Any, options: dict[str, Any]) -> None:
    """Every node of the default strategy returns what can be read back, with tools and an answer."""
    outputs: list[object] = []
    agent = Agent(model=ScriptedModel([CALL, answer]), tools=[add], **options)
    async with agent.run_stream("hi") as run:
        async for event in run:
            if isinstance(event, NodeCompleted):
                outputs.append(event.output)
    assert {type(output) for output in outputs} >= {UserMessage, StructuredResult, ToolMessage}
    for output in outputs:
        assert again(output) == output
        assert exactly(again(output)) == exactly(output)


def test_a_short_reply_costs_little() -> None:
    """A reply with a tool call is written in far less time than a run takes for anything else."""
    to_recorded(CALL, WHAT)
    best = min(timeit.repeat(lambda: to_recorded(CALL, WHAT), number=100, repeat=10)) / 100
    assert best < 0.001  # measured: 0.00003; a loaded machine takes more
