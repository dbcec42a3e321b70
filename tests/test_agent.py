"""The agent: its loop, its limits, its events and hooks, streaming, `ask`, and the sync facade."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import tenure.sync
from tenure import (
    Agent,
    AssistantMessage,
    ChatMemory,
    EmptyReplyError,
    Event,
    Feature,
    InMemoryStore,
    InvalidValueError,
    IterationLimitError,
    LLMParams,
    Message,
    ModelRequest,
    ModelRequestError,
    Prompt,
    RunCompleted,
    RunContext,
    RunResult,
    Text,
    TextDelta,
    ToolCall,
    UnknownModelError,
    Usage,
    UsageError,
    assistant,
    tool,
    user,
)
from tenure.testing import ManualClock, ScriptedModel

pytestmark = pytest.mark.anyio


def texts(messages: Iterable[Message]) -> list[str]:
    return [message.text for message in messages]


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def broken() -> str:
    """Always fails."""
    raise KeyError("secret drawer")


def calls(*names_and_args: tuple[str, str]) -> AssistantMessage:
    return assistant(
        *(
            ToolCall(id=f"c{n}", name=name, args=args)
            for n, (name, args) in enumerate(names_and_args)
        )
    )


# --- the loop ---


async def test_tools_are_run_until_the_model_answers() -> None:
    """The loop runs each turn's tools, tells the model the results in order, and ends with its text."""
    model = ScriptedModel(
        [
            calls(("add", '{"a": 1, "b": 2}'), ("add", '{"a": 3, "b": 4}')),
            calls(("add", '{"a": 3, "b": 7}')),
            "10",
        ]
    )
    result = await Agent(model=model, tools=[add]).run("add 1, 2, 3 and 4")
    assert result.output == "10"
    roles = [m.role for m in result.new_messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    second = model.requests[1].messages[-1]
    assert [(r.call_id, r.text) for r in second.tool_results] == [("c0", "3"), ("c1", "7")]
    assert [spec.name for spec in model.requests[0].tools] == ["add"]


async def test_a_tool_that_fails_is_told_to_the_model() -> None:
    """Exceptions, bad arguments and unknown names become error results, and the run goes on (B5)."""
    model = ScriptedModel(
        [
            calls(
                ("broken", "{}"), ("add", '{"a": "x", "b": 1}'), ("add", "{oops"), ("nothing", "{}")
            ),
            "sorry",
        ]
    )
    result = await Agent(model=model, tools=[add, broken]).run("go")
    assert result.output == "sorry"
    found = result.new_messages[2].tool_results
    assert all(r.is_error for r in found)
    assert "KeyError: 'secret drawer'" in found[0].text
    assert found[1].text.startswith(
        "Invalid arguments for tool 'add': a: Input should be a valid int"
    )
    assert found[2].text.startswith("Failed to parse tool arguments: ")
    assert found[3].text == (
        "Tool with name 'nothing' not found in the tool registry. Use one of the available tools."
    )
    assert model.requests[1].messages[-1].tool_results == found[:3]  # the fourth is told in words
    assert found[3].text in model.requests[1].messages[-1].text


async def test_text_beside_calls_does_not_end_the_run() -> None:
    """Tool calls take precedence over text in one reply, and both stay in history."""
    first = assistant("I will add.", ToolCall(id="c", name="add", args='{"a": 1, "b": 1}'))
    model = ScriptedModel([first, "2"])
    result = await Agent(model=model, tools=[add]).run("?")
    assert result.output == "2"
    assert result.new_messages[1] == first


async def test_tools_of_one_turn_run_at_the_same_time() -> None:
    """Calls of one turn overlap: each of these tools waits for the other."""
    gates = [asyncio.Event(), asyncio.Event()]

    @tool
    async def meet(me: int) -> str:
        """Wait for the other."""
        gates[me].set()
        await asyncio.wait_for(gates[1 - me].wait(), 30)
        return f"met {me}"

    model = ScriptedModel([calls(("meet", '{"me": 0}'), ("meet", '{"me": 1}')), "ok"])
    await Agent(model=model, tools=[meet]).run("go")
    assert [r.text for r in model.requests[1].messages[-1].tool_results] == ["met 0", "met 1"]


async def test_the_number_of_model_calls_is_limited() -> None:
    """Beyond `max_iterations` model calls the run fails with the number, and nothing is stored."""
    store = InMemoryStore()
    model = ScriptedModel([calls(("add", '{"a": 1, "b": 1}'))] * 4)
    agent = Agent(model=model, tools=[add], max_iterations=3, features=[ChatMemory(store)])
    with pytest.raises(IterationLimitError, match="max_iterations=3"):
        await agent.run("go", "s")
    assert len(model.requests) == 3
    assert await store.read("s") == []
    assert inspect.signature(Agent).parameters["max_iterations"].default == 50


async def test_an_empty_reply_is_a_clear_error() -> None:
    """A reply with nothing in it fails the run by name."""
    with pytest.raises(EmptyReplyError, match="answered with nothing"):
        await Agent(model=ScriptedModel([""])).run("hi")


async def test_usage_is_added_up() -> None:
    """A run's usage is that of all its requests."""
    spent = Usage(input_tokens=10, output_tokens=2, requests=1, details={"cached": 3})
    replies = [
        AssistantMessage(parts=calls(("add", '{"a": 1, "b": 1}')).parts, usage=spent),
        AssistantMessage(parts=(Text(text="2"),), usage=spent),
    ]
    result = await Agent(model=ScriptedModel(replies), tools=[add]).run("?")
    assert result.usage == Usage(
        input_tokens=20, output_tokens=4, requests=2, details={"cached": 6}
    )


async def test_params_reach_the_model() -> None:
    """Params of the prompt win over the agent's, and both reach the request."""
    model = ScriptedModel(["x"])
    prompt = Prompt(params=LLMParams(temperature=0.5))
    params = LLMParams(temperature=1.0, max_tokens=7)
    await Agent(model=model, prompt=prompt, params=params).run("?")
    assert model.requests[0].params == LLMParams(temperature=0.5, max_tokens=7)


async def test_a_functional_strategy_decides_what_a_run_does() -> None:
    """A strategy is an async function of context and text; what it returns is the output."""

    async def twice(ctx: RunContext, text: str) -> dict[str, str]:
        answers: dict[str, str] = {}
        for question in (text, text.upper()):
            async with ctx.llm.write_session() as session:
                session.append_prompt(user(question))
                answers[question] = (await session.request_llm()).text
        return answers

    result = await Agent(model=ScriptedModel(["1", "2"]), strategy=twice).run("hi")
    assert result.output == {"hi": "1", "HI": "2"}
    assert texts(result.new_messages) == ["hi", "1", "HI", "2"]


async def test_ids_and_times_come_from_the_clock() -> None:
    """With a manual clock a run's own messages have its ids and its time."""
    clock = ManualClock()
    model = ScriptedModel([calls(("add", '{"a": 1, "b": 1}')), "2"])
    result = await Agent(model=model, tools=[add], clock=clock).run("?")
    own = [m for m in result.new_messages if m.role in ("user", "tool")]
    assert [m.id for m in own] == ["id-000002", "id-000003"]
    assert {m.created_at for m in own} == {clock.now()}
    assert result.run_id == "id-000001"


# --- what is wrong is said at once ---


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"model": "gpt"}, UnknownModelError, "no model 'gpt'"),
        ({"model": 7}, UnknownModelError, "type int is no model"),
        ({"max_iterations": 0}, InvalidValueError, "max_iterations=0"),
        ({"name": ""}, InvalidValueError, "name is empty"),
        ({"tools": [7]}, InvalidValueError, "7 is not a tool"),
        ({"tools": [add, add]}, InvalidValueError, "Two tools are named 'add'"),
        ({"features": [7]}, InvalidValueError, "7 is no feature"),
        ({"features": [ChatMemory(), ChatMemory()]}, InvalidValueError, "has a ChatMemory already"),
        ({"store": "x.db", "features": [ChatMemory()]}, InvalidValueError, "names no store"),
    ],
)
def test_a_wrong_option_is_refused(
    options: dict[str, object], error: type[Exception], says: str
) -> None:
    """A wrong option raises when the agent is made, naming the value."""
    with pytest.raises(error, match=says):
        Agent(**{"model": ScriptedModel([]), **options})


