"""LLM sessions from threads: `tenure.sync.LLMContext` and plain strategies."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator

import pytest
from openai_server import OpenAIServer, running_server, streamed

import tenure
import tenure.sync
from tenure import (
    Agent,
    ChatMemory,
    InMemoryStore,
    LLMContext,
    ModelRequest,
    NestedSessionError,
    RunContext,
    SessionClosedError,
    StreamEnd,
    StreamFrame,
    TextDelta,
    ToolCall,
    UsageError,
    assistant,
    tool,
    user,
)
from tenure.testing import ScriptedModel


@tool
def double(n: int) -> int:
    """Double a number."""
    return 2 * n


@pytest.mark.parametrize("name", ["LLMContext", "ReadSession", "WriteSession"])
def test_sync_sessions_have_the_same_names_and_signatures(name: str) -> None:
    """Every public member of the async classes is in `tenure.sync`, with parameters and first line."""
    ours, theirs = getattr(tenure, name), getattr(tenure.sync, name)
    public = {n for n in dir(ours) if not n.startswith("_")} - {
        "reset",
        "loop",
        "limit",
        "attach",
        "fork",
        "adopt",
        "dropped",
        "restore",
    }
    assert {n for n in dir(theirs) if not n.startswith("_")} == public
    for member in public:
        one, other = getattr(ours, member), getattr(theirs, member)
        if not inspect.isfunction(one):
            assert isinstance(one, property)
            assert isinstance(other, property)
            continue
        parameters = [
            p.replace(annotation=None) for p in inspect.signature(one).parameters.values()
        ]
        assert parameters == [
            p.replace(annotation=None) for p in inspect.signature(other).parameters.values()
        ], member
        if name != "LLMContext":
            assert (one.__doc__ or "").splitlines()[0] == (other.__doc__ or "").splitlines()[0]


def test_a_plain_strategy_reads_edits_asks_and_runs_tools() -> None:
    """A plain function can be a strategy of the sync agent, with every kind of request at hand."""

    def strategy(ctx: tenure.sync.RunContext, text: str) -> list[object]:
        found: list[object] = [ctx.input, ctx.session_id, list(ctx.tools)]
        with ctx.llm.write_session() as session:
            session.append_prompt(user(text))
            found.append(session.request_llm().text)
            found.append(session.request_llm_multiple()[0])
            found.append(session.request_llm_without_tools().text)
            found.append(session.request_llm_only_calling_tools().tool_calls)
            session.drop_trailing_tool_calls()
            found.append(session.request_llm_force_one_tool(double).tool_calls)
            session.drop_trailing_tool_calls()
            found.append(sorted(m.text for m in session.request_llm_multiple_choices(2)))
            found.append(session.request_llm_structured(int).value)
            found.append(session.request_llm_structured_one_shot(list[int]).value)
            found.append([type(f) for f in session.request_llm_streaming()][-1])
            found.append(session.call_tool(double, {"n": 4}).value)
            found.append(session.call_tool_raw("double", {"n": 5}))
            each = [{"n": n} for n in range(3)]
            found.append([o.value for o in session.parallel_tool_calls(double, each, ordered=True)])
            found.append(sorted(session.parallel_tool_calls_raw(double, each)))
            session.leave_last_n_messages(1)
        with ctx.llm.read_session() as reading:
            found.append([m.text for m in reading.prompt.messages])
        return found

    call = assistant(ToolCall(id="c", name="double", args='{"n": 1}'))
    model = ScriptedModel(
        ["one", "two", "three", call, call, "a", "b", "7", "[1, 2]", "the stream"]
    )
    agent = tenure.sync.Agent(model=model, tools=[double], strategy=strategy)
    output = agent.run("hi", None).output
    assert output == [
        "hi",
        None,
        ["double"],
        "one",
        assistant("two").parts[0],
        "three",
        call.tool_calls,
        call.tool_calls,
        ["a", "b"],
        7,
        [1, 2],
        StreamEnd,
        8,
        "10",
        [0, 2, 4],
        ["0", "2", "4"],
        ["the stream"],
    ]


def test_a_plain_strategy_commits_or_not_like_an_async_one() -> None:
    """A block that raises in a thread leaves the context as it was, and the lock free."""

    def strategy(ctx: tenure.sync.RunContext, text: str) -> list[str]:
        with ctx.llm.write_session() as session:
            session.append_prompt(user("kept"))
        with pytest.raises(KeyError), ctx.llm.write_session() as session:
            session.append_prompt(user("lost"))
            raise KeyError
        with pytest.raises(SessionClosedError):
            session.prompt
        with ctx.llm.read_session() as reading:
            return [m.text for m in reading.prompt.messages]

    agent = tenure.sync.Agent(model=ScriptedModel([]), strategy=strategy)
    assert agent.run("hi").output == ["kept"]


def test_nesting_raises_in_a_thread_too() -> None:
    """A session inside another one of the same thread raises at once, naming both."""

    def strategy(ctx: tenure.sync.RunContext, text: str) -> None:
        with (
            ctx.llm.write_session(),
            pytest.raises(NestedSessionError, match=r"Cannot open the read .* inside the write .*"),
            ctx.llm.read_session(),
        ):
            pass

    tenure.sync.Agent(model=ScriptedModel([]), strategy=strategy).run("hi")


def test_a_plain_strategy_is_stored_like_any_other() -> None:
    """What a plain strategy leaves in the prompt is the conversation that the next run sees."""
    store = InMemoryStore()

    def strategy(ctx: tenure.sync.RunContext, text: str) -> object:
        with ctx.llm.write_session() as session:
            session.append_prompt(user(text))
            reply = session.request_llm()
        return ctx.execute_tools(reply.tool_calls).text or reply.text

    model = ScriptedModel(["one", "two"])
    agent = tenure.sync.Agent(model=model, strategy=strategy, features=[ChatMemory(store)])
    assert str(agent.run("a", "s")) == "one"
    agent.run("b", "s")
    stored = asyncio.run(store.read("s"))
    assert [m.text for m in stored] == ["a", "one", "b", "two"]


def test_an_async_strategy_still_runs_on_the_loop() -> None:
    """The sync agent takes async strategies as well."""

    async def strategy(ctx: RunContext, text: str) -> str:
        assert asyncio.get_running_loop() is ctx.llm.loop
        return text.upper()

    assert tenure.sync.Agent(model=ScriptedModel([]), strategy=strategy).run("hi").output == "HI"


def test_a_plain_strategy_of_an_async_agent_is_refused() -> None:
    """The async agent says that its strategy must be async, and that there is a sync agent."""

    def strategy(ctx: object, text: str) -> str:
        return text

    agent = Agent(model=ScriptedModel([]), strategy=strategy)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"no async function; .* use tenure\.sync\.Agent"):
        asyncio.run(agent.run("hi"))


def test_a_plain_tool_opens_a_session_from_its_thread() -> None:
    """A plain tool runs in a worker thread, and can use its run's context from there."""
    contexts: list[RunContext] = []

    @tool
    def count() -> int:
        """Count the messages."""
        with tenure.sync.LLMContext(contexts[0].llm).read_session() as session:
            return len(session.prompt.messages)

    async def strategy(ctx: RunContext, text: str) -> str:
        contexts.append(ctx)
        async with ctx.llm.write_session() as session:
            session.append_prompt(user(text))
        outside = await ctx.execute_tools([ToolCall(name="count")])
        async with ctx.llm.write_session() as session:
            inside = await session.call_tool(count)
        assert isinstance(inside.error, NestedSessionError)
        return outside.tool_results[0].text

    agent = Agent(model=ScriptedModel([]), tools=[count], strategy=strategy)
    assert asyncio.run(agent.run("hi")).output == "1"


