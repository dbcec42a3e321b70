"""Streams of LLM sessions: what is recorded of them, and how they end (spec C6, K7, K8)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest
from sessions import KINDS, all_of, given, names, requests_of, roles, settle, texts

from tenure import (
    AssistantMessage,
    Event,
    ModelCallCompleted,
    ModelCallStarted,
    ModelProfile,
    ModelRequest,
    ModelRequestError,
    PartEnd,
    ReadSession,
    Reasoning,
    SessionClosedError,
    StreamEnd,
    StreamFrame,
    Text,
    TextDelta,
    ToolCall,
    assistant,
    tool_result,
)
from tenure.testing import ScriptedModel

pytestmark = pytest.mark.anyio


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
    async with asyncio.timeout(30):
        async with getattr(ctx.llm, kind)() as session:
            task = asyncio.create_task(all_of(session.request_llm_streaming()))
            await settle()
            assert model.log == ["asked"]
        log = list(model.log)
        model.permits.release()
        await asyncio.gather(task, return_exceptions=True)
    assert log == ["asked", "closed"]


async def test_all_streams_end_when_the_end_of_the_block_is_cancelled() -> None:
    """C59: cancelling a block while it ends one abandoned stream leaves none of the others open."""
    model = SlowStream(delta("a"), StreamEnd(message=assistant("a")))
    ctx = await given(model=model)
    ending = asyncio.Event()

    async def block() -> None:
        async with ctx.llm.write_session() as session:
            for _ in range(3):
                model.permits.release()
                await anext(session.request_llm_streaming())
            ending.set()

    task = asyncio.create_task(block())
    await ending.wait()
    task.cancel()
    await asyncio.wait({task})
    await settle()
    assert (task.cancelled(), model.log.count("closed")) == (True, 3)


async def test_closing_a_stream_twice_leaves_its_end_alone() -> None:
    """A second `aclose`, and the end of the block, wait for what the first one has begun."""
    model = SlowStream(delta("a"), StreamEnd(message=assistant("a")))
    ctx = await given(model=model)
    model.permits.release()
    async with ctx.llm.write_session() as session:
        stream = session.request_llm_streaming()
        await anext(stream)
        closing = asyncio.create_task(stream.aclose())
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # the model is taking its time to be closed
        await stream.aclose()
        await closing
    assert model.log == ["asked", "closed"]


async def test_reply_that_comes_with_the_cancellation_of_its_reader_is_not_recorded() -> None:
    """C59: a reader cancelled in the moment of the last frame has not got it, and no reply is kept."""
    ctx = await given("late", "again")

    async with ctx.llm.write_session() as session:
        stream = session.request_llm_streaming()
        reader = asyncio.create_task(all_of(stream))

        def cancel_with(event: Event) -> None:
            if isinstance(event, ModelCallCompleted):  # the last frame is about to be handed over
                asyncio.get_running_loop().call_soon(reader.cancel)

        ctx._handlers.append(cancel_with)  # type: ignore[attr-defined]
        await asyncio.wait({reader})
        assert reader.cancelled()
        ctx._handlers.remove(cancel_with)  # type: ignore[attr-defined]
        assert texts(session.prompt.messages) == ["q"]
        await session.request_llm()
    assert texts(ctx.llm.prompt.messages) == ["q", "again"]


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
