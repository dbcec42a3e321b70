"""Tools run from code in LLM sessions, one by one and in parallel (spec C7)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from sessions import Shop, add, all_of, broken, given, picky, requests_of, search, settle, texts

from tenure import (
    Event,
    Feature,
    InvalidValueError,
    RunContext,
    SessionClosedError,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallCompleted,
    ToolCallStarted,
    ToolOutcome,
    UnknownToolError,
    WriteSession,
    user,
)

pytestmark = pytest.mark.anyio


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
    async with asyncio.timeout(30), ctx.llm.write_session() as session:
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
    async with asyncio.timeout(30), ctx.llm.write_session() as session:
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
    async with asyncio.timeout(30), ctx.llm.write_session() as session:

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
    async with asyncio.timeout(30), ctx.llm.write_session() as session:
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
    async with asyncio.timeout(30), ctx.llm.write_session() as session:
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
    async with asyncio.timeout(30), ctx.llm.write_session() as session:
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
    async with asyncio.timeout(30), ctx.llm.write_session() as session:
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

    async with asyncio.timeout(30):
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
    async with asyncio.timeout(30):
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
    async with asyncio.timeout(30):
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
    async with asyncio.timeout(30):
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
    async with asyncio.timeout(30), ctx.llm.write_session() as session:
        outcomes = session.parallel_tool_calls("gate", arguments, concurrency=2)
        await anext(outcomes)
        await outcomes.aclose()
        assert source.is_closed


async def test_source_may_hold_a_timeout_across_its_items() -> None:
    """C7: a source with `asyncio.timeout` around its loop works, as it does in a plain `async for`."""

    async def source() -> AsyncIterator[dict[str, object]]:
        async with asyncio.timeout(30):
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