def test_a_cancelled_run_stops_what_its_thread_asks_for() -> None:
    """When a run with a plain strategy is cancelled, its request is, and its context is of no use."""
    asked, refused = threading.Event(), threading.Event()
    cancelled: list[bool] = []

    async def never(_: ModelRequest) -> str:
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return ""

    def strategy(ctx: tenure.sync.RunContext, text: str) -> None:
        try:
            with ctx.llm.read_session() as session:
                session.request_llm()
        finally:
            with pytest.raises(UsageError, match="This run has ended"):
                ctx.execute_tools([])
            refused.set()

    agent = tenure.sync.Agent(model=ScriptedModel([never]), strategy=strategy)
    stream = agent.run_stream("hi")
    events = iter(stream)
    next(events)
    next(events)
    assert asked.wait(10)
    stream.__exit__(None, None, None)
    assert refused.wait(10)
    assert cancelled == [True]


def test_a_cancelled_run_ends_the_stream_that_its_thread_was_reading() -> None:
    """C59: when a run is cancelled, a stream that its thread has open is closed, and its session too."""
    reading, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    closed: list[str] = []
    contexts: list[LLMContext] = []

    class Endless(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[StreamFrame]:
            try:
                while True:
                    yield TextDelta(index=0, text="more ")
            finally:
                closed.append("closed")

    def strategy(ctx: tenure.sync.RunContext, text: str) -> None:
        contexts.append(ctx.llm._context)
        try:
            with ctx.llm.write_session() as session:
                for _ in session.request_llm_streaming():
                    reading.set()
                    go_on.wait(10)
        finally:
            ended.set()

    async def cancel_while_reading() -> None:
        # As the loop behind `tenure.sync` does it, but on a loop whose tasks can be looked at.
        agent = tenure.sync.Agent(model=Endless([]), strategy=strategy)
        run = asyncio.create_task(agent._run("hi", None))
        await asyncio.to_thread(reading.wait, 10)
        run.cancel()
        await asyncio.wait({run})
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert closed == ["closed"]
        async with asyncio.timeout(10), contexts[0].write_session():
            go_on.set()
            await asyncio.to_thread(ended.wait, 10)

    asyncio.run(cancel_while_reading())


@pytest.mark.parametrize("read", [1, 100])
def test_a_stream_is_read_from_a_thread(read: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread reads a provider's stream to its end, or leaves it, and the session goes on."""

    def strategy(ctx: tenure.sync.RunContext, text: str) -> list[str]:
        with ctx.llm.write_session() as session:
            session.append_prompt(user(text))
            for number, frame in enumerate(session.request_llm_streaming(), 1):
                assert isinstance(frame, TextDelta) or number > 2
                if number == read:
                    break
            return [m.text for m in session.prompt.messages]

    with running_server() as server:
        server.script(streamed({"content": "Hel"}, {"content": "lo"}))
        agent = _agent_of(server, strategy, monkeypatch)
        assert agent.run("hi").output == (["hi"] if read == 1 else ["hi", "Hello"])


def _agent_of(
    server: OpenAIServer,
    strategy: tenure.sync.PlainStrategy,
    monkeypatch: pytest.MonkeyPatch,
) -> tenure.sync.Agent:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    return tenure.sync.Agent(model="openai-chat:scripted-1", strategy=strategy)
