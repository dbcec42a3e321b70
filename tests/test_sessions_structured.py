"""Typed answers: schemas, native and prompted requests, salvage, repair, and `Agent(output_type=...)`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from tenure import (
    Agent,
    AssistantMessage,
    ChatMemory,
    EmptyReplyError,
    InMemoryStore,
    InvalidValueError,
    IterationLimitError,
    LLMParams,
    ModelProfile,
    ModelRequestError,
    OutputSchema,
    Reasoning,
    RunContext,
    StructuredOutputError,
    StructuredResult,
    Text,
    ToolCall,
    Usage,
    assistant,
    tool,
    tool_result,
    user,
)
from tenure.testing import ScriptedModel
from tenure.testing.scripted import Reply

pytestmark = pytest.mark.anyio

PROMPTED = ModelProfile(has_native_schema=False)
OSLO = '{"name": "Oslo", "population": 700000}'


class City(BaseModel):
    name: str
    population: int


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


@dataclass
class Point:
    x: int
    y: int = 0


class Address(TypedDict):
    street: str
    number: int


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]


class Aliased(BaseModel):
    full_name: str = Field(alias="fullName")


class Count(BaseModel):
    result: int


JSON_SCHEMA: Mapping[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}


@tool
def search(query: str = "") -> str:
    """Search."""
    return f"found {query}"


async def given(*replies: Reply, profile: ModelProfile | None = None, **options: Any) -> RunContext:
    """The context of a run whose strategy does nothing; the prompt is the message `q`."""

    async def strategy(ctx: RunContext, _: str) -> RunContext:
        return ctx

    model = ScriptedModel(replies, profile=profile)
    options = {"tools": [search], **options}
    agent = Agent(model=model, strategy=strategy, prompt=[user("q")], **options)
    ctx = (await agent.run("")).output
    assert isinstance(ctx, RunContext)
    return ctx


async def ask(ctx: RunContext, output: Any, **options: Any) -> StructuredResult[Any]:
    """One structured request in a write session."""
    async with ctx.llm.write_session() as session:
        return await session.request_llm_structured(output, **options)


def requests_of(ctx: RunContext) -> Any:
    assert isinstance(ctx.llm.model, ScriptedModel)
    return ctx.llm.model.requests


def recorded(ctx: RunContext) -> list[str]:
    return [message.text for message in ctx.llm.prompt.messages]


# --- types ---------------------------------------------------------------------------------------

TYPES: list[Any] = [
    pytest.param(City, OSLO, City(name="Oslo", population=700_000), id="pydantic model"),
    pytest.param(
        Tree,
        '{"result": {"value": 1, "children": [{"value": 2}]}}',
        Tree(value=1, children=[Tree(value=2)]),
        id="recursive model",
    ),
    pytest.param(Point, '{"x": 1}', Point(x=1, y=0), id="dataclass"),
    pytest.param(
        Address,
        '{"street": "Main", "number": "7"}',
        {"street": "Main", "number": 7},
        id="TypedDict",
    ),
    pytest.param(list[int], '{"result": [1, 2]}', [1, 2], id="list"),
    pytest.param(list[City], f'{{"result": [{OSLO}]}}', [City(name="Oslo", population=700_000)]),
    pytest.param(int, '{"result": 5}', 5, id="int"),
    pytest.param(bool, '{"result": true}', True, id="bool"),
    pytest.param(str, '{"result": "a\\nb"}', "a\nb", id="str"),
    pytest.param(Literal["a", "b"], '{"result": "b"}', "b", id="Literal"),
    pytest.param(int | None, '{"result": null}', None, id="optional"),
    pytest.param(dict[str, int], '{"result": 5}', {"result": 5}, id="dict with the wrapper's key"),
    pytest.param(
        Cat | Dog, '{"result": {"kind": "cat", "lives": 9}}', Cat(kind="cat", lives=9), id="union"
    ),
    pytest.param(
        Annotated[Cat | Dog, Field(discriminator="kind")],
        '{"result": {"kind": "dog"}}',
        Dog(kind="dog"),
        id="discriminated union",
    ),
    pytest.param(Count, '{"result": 5}', Count(result=5), id="model with the wrapper's key"),
    pytest.param(
        Count | Dog, '{"result": {"result": 5}}', Count(result=5), id="union with that model"
    ),
    pytest.param(JSON_SCHEMA, '{"city": "Oslo"}', {"city": "Oslo"}, id="JSON schema"),
    pytest.param(
        {"type": "array", "items": {"type": "integer"}},
        '{"result": [1, 2]}',
        [1, 2],
        id="JSON schema of an array",
    ),
]


@pytest.mark.parametrize(("output", "answer", "value"), TYPES)
async def test_value_of_every_kind_of_type(output: Any, answer: str, value: object) -> None:
    """J2 `requestLLMStructured`: the parsed value of the type, and the raw answer appended."""
    ctx = await given(answer)
    result = await ask(ctx, output)
    assert (result.value, type(result.value)) == (value, type(value))
    assert (result.error, result.raw, result.unwrap()) == (None, answer, value)
    assert result.message is ctx.llm.prompt.messages[-1]
    assert recorded(ctx) == ["q", answer]


@pytest.mark.parametrize(
    ("output", "answer", "value"),
    [
        (list[int], "[1, 2]", [1, 2]),
        (int, "5", 5),
        (int, "```json\n5\n```", 5),
        (Cat | Dog, '{"kind": "dog"}', Dog(kind="dog")),
        (Count | Dog, '{"result": 5}', Count(result=5)),
        ({"type": "array", "items": {"type": "integer"}}, "[1]", [1]),
    ],
)
def test_unwrapped_answer_is_understood(output: Any, answer: str, value: object) -> None:
    """An answer without the wrapping that a type without object at its root is asked for with counts."""
    assert OutputSchema(output).parse(answer) == value


@pytest.mark.parametrize("output", [list[int], Cat | Dog, Tree, int, Literal["a"]])
def test_schema_told_to_a_model_is_an_object_that_stands_alone(output: Any) -> None:
    """The root is an object with the one key `result`, and every reference in it can be followed."""
    schema = OutputSchema(output).json_schema
    assert (schema["type"], schema["required"]) == ("object", ["result"])
    assert schema["additionalProperties"] is False
    assert_references_resolve(schema)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {
                "type": "array",
                "items": {"$ref": "#/definitions/P"},
                "definitions": {"P": {"type": "integer"}},
            },
            {"result": [1]},
            {"result": ["x"]},
        ),
        (
            {"type": "array", "items": {"$ref": "#/$defs/P"}, "$defs": {"P": {"type": "integer"}}},
            {"result": [1]},
            {"result": ["x"]},
        ),
        ({"type": "array", "items": {"$ref": "#"}}, {"result": [[], [[]]]}, {"result": [1]}),
    ],
    ids=["definitions", "defs", "root"],
)
def test_wrapped_json_schema_means_the_same(schema: Any, good: object, bad: object) -> None:
    """C5: references in a JSON schema still lead where they led once it is wrapped in an object."""
    from jsonschema import Draft202012Validator

    wrapped = OutputSchema(schema)
    told = Draft202012Validator(json.loads(json.dumps(wrapped.json_schema)))
    assert [told.is_valid(good), told.is_valid(bad)] == [True, False]
    assert wrapped.parse(json.dumps(good)) == good["result"]  # type: ignore[index]


def assert_references_resolve(schema: Any) -> None:
    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if "$ref" in node:
                found = schema
                for step in node["$ref"].split("/")[1:]:
                    found = found[step]
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(schema)


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (object(), "Answers cannot be asked for as <object object"),
        ("NoSuchType", "NoSuchType"),
        ({"type": "objekt"}, "This is no JSON schema"),
        (type("Own", (), {}), "Answers cannot be asked for as Own: "),
    ],
    ids=["object", "forward reference", "bad JSON schema", "class without schema"],
)
async def test_type_without_schema_is_refused(output: Any, says: str) -> None:
    """J2 structured: what has no schema is refused before anything is asked."""
    ctx = await given(OSLO)
    with pytest.raises(InvalidValueError, match=says):
        await ask(ctx, output)
    with pytest.raises(InvalidValueError, match=says):
        Agent(model=ScriptedModel([]), output_type=output)
    assert requests_of(ctx) == []


async def test_ready_schema_can_be_given() -> None:
    """J2 structured: an `OutputSchema` made once is taken as it is."""
    schema: OutputSchema[City] = OutputSchema(City)
    ctx = await given(OSLO)
    result = await ask(ctx, schema)
    assert result.value == City(name="Oslo", population=700_000)
    assert requests_of(ctx)[0].output_schema == schema.json_schema


# --- native and prompted -------------------------------------------------------------------------


async def test_native_request_carries_the_schema() -> None:
    """C5 `Native`: the schema is in the request, no message is added, no tool is offered."""
    ctx = await given(OSLO, params=LLMParams(tool_choice="required", temperature=0.1))
    await ask(ctx, City)
    (request,) = requests_of(ctx)
    assert request.output_schema == OutputSchema(City).json_schema
    assert [m.text for m in request.messages] == ["q"]
    assert (request.tools, request.params) == ((), LLMParams(temperature=0.1))
    assert ctx.llm.prompt.params.tool_choice == "required"


async def test_prompted_request_ends_with_the_schema() -> None:
    """C5 `Manual`: a user message with the schema is last in the request, and is not kept."""
    ctx = await given(OSLO, profile=PROMPTED)
    await ask(ctx, City)
    (request,) = requests_of(ctx)
    assert request.output_schema is None
    assert [m.role for m in request.messages] == ["user", "user"]
    _, _, told = request.messages[1].text.partition("JSON schema:\n")
    assert json.loads(told) == OutputSchema(City).json_schema
    assert recorded(ctx) == ["q", OSLO]


@pytest.mark.parametrize("profile", [None, PROMPTED])
async def test_examples_are_shown(profile: ModelProfile | None) -> None:
    """J2 structured: examples are in the request's last message, one a line, and are not kept."""
    ctx = await given(OSLO, profile=profile)
    await ask(ctx, City, examples=[City(name="A", population=1), City(name="B", population=2)])
    (request,) = requests_of(ctx)
    assert len(request.messages) == 2
    assert request.messages[-1].text.split("Examples of valid answers:\n")[1].splitlines() == [
        '{"name":"A","population":1}',
        '{"name":"B","population":2}',
    ]
    assert ("JSON schema" in request.messages[-1].text) == (profile is PROMPTED)
    assert recorded(ctx) == ["q", OSLO]


