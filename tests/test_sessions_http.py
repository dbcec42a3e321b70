"""LLM sessions against a real OpenAI-compatible server: what goes over the wire for each request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import openai_server as wire
import pytest
from pydantic import BaseModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

from tenure import (
    Agent,
    AssistantMessage,
    ChatMemory,
    EmptyReplyError,
    InMemoryStore,
    LLMParams,
    Message,
    ModelRequestError,
    PartEnd,
    ReadSession,
    Reasoning,
    RunContext,
    SessionClosedError,
    StreamEnd,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolMessage,
    ToolResult,
    Usage,
    WriteSession,
    assistant,
    tool,
    tool_result,
    user,
)

pytestmark = pytest.mark.anyio

NO_RETRIES = LLMParams(additional={"max_retries": 0})
OSLO = '{"name":"Oslo"}'


class City(BaseModel):
    name: str


@tool
def search(query: str = "") -> str:
    """Search."""
    return f"found {query}"


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def given(model: object, **options: Any) -> RunContext:
    """The context of a run whose strategy does nothing; the prompt is the message `q`."""

    async def strategy(ctx: RunContext, _: str) -> RunContext:
        return ctx

    options = {"tools": [search, add], "prompt": [user("q")], "params": NO_RETRIES, **options}
    agent = Agent(model=model, strategy=strategy, system_prompt="be kind", **options)
    ctx = (await agent.run("")).output
    assert isinstance(ctx, RunContext)
    return ctx


def tool_names(body: dict[str, Any]) -> list[str]:
    return [item["function"]["name"] for item in body.get("tools", [])]


def said(body: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [(message["role"], message.get("content")) for message in body["messages"]]


async def all_of(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


def mixed_history() -> tuple[Message, ...]:
    """A turn that calls an offered tool and one that is gone, with both results in one message."""
    turn = assistant(
        ToolCall(id="g", name="gone", args="{}"),
        ToolCall(id="s", name="search", args='{"query":"x"}'),
    )
    results = ToolMessage(
        parts=(
            ToolResult(call_id="g", name="gone", parts=(Text(text="r1"),)),
            ToolResult(call_id="s", name="search", parts=(Text(text="r2"),)),
        )
    )
    return turn, results


# --- each kind of request ------------------------------------------------------------------------

Ask = Callable[[WriteSession], Awaitable[object]]
AUTO = {"tool_choice": "auto"}
REQUIRED = {"tool_choice": "required"}
FORCED = {"tool_choice": {"type": "function", "function": {"name": "add"}}}
KINDS: dict[str, tuple[Ask, list[str], dict[str, Any]]] = {
    "requestLLM": (lambda s: s.request_llm(), ["search", "add"], AUTO),
    "requestLLMMultiple": (lambda s: s.request_llm_multiple(), ["search", "add"], AUTO),
    "requestLLMWithoutTools": (lambda s: s.request_llm_without_tools(), [], {}),
    "requestLLMOnlyCallingTools": (
        lambda s: s.request_llm_only_calling_tools(),
        ["search", "add"],
        REQUIRED,
    ),
    "requestLLMForceOneTool": (
        lambda s: s.request_llm_force_one_tool(add),
        ["search", "add"],
        FORCED,
    ),
    "requestLLMStreaming": (
        lambda s: all_of(s.request_llm_streaming()),
        ["search", "add"],
        AUTO,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_request_on_the_wire(kind: str, server: wire.OpenAIServer, named: str) -> None:
    """J2 `requestLLM...`: tools, tool choice and messages of the body, and the reply in the prompt."""
    ask, tools, choice = KINDS[kind]
    is_streamed = kind == "requestLLMStreaming"
    server.script(wire.streamed({"content": "a"}) if is_streamed else wire.text("a"))
    ctx = await given(named)
    async with ctx.llm.write_session() as session:
        await ask(session)
    (body,) = server.bodies
    assert said(body) == [("system", "be kind"), ("user", "q")]
    assert tool_names(body) == tools
    assert {key: body[key] for key in ("tool_choice",) if key in body} == choice
    assert "response_format" not in body
    assert body["stream"] is is_streamed
    assert [m.text for m in ctx.llm.prompt.messages] == ["be kind", "q", "a"]


@pytest.mark.parametrize("kind", KINDS)
async def test_missing_tools_on_the_wire(kind: str, server: wire.OpenAIServer, named: str) -> None:
    """A8, #944: no body of any kind has a call of a tool it does not declare, and calls keep results."""
    ask, tools, _ = KINDS[kind]
    is_streamed = kind == "requestLLMStreaming"
    server.script(wire.streamed({"content": "a"}) if is_streamed else wire.text("a"))
    ctx = await given(named)
    async with ctx.llm.write_session() as session:
        session.append_prompt(*mixed_history(), user("go on"))
        await ask(session)
    (body,) = server.bodies
    messages = body["messages"][2:]
    gone = "[tool call: gone (id g)]\n{}"
    if tools:
        assert [m["role"] for m in messages] == ["assistant", "tool", "user", "user"]
        turn, result, words, _ = messages
        assert turn["content"] == gone
        assert [(c["id"], c["function"]["name"]) for c in turn["tool_calls"]] == [("s", "search")]
        assert (result["tool_call_id"], result["content"]) == ("s", "r2")
        assert words["content"] == "[tool result: gone (id g)]\nr1"
    else:
        assert [m["role"] for m in messages] == ["assistant", "user", "user"]
        turn, results, _ = messages
        assert "tool_calls" not in turn
        assert turn["content"] == f'{gone}\n\n[tool call: search (id s)]\n{{"query":"x"}}'
        assert [part["text"] for part in results["content"]] == [
            "[tool result: gone (id g)]\nr1",
            "[tool result: search (id s)]\nr2",
        ]
    assert [m.role for m in ctx.llm.prompt.messages[2:4]] == ["assistant", "tool"]
    assert len(ctx.llm.prompt.messages[2].tool_calls) == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_open_call_on_the_wire(kind: str, server: wire.OpenAIServer, named: str) -> None:
    """K1: after `drop_last_n_messages` between a call and its result no body has either of them."""
    ask, _, _ = KINDS[kind]
    is_streamed = kind == "requestLLMStreaming"
    server.script(wire.streamed({"content": "a"}) if is_streamed else wire.text("a"))
    ctx = await given(named)
    call = ToolCall(id="c", name="search")
    async with ctx.llm.write_session() as session:
        session.append_prompt(assistant(call), tool_result(call, "r"))
        session.drop_last_n_messages(1)
        session.append_prompt(user("again"))
        await ask(session)
    assert said(server.bodies[0]) == [("system", "be kind"), ("user", "q"), ("user", "again")]


