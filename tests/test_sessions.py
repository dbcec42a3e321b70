"""LLM sessions: every kind of request, streams, tools, nesting and load (spec C, table J2).

Commits, the lock and closed sessions are in `test_llm.py`; editing and storing in
`test_sessions_editing.py`; typed answers in `test_sessions_structured.py`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import Context
from typing import Any

import pytest

from tenure import (
    Agent,
    AssistantMessage,
    EmptyReplyError,
    Event,
    Feature,
    InvalidValueError,
    LLMParams,
    Message,
    ModelCallCompleted,
    ModelCallStarted,
    ModelProfile,
    ModelRequest,
    ModelRequestError,
    NamedTool,
    NestedSessionError,
    PartEnd,
    ReadSession,
    Reasoning,
    RunContext,
    SessionClosedError,
    StreamEnd,
    StreamFrame,
    Text,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallCompleted,
    ToolCallStarted,
    ToolError,
    ToolOutcome,
    ToolSpec,
    UnknownToolError,
    UsageError,
    WriteSession,
    assistant,
    tool,
    tool_result,
    user,
)
from tenure.testing import ScriptedModel
from tenure.testing.scripted import Reply

pytestmark = pytest.mark.anyio


@tool
def search(query: str = "") -> str:
    """Search."""
    return f"found {query}"


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
def broken() -> str:
    """Fail."""
    raise KeyError("drawer")


@tool
def picky() -> str:
    """Refuse."""
    raise ToolError("say please")


class Shop:
    """Is a tool."""

    def __call__(self, of: int) -> int:
        """Ask the shop."""
        return of * 10


async def given(*replies: Reply, events: list[Event] | None = None, **options: Any) -> RunContext:
    """The context of a run whose strategy does nothing; the prompt is the message `q`."""

    async def strategy(ctx: RunContext, _: str) -> RunContext:
        return ctx

    options = {"model": ScriptedModel(replies), "tools": [search, add], **options}
    agent = Agent(strategy=strategy, prompt=[user("q")], **options)
    if events is not None:
        agent.on_event(events.append)
    ctx = (await agent.run("")).output
    assert isinstance(ctx, RunContext)
    return ctx


def requests_of(ctx: RunContext) -> list[ModelRequest]:
    assert isinstance(ctx.llm.model, ScriptedModel)
    return ctx.llm.model.requests


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


def roles(messages: Any) -> str:
    return "".join(message.role[0] for message in messages)


def names(request: ModelRequest) -> list[str]:
    return [spec.name for spec in request.tools]


async def settle() -> None:
    """Let everything run that can run."""
    for _ in range(30):
        await asyncio.sleep(0)


def tool_history() -> tuple[Message, ...]:
    """A call with its result."""
    call = ToolCall(id="c1", name="search", args='{"query": "x"}')
    return assistant(call), tool_result(call, "found x")


# --- requests (J2) -------------------------------------------------------------------------------


async def test_request_llm() -> None:
    """J2 `requestLLM`: sends prompt and tools, and the prompt then has the user's message and the reply."""
    ctx = await given("a")
    async with ctx.llm.write_session() as session:
        reply = await session.request_llm()
    (request,) = requests_of(ctx)
    assert (texts(request.messages), names(request)) == (["q"], ["search", "add"])
    assert request.params == LLMParams()
    assert (reply.text, texts(ctx.llm.prompt.messages)) == ("a", ["q", "a"])


@pytest.mark.parametrize(
    ("reply", "primary"),
    [
        ("words", "words"),
        (
            assistant("words", ToolCall(id="1", name="add"), ToolCall(id="2", name="search")),
            ToolCall(id="1", name="add"),
        ),
    ],
)
async def test_primary(reply: Reply, primary: ToolCall | str) -> None:
    """J2 response type check: `primary` is the first tool call, or else the text."""
    ctx = await given(reply)
    async with ctx.llm.write_session() as session:
        assert (await session.request_llm()).primary == primary


async def test_request_llm_multiple() -> None:
    """J2 `requestLLMMultiple`: a list of all responses in order, appended as one turn."""
    parts = (Reasoning(text="hm"), Text(text="wait"), ToolCall(id="1", name="search"))
    ctx = await given(AssistantMessage(parts=parts))
    async with ctx.llm.write_session() as session:
        assert await session.request_llm_multiple() == list(parts)
    assert [m.parts for m in ctx.llm.prompt.messages[1:]] == [parts]


async def test_request_llm_without_tools() -> None:
    """J2 `requestLLMWithoutTools`: no tools, no tool choice, tool messages as text; history stays."""
    ctx = await given("a", params=LLMParams(tool_choice="required", temperature=0.5))
    history = tool_history()
    async with ctx.llm.write_session() as session:
        session.append_prompt(*history)
        await session.request_llm_without_tools()
    (request,) = requests_of(ctx)
    assert request.tools == ()
    assert request.params == LLMParams(temperature=0.5)
    assert roles(request.messages) == "uau"
    assert texts(request.messages[1:]) == [
        '[tool call: search (id c1)]\n{"query": "x"}',
        "[tool result: search (id c1)]\nfound x",
    ]
    assert ctx.llm.prompt.messages[1:3] == history
    assert ctx.llm.prompt.params.tool_choice == "required"
    assert texts(ctx.llm.prompt.messages)[-1] == "a"


async def test_request_llm_only_calling_tools() -> None:
    """J2 `requestLLMOnlyCallingTools`, #1198: tool choice `required` for one request; all parts stay."""
    parts = (Reasoning(text="hm"), ToolCall(id="1", name="add"), ToolCall(id="2", name="search"))
    ctx = await given(AssistantMessage(parts=parts), "b")
    async with ctx.llm.write_session() as session:
        reply = await session.request_llm_only_calling_tools()
        assert reply.primary == parts[1]
        await session.request_llm()
    first, second = requests_of(ctx)
    assert (first.params.tool_choice, second.params.tool_choice) == ("required", None)
    assert names(first) == ["search", "add"]
    assert ctx.llm.prompt.messages[1].parts == parts
    assert ctx.llm.prompt.params.tool_choice is None


async def test_tool_call_cannot_be_required_without_tools() -> None:
    """J2 `requestLLMOnlyCallingTools`: without tools it is an error, and nothing is asked."""
    ctx = await given("a")
    async with ctx.llm.write_session() as session:
        session.tools = []
        with pytest.raises(UsageError, match="this session offers no tools"):
            await session.request_llm_only_calling_tools()
    assert requests_of(ctx) == []


@pytest.mark.parametrize("tool", ["add", add.spec, add, add.function])
async def test_request_llm_force_one_tool(tool: Any) -> None:
    """J2 `requestLLMForceOneTool`: exactly that tool, given by name, spec, tool or function."""
    ctx = await given(assistant(ToolCall(id="1", name="add")))
    async with ctx.llm.write_session() as session:
        session.set_tool_choice("none")
        reply = await session.request_llm_force_one_tool(tool)
    (request,) = requests_of(ctx)
    assert request.params.tool_choice == NamedTool("add")
    assert names(request) == ["search", "add"]
    assert reply.primary == ToolCall(id="1", name="add")
    assert ctx.llm.prompt.params.tool_choice == "none"