@pytest.mark.parametrize(
    ("output", "example"),
    [
        (Aliased, Aliased(fullName="Ada")),
        (list[int], [1]),
        (Point, Point(x=1)),
        (Address, {"street": "Main", "number": 1}),
        (JSON_SCHEMA, {"city": "Oslo"}),
        (Cat | Dog, Dog(kind="dog")),
    ],
    ids=["alias", "list", "dataclass", "TypedDict", "JSON schema", "union"],
)
def test_examples_are_valid_answers(output: Any, example: Any) -> None:
    """J2 structured: an example as it is shown would be parsed to the example again."""
    schema = OutputSchema(output)
    shown = schema.instruction([example], with_schema=False).splitlines()[-1]
    assert schema.parse(shown) == example


@pytest.mark.parametrize(
    ("output", "example"),
    [
        (City, "Oslo"),
        (City, {"name": "Oslo"}),
        (int, "x"),
        (JSON_SCHEMA, {"city": 1}),
        ({}, object()),
    ],
)
async def test_example_of_another_type_is_refused(output: Any, example: Any) -> None:
    """J2 structured: a model is not shown an example that its answer could not be; nobody is asked."""
    ctx = await given()
    with pytest.raises(InvalidValueError, match="is no answer of the type asked for"):
        await ask(ctx, output, examples=[example])
    assert requests_of(ctx) == []