async def test_override_lasts_one_request(server: wire.OpenAIServer, named: str) -> None:
    """C4: tool choices of one request do not persist; `set_tool_choice` and params do."""
    server.script(wire.text("a"))
    ctx = await given(named)
    async with ctx.llm.write_session() as session:
        await session.request_llm_force_one_tool("add")
        await session.request_llm()
        session.set_tool_choice("none")
        await session.request_llm()
        session.change_params(LLMParams(temperature=0.25, max_tokens=9))
        await session.request_llm()
    choices = [body.get("tool_choice") for body in server.bodies]
    assert choices == [FORCED["tool_choice"], "auto", "none", "auto"]
    assert [body.get("temperature") for body in server.bodies] == [None, None, None, 0.25]


async def test_new_tools_on_the_wire(server: wire.OpenAIServer, named: str) -> None:
    """J2 `tools = newTools`: the next body declares them, and those only."""
    server.script(wire.text("a"))
    ctx = await given(named)
    async with ctx.llm.write_session() as session:
        await session.request_llm()
        session.tools = [add]
        await session.request_llm()
        session.tools = []
        await session.request_llm()
    assert [tool_names(body) for body in server.bodies] == [["search", "add"], ["add"], []]


async def test_tool_turn_over_two_requests(server: wire.OpenAIServer, named: str) -> None:
    """C18: parallel calls and text of one reply come back in the next body, each with its result."""
    server.script(
        wire.tool_calls(
            ("c1", "search", '{"query":"x"}'), ("c2", "add", '{"a":1,"b":2}'), content="w"
        ),
        wire.text("done"),
    )
    ctx = await given(named)
    async with ctx.llm.write_session() as session:
        reply = await session.request_llm_only_calling_tools()
        one, two = reply.tool_calls
        session.append_prompt(tool_result(two, "3"), tool_result(one, "found x"))
        await session.request_llm()
    turn, first, second = server.bodies[1]["messages"][2:]
    assert turn["content"] == "w"
    assert [call["id"] for call in turn["tool_calls"]] == ["c1", "c2"]
    results = [(m["role"], m["tool_call_id"], m["content"]) for m in (first, second)]
    assert sorted(results) == [("tool", "c1", "found x"), ("tool", "c2", "3")]