async def test_function_of_a_renamed_tool_can_be_forced() -> None:
    """J2 `requestLLMForceOneTool`: a function is found under the name that its tool has."""

    def lookup(query: str) -> str:
        return query

    ctx = await given(
        assistant(ToolCall(id="1", name="find-it")), tools=[Tool(lookup, name="find-it")]
    )
    async with ctx.llm.write_session() as session:
        await session.request_llm_force_one_tool(lookup)
    assert requests_of(ctx)[0].params.tool_choice == NamedTool("find-it")


async def test_only_an_offered_tool_can_be_forced() -> None:
    """J2 `requestLLMForceOneTool`: a tool that is not in session tools is an error that lists those."""
    ctx = await given("a")
    async with ctx.llm.write_session() as session:
        session.tools = [search]
        with pytest.raises(UsageError) as caught:
            await session.request_llm_force_one_tool(add)
    assert str(caught.value) == (
        "Unable to force call to tool `add` because it is not defined; this session offers: search."
    )
    assert requests_of(ctx) == []


KINDS: dict[str, Callable[[ReadSession], Awaitable[object]]] = {
    "llm": lambda s: s.request_llm(),
    "multiple": lambda s: s.request_llm_multiple(),
    "without_tools": lambda s: s.request_llm_without_tools(),
    "only_calling_tools": lambda s: s.request_llm_only_calling_tools(),
    "force_one_tool": lambda s: s.request_llm_force_one_tool("search"),
    "multiple_choices": lambda s: s.request_llm_multiple_choices(1),
    "structured": lambda s: s.request_llm_structured(int),
    "one_shot": lambda s: s.request_llm_structured_one_shot(int),
    "streaming": lambda s: all_of(s.request_llm_streaming()),
}
WITH_TOOLS = ["llm", "multiple", "only_calling_tools", "force_one_tool", "multiple_choices"]


async def all_of(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


@pytest.mark.parametrize("kind", KINDS)
async def test_read_session_asks_and_records_nothing(kind: str) -> None:
    """J2 read: requests of every kind are allowed, one is sent, and the reply is not recorded."""
    ctx = await given("1")
    before = ctx.llm.prompt
    async with ctx.llm.read_session() as session:
        await KINDS[kind](session)
        assert session.prompt is before
    assert ctx.llm.prompt is before
    assert len(requests_of(ctx)) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_write_session_records_the_reply(kind: str) -> None:
    """J2 auto history update: every kind of request appends its reply, but for several choices."""
    ctx = await given("1")
    async with ctx.llm.write_session() as session:
        await KINDS[kind](session)
    recorded = texts(ctx.llm.prompt.messages)
    assert recorded == (["q"] if kind == "multiple_choices" else ["q", "1"])


@pytest.mark.parametrize("kind", KINDS)
async def test_error_of_the_model_is_raised_by_every_kind(kind: str) -> None:
    """K7: whatever kind of request fails, the model's error is raised and nothing is recorded."""
    ctx = await given(ModelRequestError("HTTP 500", status_code=500))
    async with ctx.llm.write_session() as session:
        with pytest.raises(ModelRequestError, match="HTTP 500"):
            await KINDS[kind](session)
        assert texts(session.prompt.messages) == ["q"]


@pytest.mark.parametrize("kind", KINDS)
async def test_empty_reply_is_an_error_of_every_kind(kind: str) -> None:
    """C4: a reply with nothing in it is an explicit error, and is not recorded."""
    ctx = await given(AssistantMessage(parts=()))
    async with ctx.llm.write_session() as session:
        with pytest.raises(EmptyReplyError):
            await KINDS[kind](session)
        assert texts(session.prompt.messages) == ["q"]


@pytest.mark.parametrize("kind", KINDS)
async def test_request_goes_out_only_when_asked_for(kind: str) -> None:
    """J2 explicit requests: neither opening, editing nor closing a session asks the model."""
    ctx = await given("1")
    async with ctx.llm.write_session() as session:
        session.append_prompt(user("more"))
        assert requests_of(ctx) == []
        await KINDS[kind](session)
        assert len(requests_of(ctx)) == 1
        session.append_prompt(user("and more"))
    assert len(requests_of(ctx)) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_undeclared_tools_are_sent_as_text(kind: str) -> None:
    """A8, #944: every kind of request, streaming too, puts calls of tools not offered into words."""
    ctx = await given("1")
    gone = ToolCall(id="g", name="gone", args="{}")
    async with ctx.llm.write_session() as session:
        session.append_prompt(assistant(gone), tool_result(gone, "r"), *tool_history())
        await KINDS[kind](session)
    (request,) = requests_of(ctx)
    sent = request.messages[1:5]
    assert texts(sent[:2]) == ["[tool call: gone (id g)]\n{}", "[tool result: gone (id g)]\nr"]
    has_tools = kind in (*WITH_TOOLS, "streaming")
    assert roles(sent) == ("auat" if has_tools else "auau")
    assert roles(ctx.llm.prompt.messages[:5]) == "uatat"


@pytest.mark.parametrize("kind", KINDS)
async def test_own_system_prompt_is_first_in_every_request(kind: str) -> None:
    """K2: the system prompt is sent first, once, by every kind of request, after clearing history too."""
    ctx = await given("1", system_prompt="be kind")
    async with ctx.llm.write_session() as session:
        session.clear_history()
        session.append_prompt(user("fresh"))
        await KINDS[kind](session)
    (request,) = requests_of(ctx)
    assert texts(request.messages)[:2] == ["be kind", "fresh"]
    assert roles(request.messages).count("s") == 1


# --- several choices -----------------------------------------------------------------------------


async def test_choices_are_asked_for_at_once_and_not_recorded() -> None:
    """C4 `requestLLMMultipleChoices`: n requests at the same time; all replies, none appended."""
    together = asyncio.Barrier(3)

    async def reply(_: ModelRequest) -> str:
        await together.wait()
        return "choice"

    ctx = await given(*[reply] * 3)
    async with asyncio.timeout(2), ctx.llm.write_session() as session:
        choices = await session.request_llm_multiple_choices(3)
        assert texts(choices) == ["choice"] * 3
        assert texts(session.prompt.messages) == ["q"]
        session.append_prompt(choices[1])
    assert texts(ctx.llm.prompt.messages) == ["q", "choice"]
    assert requests_of(ctx)[0] == requests_of(ctx)[1] == requests_of(ctx)[2]


async def test_failed_choice_cancels_the_others() -> None:
    """C4 `requestLLMMultipleChoices`: the first error is raised, after the other requests are cancelled."""
    waiting = asyncio.Event()
    cancelled: list[str] = []

    async def slow(_: ModelRequest) -> str:
        try:
            waiting.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("slow")
            raise
        return ""

    async def failing(_: ModelRequest) -> ModelRequestError:
        await waiting.wait()
        return ModelRequestError("HTTP 500")

    ctx = await given(slow, failing)
    async with asyncio.timeout(2), ctx.llm.write_session() as session:
        with pytest.raises(ModelRequestError):
            await session.request_llm_multiple_choices(2)
        assert cancelled == ["slow"]


@pytest.mark.parametrize("n", [0, -1])
async def test_number_of_choices_is_positive(n: int) -> None:
    """A7 numberOfChoices > 0: fewer is an error, and nothing is asked."""
    ctx = await given("a")
    async with ctx.llm.write_session() as session:
        with pytest.raises(InvalidValueError, match="give 1 or more"):
            await session.request_llm_multiple_choices(n)
    assert requests_of(ctx) == []


# --- what a session can be set to ----------------------------------------------------------------

OTHER = ToolSpec(name="other", description="O.", parameters={"type": "object"})


async def test_new_tools_are_offered_from_the_next_request_on() -> None:
    """J2 `tools = newTools`: the next request uses them, and they are committed."""
    ctx = await given("a", "b", "c")

    def plain() -> None:
        """Do nothing."""

    async with ctx.llm.write_session() as session:
        await session.request_llm()
        session.tools = [OTHER, add, plain]
        assert [spec.name for spec in session.tools] == ["other", "add", "plain"]
        await session.request_llm()
    async with ctx.llm.read_session() as session:
        await session.request_llm()
    new = ["other", "add", "plain"]
    assert [names(request) for request in requests_of(ctx)] == [["search", "add"], new, new]
    assert [spec.name for spec in ctx.llm.tools] == new


async def test_offered_tools_do_not_decide_what_can_be_run() -> None:
    """C3: setting the tools leaves the registry alone: what is not offered can still be called."""
    ctx = await given()
    async with ctx.llm.write_session() as session:
        session.tools = [OTHER]
        assert (await session.call_tool("add", {"a": 1, "b": 2})).value == 3
        with pytest.raises(UnknownToolError):
            await session.call_tool("other")


async def test_tool_can_be_offered_once_only() -> None:
    """C3: two offered tools of one name are refused, and the tools stay what they were."""
    ctx = await given()
    async with ctx.llm.write_session() as session:
        with pytest.raises(InvalidValueError, match="offer each tool once"):
            session.tools = [add, add.spec]
        assert [spec.name for spec in session.tools] == ["search", "add"]


async def test_read_session_cannot_be_set() -> None:
    """J2 read: prompt, tools and model are read-only."""
    ctx = await given()
    async with ctx.llm.read_session() as session:
        for name in ("prompt", "tools", "model"):
            with pytest.raises(AttributeError):
                setattr(session, name, getattr(session, name))
        assert (len(session.prompt.messages), [t.name for t in session.tools]) == (
            1,
            ["search", "add"],
        )


async def test_model_can_be_set() -> None:
    """C3: a write session's model is settable, as its prompt and tools are."""
    ctx = await given()
    other = ScriptedModel(["from the other"])
    async with ctx.llm.write_session() as session:
        session.model = other
        assert (await session.request_llm()).text == "from the other"
    assert ctx.llm.model is other


# --- streaming -----------------------------------------------------------------------------------


class SlowStream:
    """A model whose stream waits for a permit before each frame, and takes its time to be closed."""

    def __init__(self, *frames: StreamFrame) -> None:
        self.profile = ModelProfile()
        self.frames = frames
        self.permits = asyncio.Semaphore(0)
        self.log: list[str] = []

    async def respond(self, request: ModelRequest) -> AssistantMessage:
        raise AssertionError("it was asked for a stream")

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamFrame]:
        self.log.append("asked")
        try:
            for frame in self.frames:
                await self.permits.acquire()
                yield frame
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            self.log.append("closed")