@pytest.mark.parametrize(
    ("text", "session_id", "says"),
    [(7, None, "not a int"), ("hi", "", "empty"), ("hi", "a\0", "NUL"), ("hi", 3, "type int")],
)
async def test_a_wrong_input_is_refused(text: str, session_id: str, says: str) -> None:
    """A run with a wrong input or session id asks nothing."""
    model = ScriptedModel(["never"])
    with pytest.raises(InvalidValueError, match=says):
        await Agent(model=model).run(text, session_id)
    assert model.requests == []


# --- hooks and events ---


class Diary(Feature):
    """Writes down which hooks ran."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    async def on_run_start(self, ctx: RunContext) -> None:
        self.entries.append("start")

    async def on_run_end(self, ctx: RunContext, result: RunResult) -> None:
        self.entries.append(f"end {result.output}")

    async def on_run_error(self, ctx: RunContext, error: BaseException) -> None:
        self.entries.append(f"error {type(error).__name__}")

    async def before_model_call(self, ctx: RunContext, request: ModelRequest) -> ModelRequest:
        self.entries.append(f"ask {len(request.messages)}")
        return request

    async def after_model_call(
        self, ctx: RunContext, request: ModelRequest, reply: AssistantMessage
    ) -> None:
        self.entries.append(f"told {reply.text}")

    async def before_tool_call(self, ctx: RunContext, call: ToolCall) -> None:
        self.entries.append(f"run {call.name}")

    async def after_tool_call(self, ctx: RunContext, call: ToolCall, outcome: object) -> None:
        self.entries.append(f"ran {call.name}")


async def test_hooks_run_in_order() -> None:
    """A feature's hooks see the start, each model and tool call, and the end."""
    diary = Diary()
    model = ScriptedModel([calls(("add", '{"a": 1, "b": 1}')), "2"])
    await Agent(model=model, tools=[add], features=[diary]).run("?")
    assert diary.entries == [
        "start", "ask 1", "told ", "run add", "ran add", "ask 3", "told 2", "end 2",
    ]  # fmt: skip