async def test_choices_on_the_wire(server: wire.OpenAIServer, named: str) -> None:
    """C4 `requestLLMMultipleChoices`: n equal bodies, and nothing appended."""
    server.script(wire.text("a"))
    ctx = await given(named)
    async with ctx.llm.write_session() as session:
        choices = await session.request_llm_multiple_choices(3)
    assert [choice.text for choice in choices] == ["a"] * 3
    assert server.bodies[0] == server.bodies[1] == server.bodies[2]
    assert len(server.bodies) == 3
    assert [m.text for m in ctx.llm.prompt.messages] == ["be kind", "q"]


async def test_read_session_on_the_wire(server: wire.OpenAIServer, named: str) -> None:
    """J2 read: several read sessions may ask at once, and nothing is recorded."""
    server.script(wire.text("a"))
    ctx = await given(named)

    async def ask() -> str:
        async with ctx.llm.read_session() as session:
            return (await session.request_llm()).text

    assert await asyncio.gather(ask(), ask()) == ["a", "a"]
    assert [m.text for m in ctx.llm.prompt.messages] == ["be kind", "q"]


@pytest.mark.parametrize(
    ("reply", "error"),
    [(wire.failure(500, "down"), ModelRequestError), (wire.text(""), EmptyReplyError)],
    ids=["HTTP 500", "empty"],
)
async def test_failing_request_on_the_wire(
    reply: wire.Reply, error: type[Exception], server: wire.OpenAIServer, named: str
) -> None:
    """K7: after a failed request the session goes on, and what failed is not in the next body."""
    server.script(reply, wire.text("a"))
    ctx = await given(named)
    async with ctx.llm.write_session() as session:
        with pytest.raises(error):
            await session.request_llm()
        await session.request_llm()
    assert (
        said(server.bodies[1]) == said(server.bodies[0]) == [("system", "be kind"), ("user", "q")]
    )
    assert [m.text for m in ctx.llm.prompt.messages] == ["be kind", "q", "a"]


# --- structured ----------------------------------------------------------------------------------


def prompted_model(server: wire.OpenAIServer) -> OpenAIChatModel:
    """A model of the server that cannot be held to a schema."""
    provider = OpenAIProvider(base_url=server.url, api_key="sk-secret-of-mine")
    profile = OpenAIModelProfile(supports_json_schema_output=False)
    return OpenAIChatModel("scripted-1", provider=provider, profile=profile)


async def test_native_structured_request(server: wire.OpenAIServer, named: str) -> None:
    """C5 `Native`: the schema is the body's response_format; no tools, no added message."""
    server.script(wire.text(OSLO))
    ctx = await given(named)
    async with ctx.llm.write_session() as session:
        result = await session.request_llm_structured(City)
    (body,) = server.bodies
    assert result.value == City(name="Oslo")
    assert said(body) == [("system", "be kind"), ("user", "q")]
    assert tool_names(body) == []
    assert body["response_format"]["type"] == "json_schema"
    schema = body["response_format"]["json_schema"]["schema"]
    assert (schema["type"], schema["required"]) == ("object", ["name"])
    assert schema["properties"]["name"]["type"] == "string"
    assert [m.text for m in ctx.llm.prompt.messages] == ["be kind", "q", OSLO]