def delta(text: str) -> TextDelta:
    return TextDelta(index=0, text=text)


async def test_stream_gives_chunks_and_then_records_the_reply() -> None:
    """J2 `requestLLMStreaming`: chunks in order; the whole reply is appended with the last frame."""
    ctx = await given("one two")
    async with ctx.llm.write_session() as session:
        frames: list[StreamFrame] = []
        async for frame in session.request_llm_streaming():
            frames.append(frame)
            is_last = isinstance(frame, StreamEnd)
            assert texts(session.prompt.messages) == (["q", "one two"] if is_last else ["q"])
    assert frames[:-1] == [
        delta("one "),
        delta("two"),
        PartEnd(index=0, part=Text(text="one two")),
    ]
    assert frames[-1].message is ctx.llm.prompt.messages[-1]
    assert names(requests_of(ctx)[0]) == ["search", "add"]


async def test_streamed_tool_calls_are_recorded_whole() -> None:
    """#2235, C18: a streamed turn with reasoning and calls is in the history before its results."""
    parts = (
        Reasoning(text="hm"),
        ToolCall(name="search", args='{"query": "x"}'),
        ToolCall(name="add"),
    )
    ctx = await given(AssistantMessage(parts=parts), "done")
    async with ctx.llm.write_session() as session:
        frames = await all_of(session.request_llm_streaming())
        one, two = frames[-1].message.tool_calls
        session.append_prompt(tool_result(two, "2"), tool_result(one, "1"))
        await all_of(session.request_llm_streaming())
    assert one.id
    assert two.id
    assert one.id != two.id
    assert roles(ctx.llm.prompt.messages) == "uatta"
    assert roles(requests_of(ctx)[1].messages) == "uatt"
    assert ctx.llm.prompt.messages[1].tool_calls == (one, two)
    assert ctx.llm.prompt.messages[1].reasoning == "hm"


async def test_stream_is_cold() -> None:
    """C6: nothing is asked before the first frame is awaited, and each stream asks anew."""
    ctx = await given("a", "b")
    async with ctx.llm.write_session() as session:
        first, second = session.request_llm_streaming(), session.request_llm_streaming()
        await settle()
        assert requests_of(ctx) == []
        await all_of(second)
        await all_of(first)
    assert texts(ctx.llm.prompt.messages) == ["q", "a", "b"]


async def test_stream_uses_the_model_that_was_there_when_it_was_made() -> None:
    """C2, C6: a stream captures its prompt and its model together."""
    ctx = await given("from the first")
    async with ctx.llm.write_session() as session:
        stream = session.request_llm_streaming()
        session.change_model(ScriptedModel(["from the second"]))
        frames = await all_of(stream)
    assert frames[-1].message.text == "from the first"


async def test_abandoned_stream_records_nothing() -> None:
    """C6: after an early break nothing is appended, and the request is over when the block has ended."""
    model = SlowStream(delta("a"), delta("b"), StreamEnd(message=assistant("ab")))
    ctx = await given(model=model)
    model.permits.release()
    async with ctx.llm.write_session() as session:
        async for _ in session.request_llm_streaming():
            break
    assert model.log == ["asked", "closed"]
    assert texts(ctx.llm.prompt.messages) == ["q"]


@pytest.mark.parametrize("is_kept", [True, False])
async def test_leaving_a_stream_is_quiet(is_kept: bool, caplog: pytest.LogCaptureFixture) -> None:
    """C6: nothing is logged or left behind when a stream is broken off by the block's end."""
    model = SlowStream(delta("a"), StreamEnd(message=assistant("a")))
    ctx = await given(model=model)
    model.permits.release()
    async with ctx.llm.write_session() as session:
        stream = session.request_llm_streaming()
        await anext(stream)
        if not is_kept:
            del stream
            await asyncio.sleep(0)
    assert model.log == ["asked", "closed"]
    await settle()
    gc.collect()
    await settle()
    assert [record.getMessage() for record in caplog.records] == []