async def test_a_failing_run_is_told_to_features() -> None:
    """When a run fails, features hear of the error and not of an end."""
    diary = Diary()
    with pytest.raises(ModelRequestError):
        await Agent(model=ScriptedModel([ModelRequestError("x")]), features=[diary]).run("?")
    assert diary.entries == ["start", "ask 1", "error ModelRequestError"]


@pytest.mark.parametrize(
    "hook", ["on_run_start", "before_model_call", "after_model_call", "before_tool_call",
             "after_tool_call"]
)  # fmt: skip
async def test_a_hook_that_raises_fails_the_run(hook: str) -> None:
    """An exception in a hook is the run's, and nothing half-stored remains."""

    async def fail(*_: object) -> None:
        raise RuntimeError(hook)

    feature = type("Failing", (Feature,), {hook: fail})()
    store = InMemoryStore()
    model = ScriptedModel([calls(("add", '{"a": 1, "b": 1}')), "2"])
    agent = Agent(model=model, tools=[add], features=[feature, ChatMemory(store)])
    with pytest.raises(RuntimeError, match=hook):
        await agent.run("?", "s")
    assert await store.read("s") == []


async def test_a_hook_may_change_the_request_but_not_the_history() -> None:
    """What `before_model_call` returns is sent; the stored history knows nothing of it."""

    class Adds(Feature):
        async def before_model_call(self, ctx: RunContext, request: ModelRequest) -> ModelRequest:
            return ModelRequest(messages=(*request.messages, user("by the way")))

    model = ScriptedModel(["ok"])
    store = InMemoryStore()
    await Agent(model=model, features=[Adds(), ChatMemory(store)]).run("hi", "s")
    assert texts(model.requests[0].messages) == ["hi", "by the way"]
    assert texts(await store.read("s")) == ["hi", "ok"]