def test_an_example_may_be_what_the_type_is_made_of() -> None:
    """J2 structured: a dictionary of a model's fields is as good an example as the model."""
    schema = OutputSchema(City)
    shown = schema.instruction([{"name": "A", "population": 1}], with_schema=False)  # type: ignore[list-item]
    assert schema.parse(shown.splitlines()[-1]) == City(name="A", population=1)


async def test_instruction_comes_last() -> None:
    """C5: the instruction comes behind the results of a turn, and cuts no call from its result."""
    ctx = await given(OSLO, profile=PROMPTED)
    call = ToolCall(id="c", name="search")
    async with ctx.llm.write_session() as session:
        session.append_prompt(assistant(call), tool_result(call, "r"))
        await session.request_llm_structured(City, allow_tool_calls=True)
    (request,) = requests_of(ctx)
    assert [m.role for m in request.messages] == ["user", "assistant", "tool", "user"]


async def test_tools_and_schema_are_not_sent_together() -> None:
    """C5 with tools: they are offered, and the schema is prompted even where it could be enforced."""
    ctx = await given(OSLO)
    await ask(ctx, City, allow_tool_calls=True)
    (request,) = requests_of(ctx)
    assert [spec.name for spec in request.tools] == ["search"]
    assert request.output_schema is None
    assert "JSON schema:" in request.messages[-1].text