async def test_failing_stream_records_nothing() -> None:
    """C6: when a stream fails half way its error is raised, nothing is appended, the session goes on."""

    class Failing(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamFrame]:
            yield delta("half")
            raise ModelRequestError("cut off")

    ctx = await given(model=Failing(["whole"]))
    async with ctx.llm.write_session() as session:
        with pytest.raises(ModelRequestError, match="cut off"):
            await all_of(session.request_llm_streaming())
        assert texts(session.prompt.messages) == ["q"]
        await session.request_llm()
    assert texts(ctx.llm.prompt.messages) == ["q", "whole"]


async def test_stream_without_its_end_is_an_error() -> None:
    """C6: a stream that stops without a `StreamEnd` raises, and nothing is appended."""
    model = SlowStream(delta("half"))
    model.permits.release()
    ctx = await given(model=model)
    async with ctx.llm.write_session() as session:
        with pytest.raises(ModelRequestError, match="without a StreamEnd"):
            await all_of(session.request_llm_streaming())
        assert texts(session.prompt.messages) == ["q"]


async def test_cancelled_stream_records_nothing() -> None:
    """C59: cancelling the reader of a stream closes it, and nothing of it is appended."""
    model = SlowStream(delta("a"), StreamEnd(message=assistant("a")))
    model.permits.release()
    ctx = await given(model=model)

    async def work() -> None:
        async with ctx.llm.write_session() as session:
            await all_of(session.request_llm_streaming())

    task = asyncio.create_task(work())
    await settle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert model.log == ["asked", "closed"]
    assert texts(ctx.llm.prompt.messages) == ["q"]


@pytest.mark.parametrize("frames", [0, 1])
@pytest.mark.parametrize("kind", ["read_session", "write_session"])
async def test_stream_ends_with_its_block(kind: str, frames: int) -> None:
    """K6: a stream used after its block raises the documented text, begun or not."""
    ctx = await given("one two three")
    async with getattr(ctx.llm, kind)() as session:
        stream = session.request_llm_streaming()
        for _ in range(frames):
            await anext(stream)
    with pytest.raises(SessionClosedError) as caught:
        await anext(stream)
    assert str(caught.value) == "Cannot use session after it was closed"
    assert texts(ctx.llm.prompt.messages) == ["q"]
    assert len(requests_of(ctx)) == frames


@pytest.mark.parametrize("kind", ["read_session", "write_session"])
async def test_stream_of_another_task_ends_with_the_block(kind: str) -> None:
    """K6: a task that still waits for a frame when the block ends gets no frame, but the error."""
    end = StreamEnd(message=assistant("late"))
    model = SlowStream(delta("a"), end)
    ctx = await given(model=model)
    got: list[StreamFrame] = []

    async def read(session: ReadSession) -> None:
        async for frame in session.request_llm_streaming():
            got.append(frame)

    async with getattr(ctx.llm, kind)() as session:
        task = asyncio.create_task(read(session))
        await settle()
    for _ in range(3):
        model.permits.release()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    assert (type(outcome), got) == (SessionClosedError, [])
    assert texts(ctx.llm.prompt.messages) == ["q"]


@pytest.mark.parametrize("kind", ["read_session", "write_session"])
async def test_waiting_stream_is_broken_off_at_the_end_of_the_block(kind: str) -> None:
    """C6: when the block has ended the request is over, though another task still waits for a frame."""
    model = SlowStream(delta("a"), StreamEnd(message=assistant("a")))
    ctx = await given(model=model)
    async with asyncio.timeout(2):
        async with getattr(ctx.llm, kind)() as session:
            task = asyncio.create_task(all_of(session.request_llm_streaming()))
            await settle()
            assert model.log == ["asked"]
        log = list(model.log)
        model.permits.release()
        await asyncio.gather(task, return_exceptions=True)
    assert log == ["asked", "closed"]


@pytest.mark.parametrize("kind", ["llm", "multiple_choices"])
async def test_reply_after_the_block_of_a_read_session_is_refused(kind: str) -> None:
    """K6: a request of a read session that outlives its block raises, whatever its kind."""
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def later(_: ModelRequest) -> str:
        return await answer

    ctx = await given(later)
    async with ctx.llm.read_session() as session:
        task = asyncio.ensure_future(KINDS[kind](session))
        await settle()
    answer.set_result("1")
    with pytest.raises(SessionClosedError):
        await task


async def test_stream_sends_events() -> None:
    """B6: each frame is sent to handlers, between the start and the completion of one model call."""
    events: list[Event] = []
    ctx = await given("a b", events=events)
    del events[:]
    async with ctx.llm.write_session() as session:
        await all_of(session.request_llm_streaming())
    kinds = [type(event) for event in events]
    assert kinds == [
        ModelCallStarted, TextDelta, TextDelta, PartEnd, StreamEnd, ModelCallCompleted,
    ]  # fmt: skip


# --- running tools (C7) --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given_as", ["shop", "the tool", Shop], ids=["name", "tool", "class of its object"]
)
async def test_call_tool_of_an_object(given_as: Any) -> None:
    """J2 `callTool`: by name, by tool and by the class of which the tool is an object."""
    shop = Tool(Shop(), name="shop")
    ctx = await given(tools=[search, shop])
    async with ctx.llm.write_session() as session:
        outcome = await session.call_tool(shop if given_as == "the tool" else given_as, {"of": 2})
    assert (outcome.kind, outcome.value, outcome.text) == ("success", 20, "20")


@pytest.mark.parametrize("given_as", ["add", add, add.function])
async def test_call_tool_of_a_function(given_as: Any) -> None:
    """J2 `callTool`: by name, by decorated tool and by the plain function in it."""
    ctx = await given()
    async with ctx.llm.write_session() as session:
        assert (await session.call_tool(given_as, {"a": 1, "b": 2})).value == 3


async def test_call_tool_by_the_class_of_the_tool() -> None:
    """J2 `callTool(class, args)`: a tool of a class derived from `Tool` is found by that class."""

    class Special(Tool):
        """A kind of tool."""

    ctx = await given(tools=[search, Special(add.function, name="plus")])
    async with ctx.llm.write_session() as session:
        assert (await session.call_tool(Special, {"a": 1, "b": 2})).value == 3


async def test_call_tool_validates_as_for_a_model() -> None:
    """C7: arguments are converted and checked as a model's are; defaults apply without `args`."""
    ctx = await given()
    async with ctx.llm.write_session() as session:
        assert (await session.call_tool("search")).value == "found "
        assert (await session.call_tool("add", {"a": "1", "b": 2})).value == 3
        refused = await session.call_tool("add", {"a": "x", "b": 2})
    assert refused.kind == "validation_error"
    assert refused.text.startswith(
        "Invalid arguments for tool 'add': a: Input should be a valid int"
    )


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("broken", "failure", "Tool 'broken' failed: KeyError: 'drawer'"),
        ("picky", "validation_error", "say please"),
    ],
)
async def test_error_of_a_tool_is_a_value(name: str, kind: str, text: str) -> None:
    """B5, C7: what a tool raises is in the outcome, and `callToolRaw` gives the error's text."""
    ctx = await given(tools=[broken, picky])
    async with ctx.llm.write_session() as session:
        outcome = await session.call_tool(name)
        assert await session.call_tool_raw(name) == text
    assert (outcome.kind, outcome.text, outcome.is_error, outcome.value) == (kind, text, True, None)


async def test_call_tool_raw() -> None:
    """J2 `callToolRaw(name, args)`: the text that a model would read."""
    ctx = await given()
    async with ctx.llm.write_session() as session:
        assert await session.call_tool_raw("add", {"a": 1, "b": 2}) == "3"