async def test_features_run_after_those_they_name() -> None:
    """`runs_after` decides the order of hooks, whatever the order of installation."""
    order: list[str] = []

    class First(Feature):
        async def on_run_start(self, ctx: RunContext) -> None:
            order.append("first")

    class Second(First):
        runs_after = (ChatMemory,)

        async def on_run_start(self, ctx: RunContext) -> None:
            order.append(f"second, after {len(ctx.llm.prompt.messages)} messages")

    store = InMemoryStore()
    await store.append("s", [user("old"), assistant("older")])
    agent = Agent(model=ScriptedModel(["x"])).install(Second()).install(First())
    await agent.install(ChatMemory(store)).run("?", "s")
    assert order == ["first", "second, after 2 messages"]


async def test_events_are_sent_to_handlers() -> None:
    """Handlers, sync or async, get every event in order; one that raises fails the run."""
    seen: list[str] = []
    model = ScriptedModel([calls(("add", '{"a": 1, "b": 1}')), "2", "again"])
    agent = Agent(model=model, tools=[add])

    @agent.on_event
    async def note(event: Event) -> None:
        seen.append(type(event).__name__)

    await agent.run("?")
    node = ["NodeStarted", "NodeCompleted"]
    asking = ["NodeStarted", "ModelCallStarted", "ModelCallCompleted", "NodeCompleted"]
    running = ["NodeStarted", "ToolCallStarted", "ToolCallCompleted", "NodeCompleted"]
    assert seen == ["RunStarted", *node, *asking, *running, *asking, "RunCompleted"]

    @agent.on_event
    def refuse(event: Event) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await agent.run("?")


# --- streaming ---


async def test_a_stream_gives_the_reply_in_pieces() -> None:
    """Text arrives in pieces that join to the reply; the last event has the result; it is stored."""
    store = InMemoryStore()
    agent = Agent(model=ScriptedModel(["one two three"]), features=[ChatMemory(store)])
    stream = agent.run_stream("count", "s")
    events = [event async for event in stream]
    pieces = [event.text for event in events if isinstance(event, TextDelta)]
    assert pieces == ["one ", "two ", "three"]
    assert isinstance(events[-1], RunCompleted)
    assert events[-1].result is stream.result
    assert stream.result is not None
    assert stream.result.output == "one two three"
    assert texts(await store.read("s")) == ["count", "one two three"]


async def test_a_stream_that_is_left_early_stores_nothing() -> None:
    """Leaving the loop and the block cancels the run: nothing of it is stored (C59)."""
    store = InMemoryStore()
    agent = Agent(model=ScriptedModel(["one two three", "ok"]), features=[ChatMemory(store)])
    async with agent.run_stream("count", "s") as stream:
        async for piece in stream.text():
            assert piece == "one "
            break
    assert stream.result is None
    assert await store.read("s") == []
    await agent.run("again", "s")
    assert texts(await store.read("s")) == ["again", "ok"]


async def test_a_stream_raises_what_the_run_raises() -> None:
    """An error reaches whoever reads the stream, once."""
    agent = Agent(model=ScriptedModel([ModelRequestError("down")]))
    with pytest.raises(ModelRequestError, match="down"):
        async for _ in agent.run_stream("hi"):
            pass


async def test_cancelling_the_reader_cancels_the_run() -> None:
    """When the task that reads a stream is cancelled, the run is, too."""
    cancelled = asyncio.Event()
    asked = asyncio.Event()

    async def never(_: ModelRequest) -> str:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    async def read() -> None:
        async for _ in Agent(model=ScriptedModel([never])).run_stream("hi"):
            pass

    task = asyncio.create_task(read())
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()


