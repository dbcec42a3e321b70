"""LLM sessions: commits, requests, closed sessions and the lock."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from datetime import UTC, datetime

import pytest

from tenure.errors import (
    EmptyReplyError,
    ModelRequestError,
    NestedSessionError,
    PromptError,
    SessionClosedError,
)
from tenure.llm import LLMContext
from tenure.messages import AssistantMessage, Reasoning, SystemMessage, Text, ToolCall
from tenure.models import Model, ModelRequest, StreamFrame
from tenure.prompt import LLMParams, Prompt
from tenure.saying import assistant, tool_result, user
from tenure.sessions import ReadSession, WriteSession
from tenure.testing import ScriptedModel
from tenure.testing.scripted import Reply
from tenure.tools import Tool, ToolOutcome, ToolRegistry, tool
from tenure.views import UNANSWERED

pytestmark = pytest.mark.anyio


@tool
def search(query: str = "") -> str:
    """Search."""
    return f"found {query}"


TOOLS = (search.spec,)


class Outside:
    """Reaches models and tools with nothing in between."""

    tools = ToolRegistry([search])

    async def ask(
        self, model: Model, request: ModelRequest, *, aside: bool = False
    ) -> AssistantMessage:
        return await model.respond(request)

    async def stream(self, model: Model, request: ModelRequest) -> AsyncGenerator[StreamFrame]:
        async for frame in model.stream(request):
            yield frame

    async def call_tool(self, tool: Tool, args: Mapping[str, object]) -> ToolOutcome:
        return await tool.execute(args)


def context(*replies: Reply, system_prompt: SystemMessage | None = None) -> LLMContext:
    return LLMContext(
        prompt=Prompt(id="p", messages=(user("q"),), params=LLMParams(temperature=0.5)),
        model=ScriptedModel(replies),
        outside=Outside(),
        system_prompt=system_prompt,
    )


def state(llm: LLMContext) -> tuple[object, ...]:
    return llm.prompt, llm.tools, llm.model


async def settle() -> None:
    """Let everything run that can run."""
    for _ in range(20):
        await asyncio.sleep(0)


# --- commits -------------------------------------------------------------------------------------


async def test_write_session_commits_at_its_end() -> None:
    """The context takes over what a block changed when it ends, and not before."""
    llm = context()
    before = llm.prompt
    async with llm.write_session() as session:
        session.append_prompt(user("more"))
        assert [m.text for m in session.prompt.messages] == ["q", "more"]
        assert llm.prompt is before
    assert [m.text for m in llm.prompt.messages] == ["q", "more"]
    assert (llm.prompt.id, llm.prompt.params) == ("p", LLMParams(temperature=0.5))


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, KeyboardInterrupt])
async def test_failed_write_session_commits_nothing(error: type[BaseException]) -> None:
    """K3: after an exception in a block prompt, tools and model are the same objects as before."""
    llm = context("reply")
    before = state(llm)
    with pytest.raises(error):
        async with llm.write_session() as session:
            session.append_prompt(user("more"))
            await session.request_llm()
            raise error
    assert all(now is then for now, then in zip(state(llm), before, strict=True))
    async with llm.write_session():
        pass  # and the lock is free


async def test_cancelled_write_session_commits_nothing() -> None:
    """A block that is cancelled while it asks leaves the context as it was, and the lock free."""

    async def never(_: ModelRequest) -> str:
        await asyncio.Event().wait()
        return ""

    llm = context(never)
    before = state(llm)

    async def work() -> None:
        async with llm.write_session() as session:
            session.append_prompt(user("more"))
            await session.request_llm()

    task = asyncio.create_task(work())
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert state(llm) == before
    async with asyncio.timeout(30), llm.write_session():
        pass


async def test_exception_caught_inside_rolls_nothing_back() -> None:
    """What a block handles itself does not undo what it did."""
    llm = context()
    async with llm.write_session() as session:
        session.append_prompt(user("kept"))
        with pytest.raises(PromptError):
            session.append_prompt(user("lost"), tool_result("none", "r", name="t"))
    assert [m.text for m in llm.prompt.messages] == ["q", "kept"]


async def test_block_value_reaches_the_caller() -> None:
    """A function can return out of a block; what it did is committed."""
    llm = context("reply")

    async def work() -> str:
        async with llm.write_session() as session:
            return (await session.request_llm()).text

    assert await work() == "reply"
    assert [m.text for m in llm.prompt.messages] == ["q", "reply"]


async def test_reset_replaces_the_prompt_only() -> None:
    """A reset keeps tools and model."""
    llm = context()
    tools, model = llm.tools, llm.model
    llm.reset(Prompt(id="other"))
    assert state(llm) == (Prompt(id="other"), tools, model)


# --- requests ------------------------------------------------------------------------------------


async def test_write_session_appends_the_whole_reply() -> None:
    """Reasoning, text and all parallel calls are appended, and returned, as one turn."""
    parts = (
        Reasoning(text="hm"),
        Text(text="wait"),
        ToolCall(id="1", name="search"),
        ToolCall(id="2", name="search"),
    )
    llm = context(AssistantMessage(parts=parts))
    async with llm.write_session() as session:
        reply = await session.request_llm()
        assert session.prompt.messages[-1] is reply
    assert llm.prompt.messages[-1].parts == parts


async def test_read_session_records_nothing() -> None:
    """A reply in a read session is returned and forgotten."""
    llm = context("reply")
    before = state(llm)
    async with llm.read_session() as session:
        assert (await session.request_llm()).text == "reply"
        assert session.prompt is before[0]
    assert state(llm) == before
    assert not hasattr(session, "append_prompt")


async def test_calls_without_id_get_one_before_they_are_recorded() -> None:
    """The id under which a tool runs is the one in the prompt."""
    llm = context(assistant(ToolCall(name="search"), ToolCall(name="search")))
    async with llm.write_session() as session:
        reply = await session.request_llm()
        one, two = reply.tool_calls
        assert one.id
        assert two.id
        assert one.id != two.id
        session.append_prompt(tool_result(two, "second"), tool_result(one, "first"))
    assert llm.prompt.messages[1] is reply


@pytest.mark.parametrize(
    "reply", [AssistantMessage(parts=()), AssistantMessage(parts=(Text(text=""),))]
)
async def test_empty_reply_is_an_error(reply: AssistantMessage) -> None:
    """A model that says nothing raises, and nothing is appended."""
    llm = context(reply)
    async with llm.write_session() as session:
        with pytest.raises(EmptyReplyError, match="answered with nothing"):
            await session.request_llm()
    assert [m.text for m in llm.prompt.messages] == ["q"]


async def test_failed_request_appends_nothing() -> None:
    """After an error of the model the session goes on as it was."""
    llm = context(ModelRequestError("HTTP 500", status_code=500), "reply")
    async with llm.write_session() as session:
        with pytest.raises(ModelRequestError):
            await session.request_llm()
        assert [m.text for m in session.prompt.messages] == ["q"]
        await session.request_llm()
    assert [m.text for m in llm.prompt.messages] == ["q", "reply"]


async def test_request_sends_a_valid_view() -> None:
    """The model sees the system prompt first and no unanswered call; the prompt stays as it is."""
    own = SystemMessage(parts=(Text(text="be kind"),))
    llm = context("reply", system_prompt=own)
    turn = assistant(ToolCall(id="c", name="search"))
    async with llm.write_session() as session:
        session.append_prompt(turn, user("and?"))
        await session.request_llm()
    model = llm.model
    assert isinstance(model, ScriptedModel)
    (request,) = model.requests
    assert [m.role for m in request.messages] == ["system", "user", "assistant", "tool", "user"]
    assert request.messages[3].tool_results[0].text == UNANSWERED
    assert (request.tools, request.params) == (TOOLS, LLMParams(temperature=0.5))
    assert [m.role for m in llm.prompt.messages] == ["user", "assistant", "user", "assistant"]


# --- closed sessions -----------------------------------------------------------------------------

ARGUMENTS: dict[str, tuple[object, ...]] = {
    "append_prompt": (user("late"),),
    "call_tool": ("search",),
    "call_tool_raw": ("search",),
    "change_model": ("local",),
    "change_params": (LLMParams(),),
    "drop_last_n_messages": (1,),
    "leave_last_n_messages": (1,),
    "leave_messages_from": (datetime.now(UTC),),
    "parallel_tool_calls": ("search", []),
    "parallel_tool_calls_raw": ("search", []),
    "request_llm_force_one_tool": ("search",),
    "request_llm_multiple_choices": (2,),
    "request_llm_structured": (int,),
    "request_llm_structured_one_shot": (int,),
    "rewrite_prompt": (lambda prompt: prompt,),
    "set_tool_choice": ("none",),
}
MEMBERS = [
    (kind, name)
    for kind in (ReadSession, WriteSession)
    for name, _ in inspect.getmembers(kind)
    if not name.startswith("_")
]


@pytest.mark.parametrize(("kind", "name"), MEMBERS)
async def test_closed_session_says_so(kind: type[ReadSession], name: str) -> None:
    """K6: every public method and property of a closed session raises with the documented text."""
    llm = context("reply")
    open_it = llm.write_session if kind is WriteSession else llm.read_session
    async with open_it() as session:
        pass
    with pytest.raises(SessionClosedError) as caught:
        value = getattr(session, name)
        value = value(*ARGUMENTS.get(name, ()))
        if inspect.isawaitable(value):
            await value
    assert str(caught.value) == "Cannot use session after it was closed"
    assert isinstance(caught.value, RuntimeError)
    assert [m.text for m in llm.prompt.messages] == ["q"]


async def test_reply_that_comes_too_late_is_refused() -> None:
    """A request that outlives its block raises, and changes nothing."""
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def later(_: ModelRequest) -> str:
        return await answer

    llm = context(later)
    async with llm.write_session() as session:
        task = asyncio.create_task(session.request_llm())
        await settle()
    answer.set_result("late")
    with pytest.raises(SessionClosedError):
        await task
    assert [m.text for m in llm.prompt.messages] == ["q"]


# --- the lock ------------------------------------------------------------------------------------


class Visitor:
    """A task that opens a session and stays inside until it is let go."""

    def __init__(self, opened: Callable[[], AbstractAsyncContextManager[ReadSession]]) -> None:
        self.is_inside = False
        self._go = asyncio.Event()
        self._opened = opened
        self.task = asyncio.create_task(self._visit())

    async def _visit(self) -> None:
        async with self._opened():
            self.is_inside = True
            try:
                await self._go.wait()
            finally:
                self.is_inside = False

    def let_go(self) -> None:
        self._go.set()

    async def leave(self) -> None:
        self.let_go()
        await self.task


async def inside(*visitors: Visitor) -> str:
    """Who is inside, after everybody has done what they can: one digit each."""
    await settle()
    return "".join("01"[v.is_inside] for v in visitors)


async def free(llm: LLMContext) -> None:
    """Both kinds of session can be opened at once."""
    async with asyncio.timeout(30):
        async with llm.write_session():
            pass
        async with llm.read_session():
            pass


async def test_many_readers_one_writer() -> None:
    """Readers are inside together, a writer alone."""
    llm = context()
    readers = [Visitor(llm.read_session) for _ in range(3)]
    assert await inside(*readers) == "111"
    writers = [Visitor(llm.write_session) for _ in range(2)]
    assert await inside(*writers) == "00"
    await asyncio.gather(*(r.leave() for r in readers))
    assert await inside(*writers) == "10"
    await writers[0].leave()
    assert await inside(*writers) == "01"
    await writers[1].leave()
    await free(llm)


async def test_new_readers_do_not_starve_a_writer() -> None:
    """A reader that comes after a waiting writer waits behind it."""
    llm = context()
    first = Visitor(llm.read_session)
    await settle()
    writer = Visitor(llm.write_session)
    await settle()
    late = Visitor(llm.read_session)
    assert await inside(first, writer, late) == "100"
    await first.leave()
    assert await inside(writer, late) == "10"
    await writer.leave()
    assert await inside(late) == "1"
    await late.leave()
    await free(llm)


async def test_cancelled_waiting_writer_lets_readers_in() -> None:
    """When the writer that they wait behind gives up, readers go in beside the others."""
    llm = context()
    first = Visitor(llm.read_session)
    await settle()
    writer = Visitor(llm.write_session)
    await settle()
    late = [Visitor(llm.read_session), Visitor(llm.read_session)]
    await settle()
    writer.task.cancel()
    assert await inside(first, *late) == "111"
    await asyncio.gather(*(v.leave() for v in (first, *late)))
    await free(llm)


async def test_cancelled_holders_release() -> None:
    """Readers and writers that are cancelled inside leave."""
    llm = context()
    for opened in (llm.read_session, llm.write_session):
        visitor = Visitor(opened)
        await settle()
        visitor.task.cancel()
        await asyncio.gather(visitor.task, return_exceptions=True)
        await free(llm)


@pytest.mark.parametrize("cancel_first", [True, False])
@pytest.mark.parametrize("behind", ["read", "write"])
@pytest.mark.parametrize("waiting", ["read", "write"])
async def test_cancelled_at_the_hand_over(waiting: str, behind: str, cancel_first: bool) -> None:
    """Cancelling a waiter in the very tick in which its turn comes passes the turn on."""
    llm = context()
    opened = {"read": llm.read_session, "write": llm.write_session}
    holder = Visitor(llm.write_session)
    await settle()
    waiter = Visitor(opened[waiting])
    await settle()
    next_one = Visitor(opened[behind])
    await settle()
    if cancel_first:
        waiter.task.cancel()
        holder.let_go()
    else:
        holder.let_go()
        waiter.task.cancel()
    assert await inside(holder, waiter, next_one) == "001"
    await next_one.leave()
    assert waiter.task.cancelled()
    await free(llm)


@pytest.mark.parametrize("ticks", range(8))
async def test_cancelled_at_any_tick_of_the_hand_over(ticks: int) -> None:
    """However long after the hand-over a waiter is cancelled, the lock is free in the end."""
    llm = context()
    holder = Visitor(llm.write_session)
    await settle()
    waiters = [Visitor(llm.write_session), Visitor(llm.read_session), Visitor(llm.write_session)]
    await settle()
    holder.let_go()
    for _ in range(ticks):
        await asyncio.sleep(0)
    for waiter in waiters[:2]:
        waiter.task.cancel()
    assert await inside(*waiters) == "001"
    await waiters[2].leave()
    await free(llm)


async def test_all_waiters_cancelled() -> None:
    """When everybody who waits gives up at once, the next one gets in."""
    llm = context()
    holder = Visitor(llm.write_session)
    await settle()
    waiters = [Visitor(opened) for opened in (llm.read_session, llm.write_session) * 3]
    await settle()
    for waiter in waiters:
        waiter.task.cancel()
    await asyncio.gather(*(w.task for w in waiters), return_exceptions=True)
    assert await inside(holder) == "1"
    await holder.leave()
    await free(llm)


@pytest.mark.parametrize("outer", ["read_session", "write_session"])
@pytest.mark.parametrize("inner", ["read_session", "write_session"])
async def test_nested_session_raises_at_once(outer: str, inner: str) -> None:
    """K4: a session inside another of the same task would wait for itself, so it raises."""
    llm = context()
    async with asyncio.timeout(30), getattr(llm, outer)():
        with pytest.raises(NestedSessionError, match=r"Cannot open the .* inside the .*"):
            async with getattr(llm, inner)():
                pass
    await free(llm)


async def test_no_append_is_lost() -> None:
    """C08: what 50 tasks append, each in its session, is all there, in the order of their sessions."""
    llm = context()
    order: list[str] = []

    async def work(number: int) -> None:
        async with llm.write_session() as session:
            before = len(session.prompt.messages)
            await asyncio.sleep(0)
            session.append_prompt(user(str(number)))
            await asyncio.sleep(0)
            assert len(session.prompt.messages) == before + 1
            order.append(str(number))

    work_of: Callable[[int], Awaitable[None]] = work
    await asyncio.gather(*(work_of(number) for number in range(50)))
    assert [m.text for m in llm.prompt.messages] == ["q", *order]
    assert sorted(order, key=int) == [str(n) for n in range(50)]


async def test_readers_see_one_state() -> None:
    """A read session's prompt does not change under it; the next one sees the commit."""
    llm = context()
    async with llm.read_session() as session:
        # A task that is not of this block: one that inherits it would be refused.
        writer = asyncio.create_task(_append(llm), context=Context())
        await settle()
        assert [m.text for m in session.prompt.messages] == ["q"]
    await writer
    async with llm.read_session() as session:
        assert [m.text for m in session.prompt.messages] == ["q", "more"]


async def _append(llm: LLMContext) -> None:
    async with llm.write_session() as session:
        session.append_prompt(user("more"))