async def test_native_request_for_a_list_is_for_an_object(
    server: wire.OpenAIServer, named: str
) -> None:
    """C5 `Native`: providers take only objects, so a list is asked for inside of one."""
    server.script(wire.text('{"result":[{"name":"Oslo"}]}'))
    ctx = await given(named)
    async with ctx.llm.write_session() as session:
        result = await session.request_llm_structured(list[City])
    schema = server.bodies[0]["response_format"]["json_schema"]["schema"]
    assert (schema["type"], list(schema["properties"])) == ("object", ["result"])
    assert result.value == [City(name="Oslo")]


async def test_prompted_structured_request(server: wire.OpenAIServer) -> None:
    """C5 `Manual`: without response_format the body's last message has schema and examples; not kept."""
    server.script(wire.text(f"Here: ```json\n{OSLO}\n```"))
    ctx = await given(prompted_model(server))
    async with ctx.llm.write_session() as session:
        result = await session.request_llm_structured(City, examples=[City(name="Rome")])
    (body,) = server.bodies
    assert result.value == City(name="Oslo")
    assert "response_format" not in body
    assert [m["role"] for m in body["messages"]] == ["system", "user", "user"]
    last = body["messages"][-1]["content"]
    assert '"required":["name"]' in last
    assert last.endswith('Examples of valid answers:\n{"name":"Rome"}')
    assert [m.role for m in ctx.llm.prompt.messages] == ["system", "user", "assistant"]


async def test_repair_on_the_wire(server: wire.OpenAIServer, named: str) -> None:
    """C5 fixing: the repair's body has one message, no history and no system prompt."""
    server.script(wire.text('{"nome":"Oslo"}'), wire.text(OSLO))
    ctx = await given(named)
    async with ctx.llm.write_session() as session:
        result = await session.request_llm_structured(City)
    (message,) = server.bodies[1]["messages"]
    assert (result.value, result.raw) == (City(name="Oslo"), '{"nome":"Oslo"}')
    assert message["role"] == "user"
    assert message["content"].endswith('Answer:\n{"nome":"Oslo"}')
    assert server.bodies[1]["response_format"] == server.bodies[0]["response_format"]
    assert ctx.llm.prompt.messages[-1].text == '{"nome":"Oslo"}'


async def test_network_failure_of_a_structured_request_raises(
    server: wire.OpenAIServer, named: str
) -> None:
    """C5: an HTTP error is raised, not made a result, and nothing is appended."""
    server.script(wire.failure(500, "down"))
    ctx = await given(named)
    async with ctx.llm.write_session() as session:
        with pytest.raises(ModelRequestError) as caught:
            await session.request_llm_structured(City)
        assert [m.text for m in session.prompt.messages] == ["be kind", "q"]
    assert caught.value.status_code == 500


async def test_agent_with_tools_and_output_type_on_the_wire(
    server: wire.OpenAIServer, named: str
) -> None:
    """Agent(output_type=...) with tools: each body has tools, schema as last message, call and result."""
    server.script(wire.tool_calls(("c1", "search", '{"query":"x"}')), wire.text(OSLO))
    agent = Agent(model=named, tools=[search], output_type=City)
    result = await agent.run("q")
    assert result.output == City(name="Oslo")
    first, second = server.bodies
    assert [m["role"] for m in first["messages"]] == ["user", "user"]
    assert [m["role"] for m in second["messages"]] == ["user", "assistant", "tool", "user"]
    for body in (first, second):
        assert tool_names(body) == ["search"]
        assert "response_format" not in body
        assert '"required":["name"]' in body["messages"][-1]["content"]
    assert [m.role for m in result.new_messages] == ["user", "assistant", "tool", "assistant"]


# --- streaming -----------------------------------------------------------------------------------