async def test_allowed_tools_that_are_none_leave_the_schema_native() -> None:
    """C5: when no tool is offered, the provider enforces the schema though calls would be allowed."""
    ctx = await given(OSLO, tools=[])
    await ask(ctx, City, allow_tool_calls=True)
    assert requests_of(ctx)[0].output_schema == OutputSchema(City).json_schema


async def test_reply_that_calls_tools() -> None:
    """C5 with tools: a reply with calls is recorded whole, with neither value nor error."""
    reply = assistant("wait", ToolCall(id="1", name="search"))
    ctx = await given(reply)
    result = await ask(ctx, City, allow_tool_calls=True)
    assert (result.value, result.error, result.unwrap()) == (None, None, None)
    assert result.message.tool_calls == (ToolCall(id="1", name="search"),)
    assert ctx.llm.prompt.messages[-1].parts == reply.parts


# --- salvage -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{OSLO}\n```",
        f"```\n{OSLO}\n```",
        f"```JSON\r\n{OSLO}\r\n```",
        f"Here you are:\n\n```json\n{OSLO}\n```\nAnything else?",
        f"Sure! {OSLO} Hope that helps.",
        f"{{about travel}} .. {OSLO}",
        f"{{not: json}} [1, 2 {OSLO}",
        f'First {{}} and [] and {{"a": 1}}, but then {OSLO}',
        f"<think>{{maybe</think>{OSLO}",
        f"\ufeff{OSLO}",
        f"{OSLO}{OSLO}",
        f"\n\n  {OSLO}  \n",
        "```json\nnot json\n```\n" + OSLO,
        OSLO.replace(" ", "\n"),
    ],
)
def test_answer_is_found_in_prose(text: str) -> None:
    """C77: fences, prose and braces in prose around the JSON do not lose the answer."""
    assert OutputSchema(City).parse(text) == City(name="Oslo", population=700_000)


def test_answer_behind_much_other_json_is_found() -> None:
    """C77: a long JSON of another type in front of the answer, such as an echo, does not hide it."""
    echo = json.dumps([{"n": n} for n in range(500)])
    assert OutputSchema(City).parse(f"I was given {echo}. Answer: {OSLO}").name == "Oslo"


@pytest.mark.parametrize("fence", ["```json\r\n5\r\n```", "```json \n5\n```"])
def test_scalar_is_found_in_a_fence(fence: str) -> None:
    """C77: an answer that is no object or list is found in a fence, with CRLF or blanks too."""
    assert OutputSchema(int).parse(f"Here:\n{fence}\n") == 5


@pytest.mark.parametrize(
    "text", ["", "no", "{", "[" * 100_000, "{about travel}", "null", "```\n```"]
)
def test_text_without_an_answer_is_an_error(text: str) -> None:
    """C77, C79: what holds no JSON of the type is a typed error that has the text."""
    with pytest.raises(StructuredOutputError, match="not of the type asked for") as caught:
        OutputSchema(City).parse(text)
    assert caught.value.raw == text