@pytest.mark.parametrize(
    ("wanted", "name"), [("ad", "ad"), (broken, "Tool('broken')"), (Shop, "Shop")]
)
async def test_unknown_tool_is_an_error_that_lists_the_known(wanted: Any, name: str) -> None:
    """J2 tool not found: unlike a model's call it raises, names the tool and lists what there is."""
    ctx = await given()
    async with ctx.llm.write_session() as session:
        for call in (session.call_tool, session.call_tool_raw):
            with pytest.raises(UnknownToolError) as caught:
                await call(wanted)
            assert str(caught.value) == (
                f'Tool "{name}" is not defined in the tool registry; the agent has: search, add. '
                "Give it to the agent with tools=[...], or use one of these."
            )
        with pytest.raises(UnknownToolError, match=r"the agent has: search, add\."):
            session.parallel_tool_calls(wanted, [])


async def test_class_of_several_tools_is_ambiguous() -> None:
    """J2 `callTool(class, args)`: when several tools are of the class, the error names them."""
    ctx = await given(tools=[Tool(Shop(), name="one"), Tool(Shop(), name="two")])
    async with ctx.llm.write_session() as session:
        with pytest.raises(UnknownToolError, match="class Shop: one, two; give a name"):
            await session.call_tool(Shop, {"of": 1})


class Watcher(Feature):
    """Notes what it is told of tools."""

    def __init__(self) -> None:
        self.log: list[object] = []

    async def before_tool_call(self, ctx: RunContext, call: ToolCall) -> None:
        self.log.append(("before", call))

    async def after_tool_call(self, ctx: RunContext, call: ToolCall, outcome: ToolOutcome) -> None:
        self.log.append(("after", call, outcome))


async def test_call_tool_runs_hooks_and_sends_events() -> None:
    """C7: hooks and events see a call without id, with the arguments as JSON; the prompt stays."""
    events: list[Event] = []
    watcher = Watcher()
    ctx = await given(events=events, features=[watcher])
    before = ctx.llm.prompt
    del events[:]
    async with ctx.llm.write_session() as session:
        outcome = await session.call_tool("add", {"a": 1, "b": 2})
        assert session.prompt is before
    call = ToolCall(id=None, name="add", args='{"a": 1, "b": 2}')
    assert events == [ToolCallStarted(call=call), ToolCallCompleted(call=call, outcome=outcome)]
    assert watcher.log == [("before", call), ("after", call, outcome)]
    assert ctx.llm.prompt is before
    assert requests_of(ctx) == []


async def test_unknown_or_refused_call_fires_what_was_promised() -> None:
    """B5, B6: bad arguments fire both events, an unknown tool none."""
    events: list[Event] = []
    ctx = await given(events=events)
    del events[:]
    async with ctx.llm.write_session() as session:
        with pytest.raises(UnknownToolError):
            await session.call_tool("nothing")
        assert events == []
        await session.call_tool("add", {"a": "x"})
    assert [type(event) for event in events] == [ToolCallStarted, ToolCallCompleted]


async def test_any_object_can_be_an_argument() -> None:
    """C7: code may pass what is no JSON; the tool gets the object itself."""
    got: list[object] = []

    def take(thing: object) -> str:
        """Take a thing."""
        got.append(thing)
        return "ok"

    thing = object()
    ctx = await given(tools=[take])
    async with ctx.llm.write_session() as session:
        assert await session.call_tool_raw(take, {"thing": thing}) == "ok"
    assert got == [thing]


async def test_arguments_in_a_circle_do_not_raise() -> None:
    """C7: whatever the arguments are, what goes wrong with them is in the outcome, not raised."""

    def take(thing: object) -> str:
        """Take a thing."""
        return "ok"

    circle: list[object] = []
    circle.append(circle)
    ctx = await given(tools=[take])
    async with ctx.llm.write_session() as session:
        assert isinstance(await session.call_tool(take, {"thing": circle}), ToolOutcome)


async def test_cancelling_a_tool_call_cancels_the_tool() -> None:
    """B5: cancellation passes through `call_tool`, and the block commits nothing."""
    log: list[str] = []

    async def wait() -> None:
        """Wait."""
        try:
            log.append("begun")
            await asyncio.Event().wait()
        finally:
            log.append("ended")

    ctx = await given(tools=[wait])

    async def work() -> None:
        async with ctx.llm.write_session() as session:
            session.append_prompt(user("lost"))
            await session.call_tool("wait")

    task = asyncio.create_task(work())
    await settle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert log == ["begun", "ended"]
    assert texts(ctx.llm.prompt.messages) == ["q"]


# --- parallel tool calls -------------------------------------------------------------------------