async def test_stream_on_the_wire(server: wire.OpenAIServer, named: str) -> None:
    """J2 `requestLLMStreaming`, C6: deltas, the finished parts, and the whole turn with its usage."""
    server.script(
        wire.streamed(
            {"content": "let "},
            {"content": "me"},
            {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "search", "arguments": '{"query":'},
                    }
                ]
            },
            {"tool_calls": [{"index": 0, "function": {"arguments": '"x"}'}}]},
            finish_reason="tool_calls",
        ),
        wire.text("done"),
    )
    ctx = await given(named)
    async with ctx.llm.write_session() as session:
        frames = await all_of(session.request_llm_streaming())
        (call,) = session.prompt.messages[-1].tool_calls
        session.append_prompt(tool_result(call, "found x"))
        await session.request_llm()
    assert [f.text for f in frames if isinstance(f, TextDelta)] == ["let ", "me"]
    deltas = [f for f in frames if isinstance(f, ToolCallDelta)]
    assert "".join(f.name for f in deltas) == "search"
    assert "".join(f.args for f in deltas) == '{"query":"x"}'
    assert [type(f.part) for f in frames if isinstance(f, PartEnd)] == [Text, ToolCall]
    assert isinstance(frames[-1], StreamEnd)
    turn = ctx.llm.prompt.messages[2]
    assert isinstance(turn, AssistantMessage)
    assert turn.usage == Usage(input_tokens=7, output_tokens=3, requests=1)
    assert ctx.usage == Usage(input_tokens=14, output_tokens=6, requests=2)
    sent = server.bodies[1]["messages"][2:]
    assert [m["role"] for m in sent] == ["assistant", "tool"]
    assert sent[0]["tool_calls"][0]["id"] == sent[1]["tool_call_id"] == "c1"
    assert tool_names(server.bodies[0]) == ["search", "add"]