def test_error_does_not_repeat_the_answer() -> None:
    """STYLE: message bodies never appear in an error; what is wrong does."""
    for output, answer in [
        (City, '{"name": "secret", "population": "secret"}'),
        (JSON_SCHEMA, '{"city": ["secret"]}'),
    ]:
        with pytest.raises(StructuredOutputError) as caught:
            OutputSchema(output).parse(answer)
        assert "secret" not in str(caught.value)
        assert "population" in str(caught.value) or "$.city" in str(caught.value)


def test_lone_surrogate_does_not_lose_the_answer() -> None:
    """C24: a lone surrogate in the text of an answer costs one character, and not the answer."""
    value = OutputSchema(City).parse('{"name": "a\ud83d", "population": 1}')
    assert (value.name[0], value.population) == ("a", 1)


def test_escaped_lone_surrogate_does_not_lose_the_answer() -> None:
    r"""C24, C26: JSON with a lone `\ud83d` escape is JSON, as for `json.loads`; the value is kept."""
    value = OutputSchema(City).parse(r'{"name": "a\ud83d", "population": 1}')
    assert value.population == 1


@pytest.mark.parametrize("depth", [50, 400])
@pytest.mark.parametrize("output", [{"type": "array", "items": {"$ref": "#"}}, object])
def test_deep_answer_is_no_crash(output: Any, depth: int) -> None:
    """C79: an answer of any depth is a value or a typed error."""
    text = f'{{"result": {"[" * depth}{"]" * depth}}}'
    try:
        value = OutputSchema(output).parse(text)
    except StructuredOutputError:
        assert depth == 400
    else:
        assert json.dumps(value) == "[" * depth + "]" * depth


def test_schema_fetches_nothing() -> None:
    """A JSON schema with a reference to the network is not followed; the answer is an error."""
    with pytest.raises(StructuredOutputError, match="which it does not hold"):
        OutputSchema({"$ref": "https://example.org/x.json"}).parse("{}")


# --- failing and repairing -----------------------------------------------------------------------


async def test_failed_answer_is_a_value() -> None:
    """C5: an answer that is not of the type is the result's error, and nothing is appended."""
    ctx = await given("no", "still no")
    before = ctx.llm.prompt
    async with ctx.llm.write_session() as session:
        result = await session.request_llm_structured(City)
        assert session.prompt is before
    assert ctx.llm.prompt is before
    assert result.value is None
    assert str(result.error) == (
        "Unable to parse structure after 1 retries: The answer is not of the type asked for: "
        "there is no JSON in it."
    )
    assert (result.raw, result.error.raw) == ("no", "no")
    with pytest.raises(StructuredOutputError):
        result.unwrap()


async def test_repaired_answer() -> None:
    """C5 fixing: the value is the repaired one, and what is recorded is the original text."""
    ctx = await given('{"name": "Oslo"}', OSLO)
    result = await ask(ctx, City)
    assert result.value == City(name="Oslo", population=700_000)
    assert (result.raw, result.error) == ('{"name": "Oslo"}', None)
    assert recorded(ctx) == ["q", '{"name": "Oslo"}']


@pytest.mark.parametrize("profile", [None, PROMPTED])
async def test_repair_request(profile: ModelProfile | None) -> None:
    """C5 fixing: it shows schema, answer and mistake and not the history, and is held to the schema."""
    ctx = await given('{"name": "Oslo"}', OSLO, profile=profile, system_prompt="be kind")
    await ask(ctx, City)
    repair = requests_of(ctx)[1]
    (message,) = repair.messages
    assert message.role == "user"
    for piece in (
        '{"name": "Oslo"}',
        "population: Field required",
        json.dumps(OutputSchema(City).json_schema, separators=(",", ":")),
    ):
        assert piece in message.text
    assert repair.tools == ()
    expected = OutputSchema(City).json_schema if profile is None else None
    assert repair.output_schema == expected