class Gate:
    """A tool whose calls wait until they are let go, and that counts them."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.cancelled: list[int] = []
        self._doors: dict[int, asyncio.Event] = {}

    async def enter(self, n: int) -> int:
        """Wait at the gate."""
        self.begun.append(n)
        try:
            await self._door(n).wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # as a tool that cleans up
            self.cancelled.append(n)
            raise
        self.ended.append(n)
        if n < 0:
            raise ValueError(n)
        return n

    def _door(self, n: int) -> asyncio.Event:
        return self._doors.setdefault(n, asyncio.Event())

    def let_go(self, *numbers: int) -> None:
        for n in numbers:
            self._door(n).set()


class Source:
    """Arguments for a gate, sync or async; notes what was taken of it."""

    def __init__(self, *items: int | Exception) -> None:
        self.items = items
        self.taken: list[int] = []
        self.is_closed = False

    def __iter__(self) -> Iterator[dict[str, object]]:
        for item in self.items:
            if isinstance(item, Exception):
                raise item
            self.taken.append(item)
            yield {"n": item}

    async def as_async(self) -> AsyncIterator[dict[str, object]]:
        try:
            for args in self:
                await asyncio.sleep(0)
                yield args
        finally:
            self.is_closed = True

    def of_kind(self, kind: str) -> Any:
        return self if kind == "sync" else self.as_async()


async def gated(gate: Gate, **options: Any) -> RunContext:
    return await given(tools=[Tool(gate.enter, name="gate")], **options)


both = pytest.mark.parametrize("kind", ["sync", "async"])


@both
async def test_parallel_calls_come_as_they_finish(kind: str) -> None:
    """J2 `toParallelToolCalls`: all run at once, and outcomes come in the order of completion."""
    gate, source = Gate(), Source(1, 2, 3)
    ctx = await gated(gate)
    async with asyncio.timeout(2), ctx.llm.write_session() as session:
        outcomes = session.parallel_tool_calls(Gate, source.of_kind(kind))
        got: list[object] = []
        for n in (3, 1, 2):
            reader = asyncio.ensure_future(anext(outcomes))
            await settle()
            assert gate.begun == [1, 2, 3]
            gate.let_go(n)
            got.append((await reader).value)
        with pytest.raises(StopAsyncIteration):
            await anext(outcomes)
    assert got == [3, 1, 2]


@both
async def test_ordered_parallel_calls(kind: str) -> None:
    """C7 REC `ordered=True`: outcomes come in the order of the arguments, though calls run at once."""
    gate, source = Gate(), Source(1, 2, 3)
    ctx = await gated(gate)
    async with asyncio.timeout(2), ctx.llm.write_session() as session:
        outcomes = session.parallel_tool_calls("gate", source.of_kind(kind), ordered=True)
        reader = asyncio.ensure_future(all_of(outcomes))
        for n in (3, 2, 1):
            await settle()
            assert gate.begun == [1, 2, 3]
            assert not reader.done()
            gate.let_go(n)
        assert [outcome.value for outcome in await reader] == [1, 2, 3]


async def test_new_arguments_do_not_let_a_later_outcome_pass() -> None:
    """C7 REC `ordered=True`: an outcome waits for those before it, when more arguments arrive, too."""
    gate, more = Gate(), asyncio.Event()
    got: list[object] = []

    async def source() -> AsyncIterator[dict[str, object]]:
        yield {"n": 1}
        yield {"n": 2}
        await more.wait()
        yield {"n": 3}

    ctx = await gated(gate)
    async with asyncio.timeout(2), ctx.llm.write_session() as session:

        async def read() -> None:
            async for outcome in session.parallel_tool_calls("gate", source(), ordered=True):
                got.append(outcome.value)

        reader = asyncio.create_task(read())
        gate.let_go(2)
        await settle()
        more.set()
        await settle()
        assert (gate.begun, gate.ended, got) == ([1, 2, 3], [2], [])
        gate.let_go(1, 3)
        await reader
    assert got == [1, 2, 3]


async def test_parallel_calls_are_lazy() -> None:
    """J2 `toParallelToolCalls`: nothing is taken or run before the first outcome is awaited."""
    gate, source = Gate(), Source(1, 2)
    ctx = await gated(gate)
    async with ctx.llm.write_session() as session:
        outcomes = session.parallel_tool_calls("gate", source)
        await settle()
        assert (source.taken, gate.begun) == ([], [])
        gate.let_go(1, 2)
        assert [o.value for o in await all_of(outcomes)] == [1, 2]


@both
@pytest.mark.parametrize("is_ordered", [True, False])
async def test_parallel_calls_are_bounded(kind: str, is_ordered: bool) -> None:
    """J2 `toParallelToolCalls`: at most `concurrency` calls run, and no more arguments are taken."""
    gate, source = Gate(), Source(*range(1, 8))
    ctx = await gated(gate)
    async with asyncio.timeout(2), ctx.llm.write_session() as session:
        outcomes = session.parallel_tool_calls(
            "gate", source.of_kind(kind), concurrency=3, ordered=is_ordered
        )
        reader = asyncio.ensure_future(anext(outcomes))
        await settle()
        assert gate.begun == source.taken == [1, 2, 3]
        gate.let_go(*range(1, 8))
        assert (await reader).value == 1
        await settle()
        assert gate.begun == [1, 2, 3]  # outcomes that nobody took keep their places
        assert [outcome.value for outcome in await all_of(outcomes)] == [2, 3, 4, 5, 6, 7]


async def test_sixteen_calls_run_at_once_by_default() -> None:
    """C7: the default is 16 at once, of a source of any length."""
    gate, source = Gate(), Source(*range(40))
    ctx = await gated(gate)
    async with asyncio.timeout(2), ctx.llm.write_session() as session:
        reader = asyncio.ensure_future(all_of(session.parallel_tool_calls("gate", source)))
        for _ in range(5):
            await settle()
        assert gate.begun == list(range(16))
        gate.let_go(*range(40))
        assert sorted(outcome.value for outcome in await reader) == list(range(40))


async def test_failures_of_parallel_calls_are_values() -> None:
    """J2 `toParallelToolCalls`: a call that fails gives an outcome, and the others go on."""
    gate = Gate()
    gate.let_go(1, -2, 3)
    ctx = await gated(gate)
    async with ctx.llm.write_session() as session:
        args: list[dict[str, object]] = [{"n": 1}, {"n": -2}, {"n": "x"}, {"n": 3}]
        outcomes = await all_of(session.parallel_tool_calls("gate", args, ordered=True))
    assert [outcome.kind for outcome in outcomes] == [
        "success", "failure", "validation_error", "success",
    ]  # fmt: skip
    assert outcomes[1].text == "Tool 'gate' failed: ValueError: -2"


async def test_parallel_calls_raw() -> None:
    """J2 `toParallelToolCallsRaw`: the texts that a model would read, the errors' too."""
    gate = Gate()
    gate.let_go(1, -2)
    ctx = await gated(gate)
    async with ctx.llm.write_session() as session:
        texts_ = session.parallel_tool_calls_raw("gate", [{"n": 1}, {"n": -2}], ordered=True)
        assert await all_of(texts_) == ["1", "Tool 'gate' failed: ValueError: -2"]


async def test_parallel_calls_do_not_touch_the_prompt() -> None:
    """C7: events fire with calls without id, one pair for each call, and the prompt stays."""
    events: list[Event] = []
    gate = Gate()
    gate.let_go(1, 2)
    ctx = await gated(gate, events=events)
    before = ctx.llm.prompt
    del events[:]
    async with ctx.llm.write_session() as session:
        await all_of(session.parallel_tool_calls("gate", [{"n": 1}, {"n": 2}]))
    started = [event.call for event in events if isinstance(event, ToolCallStarted)]
    ended = [event.call for event in events if isinstance(event, ToolCallCompleted)]
    assert started == ended == [ToolCall(name="gate", args=f'{{"n": {n}}}') for n in (1, 2)]
    assert ctx.llm.prompt is before


@pytest.mark.parametrize("concurrency", [0, -1])
async def test_concurrency_is_positive(concurrency: int) -> None:
    """C7 REC: concurrency of less than 1 is refused at once."""
    ctx = await given()
    async with ctx.llm.write_session() as session:
        with pytest.raises(InvalidValueError, match="give 1 or more"):
            session.parallel_tool_calls("add", [], concurrency=concurrency)


@both
async def test_no_arguments_no_outcomes(kind: str) -> None:
    """C41: an empty source gives no outcome."""
    ctx = await given()
    async with ctx.llm.write_session() as session:
        source = Source().of_kind(kind)
        assert await all_of(session.parallel_tool_calls("add", source)) == []


@both
async def test_error_of_the_arguments_stops_the_calls(kind: str) -> None:
    """C7: an error in the arguments is raised, after the calls under way were cancelled and waited for."""
    gate, source = Gate(), Source(1, 2, ValueError("bad line"), 3)
    ctx = await gated(gate)
    async with asyncio.timeout(2), ctx.llm.write_session() as session:
        with pytest.raises(ValueError, match="bad line"):
            await all_of(session.parallel_tool_calls("gate", source.of_kind(kind)))
        assert gate.begun[:1] == [1]
        assert (sorted(gate.cancelled), gate.ended) == (gate.begun, [])
        session.append_prompt(user("goes on"))
    assert texts(ctx.llm.prompt.messages) == ["q", "goes on"]


async def test_error_of_a_hook_stops_the_calls() -> None:
    """B6: a hook that raises fails the iteration, and the calls under way are cancelled."""

    class Stop(Feature):
        async def before_tool_call(self, ctx: RunContext, call: ToolCall) -> None:
            if call.args == '{"n": 3}':
                await settle()
                raise RuntimeError("not this one")

    gate = Gate()
    ctx = await gated(gate, features=[Stop()])
    async with asyncio.timeout(2), ctx.llm.write_session() as session:
        with pytest.raises(RuntimeError, match="not this one"):
            await all_of(session.parallel_tool_calls("gate", Source(1, 2, 3)))
        assert sorted(gate.cancelled) == [1, 2]