# --- ask ---


async def test_ask_remembers_by_the_agents_name(tmp_path: Path) -> None:
    """`ask` keeps one conversation an agent name, found again by a new agent of that name."""
    url = f"sqlite:///{tmp_path}/chat.db"
    assert await Agent(model=ScriptedModel(["A"]), name="ada", store=url).ask("Q") == "A"
    model = ScriptedModel(["B"])
    agent = Agent(model=model, name="ada", store=url)
    await agent.ask("again")
    assert texts(model.requests[0].messages) == ["Q", "A", "again"]
    other = ScriptedModel(["C"])
    await Agent(model=other, name="bob", store=url).ask("hi")
    assert texts(other.requests[0].messages) == ["hi"]
    await agent.store.close()


async def test_ask_uses_the_command_lines_file_by_default(tmp_path: Path) -> None:
    """An agent without a store keeps `ask` in the user's data directory."""
    agent = Agent(model=ScriptedModel(["A"]))
    await agent.ask("Q")
    assert repr(agent.store).endswith("tenure/tenure.db')")
    await agent.store.close()


async def test_memory_true_remembers(tmp_path: Path) -> None:
    """`memory=True` installs a chat memory with a window of 50 messages on the agent's store."""
    model = ScriptedModel([str(n) for n in range(30)])
    agent = Agent(model=model, store=f"sqlite:///{tmp_path}/chat.db", memory=True)
    for n in range(30):
        await agent.run(f"Q{n}", "s")
    assert len(model.requests[-1].messages) == 51
    await agent.store.close()


# --- the sync facade ---


def test_sync_has_the_same_names_and_signatures() -> None:
    """Every public method of the async agent is in `tenure.sync`, with signature and first line."""
    for name, method in inspect.getmembers(Agent, inspect.isfunction):
        if name.startswith("_") and name != "__init__":
            continue
        twin: Callable[..., object] = getattr(tenure.sync.Agent, name)
        ours, theirs = inspect.signature(method), inspect.signature(twin)
        assert list(ours.parameters.values()) == list(theirs.parameters.values()), name
        assert (method.__doc__ or "").splitlines()[0] == (twin.__doc__ or "").splitlines()[0]
    public = {n for n in dir(tenure.sync.RunStream) if not n.startswith("_")}
    assert public == {"result", "text"}


def test_sync_runs_streams_and_asks(tmp_path: Path) -> None:
    """The sync agent answers, streams and remembers, from several threads too."""
    store = InMemoryStore()
    model = ScriptedModel(["one", "two words", *["t"] * 8])
    agent = tenure.sync.Agent(model=model, features=[ChatMemory(store)])
    assert str(agent.run("a", "s")) == "one"
    with agent.run_stream("b", "s") as stream:
        assert list(stream.text()) == ["two ", "words"]
    assert stream.result is not None
    threads = [threading.Thread(target=agent.run, args=("x", f"t{n}")) for n in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert agent.ask("q") == "t"
    assert len(asyncio.run(store.conversations())) == 9


def test_a_sync_stream_that_is_left_early_stores_nothing() -> None:
    """Leaving a sync stream cancels the run."""
    store = InMemoryStore()
    agent = tenure.sync.Agent(model=ScriptedModel(["a b c"]), features=[ChatMemory(store)])
    with agent.run_stream("q", "s") as stream:
        for _ in stream.text():
            break
    assert asyncio.run(store.read("s")) == []


def test_sync_errors_keep_their_type() -> None:
    """What a run raises crosses the thread as it is."""
    agent = tenure.sync.Agent(model=ScriptedModel([ModelRequestError("down")]))
    with pytest.raises(ModelRequestError, match="down"):
        agent.run("hi")


async def test_sync_is_refused_in_a_running_loop() -> None:
    """Where an event loop is running, the sync agent says to use the async one."""
    with pytest.raises(UsageError, match=r"use the async class of the same name"):
        tenure.sync.Agent(model=ScriptedModel(["x"])).run("hi")