async def test_each_repair_is_shown_the_answer_before() -> None:
    """C5 fixing: each retry sees the newest answer and its own mistake."""
    ctx = await given("first", '{"name": "second"}', OSLO)
    result = await ask(ctx, City, retries=2)
    assert result.value == City(name="Oslo", population=700_000)
    one, two = (request.messages[0].text for request in requests_of(ctx)[1:])
    assert one.endswith("Answer:\nfirst")
    assert two.endswith('Answer:\n{"name": "second"}')
    assert "first" not in two


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_retries_are_counted(retries: int) -> None:
    """C5 fixing: one request, and then as many repairs as allowed; the error says how many."""
    ctx = await given(*["no"] * 5)
    result = await ask(ctx, City, retries=retries)
    assert len(requests_of(ctx)) == 1 + retries
    after = f" after {retries} retries" if retries else ""
    assert str(result.error).startswith(f"Unable to parse structure{after}: ")


async def test_fixing_model() -> None:
    """C5 REC: repairs go to the fixing model, held to the schema if *it* can be."""
    ctx = await given("no")
    fixer = ScriptedModel([OSLO], profile=PROMPTED)
    result = await ask(ctx, City, fixing_model=fixer)
    assert result.value == City(name="Oslo", population=700_000)
    assert (len(requests_of(ctx)), len(fixer.requests)) == (1, 1)
    assert fixer.requests[0].output_schema is None
    assert ctx.llm.model is not fixer
    assert recorded(ctx) == ["q", "no"]


async def test_fixing_model_is_not_asked_without_need() -> None:
    """C5: a good answer is not repaired."""
    fixer = ScriptedModel([])
    ctx = await given(OSLO)
    assert (await ask(ctx, City, fixing_model=fixer)).error is None
    assert fixer.requests == []


async def test_negative_retries_are_refused() -> None:
    """C5: `Retries must be no less than 0`, before anything is asked."""
    ctx = await given(OSLO)
    with pytest.raises(InvalidValueError, match="retries must be no less than 0"):
        await ask(ctx, City, retries=-1)
    assert requests_of(ctx) == []


@pytest.mark.parametrize(
    "error", [ModelRequestError("HTTP 500", status_code=500), AssistantMessage(parts=())]
)
@pytest.mark.parametrize("replies", [[], ["no"]], ids=["the request", "the repair"])
async def test_failing_model_raises(replies: list[Reply], error: Reply) -> None:
    """C5: only a wrong shape is a value; a network failure raises, in a repair too, and appends nothing."""
    ctx = await given(*replies, error)
    async with ctx.llm.write_session() as session:
        with pytest.raises((ModelRequestError, EmptyReplyError)):
            await session.request_llm_structured(City)
        assert [m.text for m in session.prompt.messages] == ["q"]


async def test_one_shot() -> None:
    """J2 `requestLLMStructuredOneShot`: one request, and the value with the raw answer appended."""
    ctx = await given(OSLO)
    async with ctx.llm.write_session() as session:
        result = await session.request_llm_structured_one_shot(City)
    assert result.value == City(name="Oslo", population=700_000)
    assert recorded(ctx) == ["q", OSLO]


async def test_one_shot_raises() -> None:
    """J2 `requestLLMStructuredOneShot`: a wrong answer raises, nothing is repaired or appended."""
    ctx = await given("no", OSLO)
    async with ctx.llm.write_session() as session:
        with pytest.raises(StructuredOutputError) as caught:
            await session.request_llm_structured_one_shot(City)
        assert [m.text for m in session.prompt.messages] == ["q"]
    assert caught.value.raw == "no"
    assert str(caught.value).startswith("Unable to parse structure: ")
    assert len(requests_of(ctx)) == 1


async def test_read_session_gives_the_value_only() -> None:
    """J2 read, structured: value and raw answer come, and nothing is recorded."""
    ctx = await given(OSLO)
    before = ctx.llm.prompt
    async with ctx.llm.read_session() as session:
        result = await session.request_llm_structured(City)
    assert (result.value, result.raw) == (City(name="Oslo", population=700_000), OSLO)
    assert ctx.llm.prompt is before


