"""LLM sessions: every kind of request, nesting and load (spec C, table J2).

Commits, the lock and closed sessions are in `test_llm.py`; streams, tools, editing, storing and typed
answers in the files named after them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import Context
from typing import Any

import pytest
from sessions import (
    KINDS,
    add,
    all_of,
    given,
    names,
    requests_of,
    roles,
    search,
    settle,
    texts,
    tool_history,
)

from tenure import (
    Agent,
    AssistantMessage,
    EmptyReplyError,
    Feature,
    InvalidValueError,
    LLMParams,
    ModelRequest,
    ModelRequestError,
    NamedTool,
    NestedSessionError,
    Reasoning,
    RunContext,
    Text,
    Tool,
    ToolCall,
    ToolOutcome,
    ToolSpec,
    UnknownToolError,
    UsageError,
    WriteSession,
    assistant,
    tool_result,
    user,
)
from tenure.testing import ScriptedModel
from tenure.testing.scripted import Reply

pytestmark = pytest.mark.anyio


# --- requests (J2) -------------------------------------------------------------------------------

WITH_TOOLS = ["llm", "multiple", "only_calling_tools", "force_one_tool", "multiple_choices"]


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
    async with asyncio.timeout(30), ctx.llm.write_session() as session:
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
    async with asyncio.timeout(30), ctx.llm.write_session() as session:
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
    async with asyncio.timeout(30), ctx.llm.write_session() as session:
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
    async with asyncio.timeout(30), ctx.llm.write_session() as session:
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

    async with asyncio.timeout(30):
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
    async with asyncio.timeout(30), getattr(one.llm, outer)() as first:
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
    async with asyncio.timeout(30), ctx.llm.write_session():
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

    async with asyncio.timeout(30):
        kinds = (write, read, stream, fail, stop)
        tasks = [asyncio.create_task(kinds[n % 5](n), context=Context()) for n in range(50)]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        async with ctx.llm.write_session() as session:
            assert texts(session.prompt.messages) == ["q", *committed]
    expected = [type(None), type(None), type(None), KeyError, asyncio.CancelledError]
    assert [type(outcome) for outcome in outcomes] == expected * 10
    assert len(committed) == 40