async def test_cancelling_the_reader_stops_the_calls() -> None:
    """C7: cancelling the iteration cancels the calls under way and waits for them."""
    gate, source = Gate(), Source(*range(9))
    ctx = await gated(gate)

    async def work() -> None:
        async with ctx.llm.write_session() as session:
            await all_of(session.parallel_tool_calls("gate", source, concurrency=2))

    task = asyncio.create_task(work())
    await settle()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert (gate.begun, sorted(gate.cancelled)) == ([0, 1], [0, 1])


@pytest.mark.parametrize("is_raw", [True, False])
async def test_leaving_parallel_calls_stops_the_rest(
    is_raw: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """C7: after a break the other calls are cancelled, quietly, by the time the block has ended."""
    gate, source = Gate(), Source(*range(9))
    ctx = await gated(gate)

    async def let_one_go() -> None:
        await settle()
        gate.let_go(1)

    async with asyncio.timeout(2):
        opener = asyncio.create_task(let_one_go())
        async with ctx.llm.write_session() as session:
            calls = session.parallel_tool_calls_raw if is_raw else session.parallel_tool_calls
            async for _ in calls("gate", source, concurrency=3):
                break
        assert (gate.begun, sorted(gate.cancelled)) == ([0, 1, 2], [0, 2])
        await opener
        await settle()
    assert [record.getMessage() for record in caplog.records] == []


async def test_parallel_calls_end_with_the_block() -> None:
    """K6: calls that still run when the block ends are cancelled, and the iteration raises afterwards."""
    gate, source = Gate(), Source(*range(9))
    ctx = await gated(gate)
    async with asyncio.timeout(2):
        async with ctx.llm.write_session() as session:
            outcomes = session.parallel_tool_calls("gate", source, concurrency=3)
            reader = asyncio.ensure_future(anext(outcomes))
            await settle()
            gate.let_go(0)
            assert (await reader).value == 0
        assert (gate.begun, sorted(gate.cancelled)) == ([0, 1, 2], [1, 2])
        with pytest.raises(SessionClosedError):
            await anext(outcomes)


async def test_waiting_parallel_calls_are_cancelled_at_the_end_of_the_block() -> None:
    """C7: when the block has ended no call runs on, though another task still waits for an outcome."""
    gate = Gate()
    ctx = await gated(gate)
    async with asyncio.timeout(2):
        async with ctx.llm.write_session() as session:
            outcomes = session.parallel_tool_calls("gate", Source(1, 2))
            task = asyncio.create_task(all_of(outcomes))
            await settle()
            assert gate.begun == [1, 2]
        cancelled = sorted(gate.cancelled)
        gate.let_go(1, 2)
        await asyncio.gather(task, return_exceptions=True)
    assert cancelled == [1, 2]


async def test_waiting_source_is_cancelled() -> None:
    """C7: leaving the iteration cancels a source that is waiting for its next arguments, too."""
    log: list[str] = []

    async def source() -> AsyncIterator[dict[str, object]]:
        yield {"a": 1, "b": 2}
        try:
            await asyncio.Event().wait()
        finally:
            log.append("ended")

    ctx = await given()
    async with asyncio.timeout(2):
        async with ctx.llm.write_session() as session:
            outcomes = session.parallel_tool_calls("add", source())
            assert (await anext(outcomes)).value == 3
            await settle()
            assert log == []
            await outcomes.aclose()
            assert log == ["ended"]


async def test_source_is_closed_with_the_iteration() -> None:
    """C7: leaving the iteration closes a source that has more arguments to give."""
    gate, source = Gate(), Source(*range(9))
    gate.let_go(0)
    arguments = source.as_async()
    ctx = await gated(gate)
    async with asyncio.timeout(2), ctx.llm.write_session() as session:
        outcomes = session.parallel_tool_calls("gate", arguments, concurrency=2)
        await anext(outcomes)
        await outcomes.aclose()
        assert source.is_closed


async def test_source_may_hold_a_timeout_across_its_items() -> None:
    """C7: a source with `asyncio.timeout` around its loop works, as it does in a plain `async for`."""

    async def source() -> AsyncIterator[dict[str, object]]:
        async with asyncio.timeout(2):
            for n in range(3):
                await asyncio.sleep(0)
                yield {"a": n, "b": 1}

    ctx = await given()
    async with ctx.llm.write_session() as session:
        outcomes = await all_of(session.parallel_tool_calls("add", source(), ordered=True))
    assert [outcome.value for outcome in outcomes] == [1, 2, 3]


async def test_session_stream_feeds_parallel_calls() -> None:
    """J2 `toParallelToolCalls` on a stream of arguments: those a streamed reply holds, as it comes."""
    ctx = await given('{"a":1,"b":2} {"a":3,"b":4}')

    async def arguments(session: WriteSession) -> AsyncIterator[dict[str, object]]:
        async for frame in session.request_llm_streaming():
            if isinstance(frame, TextDelta):
                yield json.loads(frame.text)

    async with ctx.llm.write_session() as session:
        outcomes = await all_of(session.parallel_tool_calls("add", arguments(session)))
    assert sorted(outcome.value for outcome in outcomes) == [3, 7]
    assert texts(ctx.llm.prompt.messages) == ["q", '{"a":1,"b":2} {"a":3,"b":4}']


# --- nested sessions (K4) ------------------------------------------------------------------------


async def nested(
    kind: str, run_it: Callable[[WriteSession], Awaitable[ToolOutcome]]
) -> ToolOutcome:
    """What comes of a tool that opens a session and is run inside one."""
    contexts: list[RunContext] = []

    async def opener() -> str:
        """Open a session."""
        async with getattr(contexts[0].llm, kind)():
            return "opened"

    ctx = await given(tools=[opener])
    contexts.append(ctx)
    async with asyncio.timeout(2), ctx.llm.write_session() as session:
        return await run_it(session)


@pytest.mark.parametrize("kind", ["read_session", "write_session"])
async def test_tool_of_call_tool_cannot_open_a_session(kind: str) -> None:
    """K4, C1: a tool run by `call_tool` that opens a session gets the error at once, as its outcome."""
    outcome = await nested(kind, lambda session: session.call_tool("opener"))
    assert (type(outcome.error), outcome.kind) == (NestedSessionError, "failure")
    assert f"the {kind[:-8]} session of opener (test_sessions.py:" in str(outcome.error)
    assert "inside the write session of nested (test_sessions.py:" in str(outcome.error)


@pytest.mark.parametrize("kind", ["read_session", "write_session"])
async def test_tool_of_a_parallel_call_cannot_open_a_session(kind: str) -> None:
    """K4, C1: so does a tool run by `parallel_tool_calls`, though it runs in a task of its own."""
    outcome = await nested(kind, lambda session: anext(session.parallel_tool_calls("opener", [{}])))
    assert type(outcome.error) is NestedSessionError


async def test_hook_around_a_request_cannot_open_a_session() -> None:
    """K4, C1: a feature that opens a session while the model is asked gets the error, not a deadlock."""

    class Opener(Feature):
        async def before_model_call(self, ctx: RunContext, request: ModelRequest) -> ModelRequest:
            async with ctx.llm.read_session():
                return request

    ctx = await given("a", features=[Opener()])
    async with asyncio.timeout(2), ctx.llm.write_session() as session:
        with pytest.raises(NestedSessionError):
            await session.request_llm()


async def test_tool_of_the_loop_can_open_a_session() -> None:
    """C1: no session is open while the default strategy runs tools, so they may open one."""
    contexts: list[RunContext] = []

    class Keep(Feature):
        async def on_run_start(self, ctx: RunContext) -> None:
            contexts.append(ctx)

    async def note() -> str:
        """Leave a note."""
        async with contexts[0].llm.write_session() as session:
            session.append_prompt(user("note"))
        return "noted"

    model = ScriptedModel([assistant(ToolCall(id="1", name="note")), "done"])
    result = await Agent(model=model, tools=[note], features=[Keep()]).run("go")
    assert [m.text or m.role for m in result.new_messages] == [
        "go", "assistant", "tool", "note", "done",
    ]  # fmt: skip


async def test_child_task_is_refused_until_the_block_has_closed() -> None:
    """K4: a task started inside a block is refused while it is open, and works when it has closed."""
    ctx = await given()
    is_closed = asyncio.Event()
    early: list[BaseException] = []

    async def child() -> str:
        try:
            async with ctx.llm.read_session():
                pass
        except NestedSessionError as exc:
            early.append(exc)
        await is_closed.wait()
        async with ctx.llm.write_session() as session:
            session.append_prompt(user("child"))
        return "done"

    async with asyncio.timeout(2):
        async with ctx.llm.write_session() as session:
            task = asyncio.create_task(child())
            await settle()
            session.append_prompt(user("parent"))
        is_closed.set()
        assert await task == "done"
    assert len(early) == 1
    assert texts(ctx.llm.prompt.messages) == ["q", "parent", "child"]


async def test_child_task_of_a_failed_block_works() -> None:
    """K4: a block that raised is closed, too."""
    ctx = await given()
    go = asyncio.Event()

    async def child() -> int:
        await go.wait()
        async with ctx.llm.read_session() as session:
            return len(session.prompt.messages)

    with pytest.raises(ValueError):
        async with ctx.llm.write_session():
            task = asyncio.create_task(child())
            raise ValueError
    go.set()
    assert await task == 1


@pytest.mark.parametrize("inner", ["read_session", "write_session"])
@pytest.mark.parametrize("outer", ["read_session", "write_session"])
async def test_sessions_of_two_contexts_nest(outer: str, inner: str) -> None:
    """K4: a session of another context may be opened inside one, and both work and commit."""
    one, two = await given("1"), await given("2")
    async with asyncio.timeout(2), getattr(one.llm, outer)() as first:
        async with getattr(two.llm, inner)() as second:
            assert (await second.request_llm()).text == "2"
            assert (await first.request_llm()).text == "1"
            with pytest.raises(NestedSessionError):
                async with one.llm.read_session():
                    pass
        with pytest.raises(NestedSessionError):
            async with one.llm.write_session():
                pass
        async with two.llm.write_session():
            pass
    assert len(one.llm.prompt.messages) == (2 if outer == "write_session" else 1)
    assert len(two.llm.prompt.messages) == (2 if inner == "write_session" else 1)


# --- sessions held for long ----------------------------------------------------------------------


class Heard(logging.Handler):
    """Keeps the records of `tenure.llm`, and says when there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.one = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.one.set()


@pytest.fixture
async def heard() -> AsyncIterator[Heard]:
    handler = Heard()
    logging.getLogger("tenure.llm").addHandler(handler)
    yield handler
    logging.getLogger("tenure.llm").removeHandler(handler)


async def test_long_write_session_is_warned_of_once(heard: Heard) -> None:
    """J2 best practices: holding a write session for long logs one warning that says where it is."""
    ctx = await given(long_write_session_s=0.001)
    async with asyncio.timeout(5), ctx.llm.write_session():
        await heard.one.wait()
        timer = asyncio.Event()  # many times as long as the warning took
        asyncio.get_running_loop().call_later(0.02, timer.set)
        await timer.wait()
    (record,) = heard.records
    assert record.levelno == logging.WARNING
    place = "the write session of test_long_write_session_is_warned_of_once (test_sessions.py:"
    assert record.getMessage().startswith(place)
    assert "has been open for 0.001 s" in record.getMessage()


@pytest.mark.parametrize("kind", ["read_session", "write_session"])
async def test_short_session_is_not_warned_of(kind: str, heard: Heard) -> None:
    """J2 best practices: a short write session, or a read session of any length, logs nothing."""
    ctx = await given(long_write_session_s=0.005 if kind == "write_session" else 0.001)
    timer = asyncio.Event()
    async with getattr(ctx.llm, kind)():
        asyncio.get_running_loop().call_later(0.02, timer.set)
        if kind == "read_session":
            await timer.wait()
    await timer.wait()
    assert heard.records == []


async def test_warning_can_be_turned_off(heard: Heard) -> None:
    """J2 best practices: `long_write_session_s=None` turns the warning off."""
    ctx = await given(long_write_session_s=None)
    timer = asyncio.Event()
    async with ctx.llm.write_session():
        asyncio.get_running_loop().call_later(0.01, timer.set)
        await timer.wait()
    assert heard.records == []


# --- under load ----------------------------------------------------------------------------------


async def test_fifty_tasks() -> None:
    """C08, K5: of 50 tasks that write, read, stream, fail and are cancelled, only what committed stays."""

    async def reply(request: ModelRequest) -> str:
        await asyncio.sleep(0)
        return f"re {request.messages[-1].text}"

    ctx = await given(*[reply] * 50)
    committed: list[str] = []

    async def write(n: int) -> None:
        async with ctx.llm.write_session() as session:
            session.append_prompt(user(f"w{n}"))
            await asyncio.sleep(0)
            await session.request_llm()
            committed.extend((f"w{n}", f"re w{n}"))

    async def read(n: int) -> None:
        async with ctx.llm.read_session() as session:
            before = session.prompt
            await session.request_llm()
            assert session.prompt is before
            assert [m.text for m in before.messages[1:]] == committed

    async def stream(n: int) -> None:
        async with ctx.llm.write_session() as session:
            session.append_prompt(user(f"s{n}"))
            await all_of(session.request_llm_streaming())
            committed.extend((f"s{n}", f"re s{n}"))

    async def fail(n: int) -> None:
        async with ctx.llm.write_session() as session:
            session.append_prompt(user(f"f{n}"))
            await session.request_llm()
            raise KeyError(n)

    async def stop(n: int) -> None:
        async with ctx.llm.write_session() as session:
            session.append_prompt(user(f"x{n}"))
            asyncio.current_task().cancel()
            await session.request_llm()

    async with asyncio.timeout(2):
        kinds = (write, read, stream, fail, stop)
        tasks = [asyncio.create_task(kinds[n % 5](n), context=Context()) for n in range(50)]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        async with ctx.llm.write_session() as session:
            assert texts(session.prompt.messages) == ["q", *committed]
    expected = [type(None), type(None), type(None), KeyError, asyncio.CancelledError]
    assert [type(outcome) for outcome in outcomes] == expected * 10
    assert len(committed) == 40