async def test_repairs_are_counted_as_model_calls() -> None:
    """B4: repairs count against `max_iterations` and in the usage, like every model call."""
    counted = [
        replace(assistant(text), usage=Usage(input_tokens=1, output_tokens=1, requests=1))
        for text in ("no", "no", OSLO)
    ]
    ctx = await given(*counted, max_iterations=2)
    async with ctx.llm.write_session() as session:
        with pytest.raises(IterationLimitError):
            await session.request_llm_structured(City, retries=2)
    assert ctx.usage.requests == 2


# --- Agent(output_type=...) ----------------------------------------------------------------------


@pytest.mark.parametrize(("output", "answer", "value"), TYPES)
async def test_agent_with_an_output_type(output: Any, answer: str, value: object) -> None:
    """Agent(output_type=...): the run's output is a value of the type; the messages keep the raw answer."""
    if output is str:
        value = answer  # the default: the reply's text
    model = ScriptedModel([answer])
    result = await Agent(model=model, output_type=output).run("q")
    assert (result.output, type(result.output)) == (value, type(value))
    assert [m.text for m in result.new_messages] == ["q", answer]


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_agent_with_tools_and_an_output_type(is_streaming: bool) -> None:
    """Agent(output_type=...) with tools: calls are run first, and the last reply is the value."""
    model = ScriptedModel([assistant(ToolCall(id="1", name="search", args='{"query": "o"}')), OSLO])
    agent = Agent(model=model, tools=[search], output_type=City)
    if is_streaming:
        stream = agent.run_stream("q")
        async for _ in stream:
            pass
        result = stream.result
    else:
        result = await agent.run("q")
    assert result is not None
    assert result.output == City(name="Oslo", population=700_000)
    assert [m.role for m in result.new_messages] == ["user", "assistant", "tool", "assistant"]
    assert [m.role for m in model.requests[0].messages] == ["user", "user"]
    assert [m.role for m in model.requests[1].messages] == ["user", "assistant", "tool", "user"]
    assert model.requests[1].messages[2].tool_results[0].text == "found o"
    for request in model.requests:
        assert [spec.name for spec in request.tools] == ["search"]
        assert request.output_schema is None
        assert "JSON schema:" in request.messages[-1].text


@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize("tools", [[], [search]], ids=["without tools", "with tools"])
async def test_agent_whose_answer_fails_stores_nothing(tools: Any, is_streaming: bool) -> None:
    """K7: an answer that is not of the output type fails the run, and the stored history is as it was."""
    store = InMemoryStore()
    options: dict[str, Any] = {"tools": tools, "features": [ChatMemory(store)]}
    await Agent(model=ScriptedModel([OSLO]), output_type=City, **options).run("one", "s")
    before = await store.entries("s")
    agent = Agent(model=ScriptedModel(["no", "no"]), output_type=City, **options)
    with pytest.raises(StructuredOutputError, match="after 1 retries") as caught:
        if is_streaming:
            async for _ in agent.run_stream("two", "s"):
                pass
        else:
            await agent.run("two", "s")
    assert caught.value.raw == "no"
    assert await store.entries("s") == before
    assert [e.message.text for e in before] == ["one", OSLO]


async def test_agent_stores_the_raw_answer_of_a_repaired_run() -> None:
    """C5: of a run whose answer was repaired the original answer is stored, without instructions."""
    store = InMemoryStore()
    agent = Agent(
        model=ScriptedModel(['{"name": "Oslo"}', OSLO]),
        output_type=City,
        features=[ChatMemory(store)],
    )
    result = await agent.run("q", "s")
    assert result.output == City(name="Oslo", population=700_000)
    assert [m.text for m in await store.read("s")] == ["q", '{"name": "Oslo"}']


async def test_structured_answer_with_reasoning_is_recorded_whole() -> None:
    """#1701: reasoning beside a structured answer stays in the history, and is no part of the value."""
    reply = AssistantMessage(parts=(Reasoning(text='{"name": 1}'), Text(text=OSLO)))
    ctx = await given(reply)
    result = await ask(ctx, City)
    assert result.value == City(name="Oslo", population=700_000)
    assert ctx.llm.prompt.messages[-1].parts == reply.parts