@pytest.mark.parametrize("kind", ["read_session", "write_session"])
async def test_abandoned_stream_is_hung_up(
    kind: str, server: wire.OpenAIServer, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C6, C59: an endless stream that is left is closed at the latest when the block ends, quietly."""
    server.script(wire.streamed({"content": "x "}, is_endless=True), wire.text("a"))
    ctx = await given(named)
    async with getattr(ctx.llm, kind)() as session:
        async for frame in session.request_llm_streaming():
            if isinstance(frame, TextDelta):
                break
    assert await asyncio.to_thread(server.is_left.wait, 10)
    assert [m.text for m in ctx.llm.prompt.messages] == ["be kind", "q"]
    async with ctx.llm.write_session() as session:
        assert (await session.request_llm()).text == "a"
    assert [r.getMessage() for r in caplog.records if r.name == "asyncio"] == []


async def test_stream_that_is_cut_off(server: wire.OpenAIServer, named: str) -> None:
    """C6: a stream that breaks off raises after its frames; nothing of it is appended or sent again."""
    server.script(wire.streamed({"content": "half"}, is_cut=True), wire.text("a"))
    ctx = await given(named)
    got: list[object] = []
    async with ctx.llm.write_session() as session:
        with pytest.raises(ModelRequestError):
            async for frame in session.request_llm_streaming():
                got.append(frame)
        await session.request_llm()
    assert [f.text for f in got if isinstance(f, TextDelta)] == ["half"]
    assert said(server.bodies[1]) == [("system", "be kind"), ("user", "q")]
    assert [m.text for m in ctx.llm.prompt.messages] == ["be kind", "q", "a"]


async def test_stream_after_its_block(server: wire.OpenAIServer, named: str) -> None:
    """K6: a stream that was begun on the wire raises the documented error after its block."""
    server.script(wire.streamed({"content": "x "}, is_endless=True))
    ctx = await given(named)
    async with ctx.llm.write_session() as session:
        stream = session.request_llm_streaming()
        await anext(stream)
    with pytest.raises(SessionClosedError):
        await anext(stream)
    assert await asyncio.to_thread(server.is_left.wait, 10)


async def test_reader_that_is_cancelled_hangs_up(server: wire.OpenAIServer, named: str) -> None:
    """C59: cancelling a task that reads a stream ends the request and commits nothing."""
    server.script(wire.streamed({"content": "x "}, is_endless=True))
    ctx = await given(named)
    begun = asyncio.Event()

    async def work() -> None:
        async with ctx.llm.write_session() as session:
            async for _ in session.request_llm_streaming():
                begun.set()

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert await asyncio.to_thread(server.is_left.wait, 10)
    assert [m.text for m in ctx.llm.prompt.messages] == ["be kind", "q"]


async def test_stream_of_the_wire_feeds_parallel_calls(
    server: wire.OpenAIServer, named: str
) -> None:
    """J2 `toParallelToolCalls` on a stream of arguments: lines of a streamed reply, as they come."""
    lines = ['{"a":1,"b":2}\n', '{"a":3,"b":4}\n', '{"a":5,"b":6}\n']
    server.script(wire.streamed(*({"content": line} for line in lines)))
    ctx = await given(named)

    async def arguments(session: ReadSession) -> AsyncIterator[dict[str, object]]:
        async for frame in session.request_llm_streaming():
            if isinstance(frame, TextDelta):
                yield json.loads(frame.text)

    async with asyncio.timeout(10), ctx.llm.write_session() as session:
        outcomes = await all_of(
            session.parallel_tool_calls("add", arguments(session), concurrency=2)
        )
    assert sorted(outcome.value for outcome in outcomes) == [3, 7, 11]
    assert ctx.llm.prompt.messages[-1].text == "".join(lines)


async def test_streamed_run_is_stored_as_a_plain_one(server: wire.OpenAIServer, named: str) -> None:
    """K8, C18, C19: a strategy that streams, with tools, stores the same messages as one that does not."""

    async def streaming(ctx: RunContext, text: str) -> str:
        return await looped(ctx, text, is_streaming=True)

    async def plain(ctx: RunContext, text: str) -> str:
        return await looped(ctx, text, is_streaming=False)

    async def looped(ctx: RunContext, text: str, *, is_streaming: bool) -> str:
        turn: Message = user(text)
        while True:
            async with ctx.llm.write_session() as session:
                session.append_prompt(turn)
                if is_streaming:
                    reply = (await all_of(session.request_llm_streaming()))[-1].message
                else:
                    reply = await session.request_llm()
            if not reply.tool_calls:
                return reply.text
            turn = await ctx.execute_tools(reply.tool_calls)

    call = {
        "index": 0,
        "id": "c1",
        "type": "function",
        "function": {"name": "search", "arguments": '{"query":"x"}'},
    }
    server.script(
        wire.streamed({"content": "w"}, {"tool_calls": [call]}, finish_reason="tool_calls"),
        wire.streamed({"content": "do"}, {"content": "ne"}),
        wire.tool_calls(("c1", "search", '{"query":"x"}'), content="w"),
        wire.text("done"),
    )
    store = InMemoryStore()
    for strategy, session_id in ((streaming, "streamed"), (plain, "plain")):
        agent = Agent(model=named, tools=[search], strategy=strategy, features=[ChatMemory(store)])
        assert (await agent.run("q", session_id)).output == "done"
    streamed, stored = await store.read("streamed"), await store.read("plain")
    assert [m.role for m in streamed] == ["user", "assistant", "tool", "assistant"]
    assert [m.parts for m in streamed] == [m.parts for m in stored]
    assert [getattr(m, "usage", None) for m in streamed] == [
        getattr(m, "usage", None) for m in stored
    ]
    bodies = [body["messages"] for body in server.bodies]
    assert bodies[:2] == bodies[2:]


async def test_reasoning_survives_between_requests(server: wire.OpenAIServer, named: str) -> None:
    """#943: reasoning that the server sent is in the recorded turn, beside the call it led to."""
    server.script(
        wire.completion(
            {
                "reasoning_content": "hm",
                "tool_calls": [
                    {
                        "id": "c",
                        "type": "function",
                        "function": {"name": "search", "arguments": "{}"},
                    }
                ],
            },
            finish_reason="tool_calls",
        )
    )
    ctx = await given(named)
    async with ctx.llm.write_session() as session:
        parts = await session.request_llm_multiple()
    assert [type(part) for part in parts] == [Reasoning, ToolCall]
    assert list(ctx.llm.prompt.messages[-1].parts) == parts
