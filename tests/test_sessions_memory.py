"""What ChatMemory stores of a history that a run has rewritten or streamed (K7, K8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_sessions_editing import call, search, texts

from tenure import (
    Agent,
    ChatMemory,
    Chunked,
    InMemoryStore,
    Message,
    ModelRequest,
    ModelRequestError,
    RunContext,
    Store,
    StreamEnd,
    SystemMessage,
    Text,
    WriteSession,
    assistant,
    open_store,
    system,
    user,
)
from tenure.testing import ManualClock, ScriptedModel
from tenure.testing.scripted import Reply

pytestmark = pytest.mark.anyio


# --- ChatMemory: a rewritten history is what the next run sees -----------------------------------


@pytest.fixture(params=["in memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    opened: Store = (
        InMemoryStore()
        if request.param == "in memory"
        else open_store(f"sqlite:///{tmp_path / 'chat.db'}")
    )
    yield opened
    await opened.close()


Edit = Callable[[WriteSession], object]


async def talk(
    store: Store, text: str, edit: Edit | None = None, *, window: int | None = None, **options: Any
) -> list[str]:
    """One run: edit the history, ask, answer `re <text>`. What the model was sent."""
    model = ScriptedModel([f"re {text}"])

    async def strategy(ctx: RunContext, said: str) -> str:
        async with ctx.llm.write_session() as session:
            if edit is not None:
                edit(session)
            session.append_prompt(user(said))
            return (await session.request_llm()).text

    memory = ChatMemory(store)
    if window is not None:
        memory.window_size(window)
    agent = Agent(model=model, strategy=strategy, features=[memory], **options)
    assert (await agent.run(text, "s")).output == f"re {text}"
    return texts(model.requests[0].messages)


def clear(session: WriteSession) -> None:
    session.clear_history()


def leave_two(session: WriteSession) -> None:
    session.leave_last_n_messages(2)


def drop_one(session: WriteSession) -> None:
    session.drop_last_n_messages(1)


def summarise(session: WriteSession) -> None:
    session.prompt = session.prompt.copy(messages=[*session.prompt.messages[:1], assistant("sum")])


def redact(session: WriteSession) -> None:
    first = replace(session.prompt.messages[0], parts=(Text(text="[redacted]"),))
    session.prompt = session.prompt.copy(messages=[first, *session.prompt.messages[1:]])


REWRITES: list[Any] = [
    pytest.param(clear, [], id="clear_history"),
    pytest.param(leave_two, ["b", "re b"], id="leave_last_n_messages"),
    pytest.param(drop_one, ["a", "re a", "b"], id="drop_last_n_messages"),
    pytest.param(summarise, ["a", "sum"], id="prompt="),
    pytest.param(redact, ["[redacted]", "re a", "b", "re b"], id="a changed message"),
]
OLD = ["a", "re a", "b", "re b"]


@pytest.mark.parametrize(("edit", "kept"), REWRITES)
async def test_rewritten_history_is_what_the_next_run_sees(
    edit: Edit, kept: list[str], store: Store
) -> None:
    """D6: a history rewritten in a run is what is stored, and what the next run sends."""
    await talk(store, "a")
    await talk(store, "b")
    assert await talk(store, "c", edit) == [*kept, "c"]
    assert texts(await store.read("s")) == [*kept, "c", "re c"]
    assert await talk(store, "d") == [*kept, "c", "re c", "d"]
    assert texts(await store.read("s")) == [*kept, "c", "re c", "d", "re d"]


@pytest.mark.parametrize(("edit", "kept"), REWRITES)
async def test_old_branch_is_still_readable(edit: Edit, kept: list[str], store: Store) -> None:
    """C64, C65: what a run rewrote is on a new branch; the old one reads as it was, by its number."""
    await talk(store, "a")
    await talk(store, "b")
    await talk(store, "c", edit)
    await talk(store, "d")
    first, second = await store.branches("s")
    assert (first.branch, first.run_id, second.parent, second.run_id) == (1, None, 1, None)
    assert texts(e.message for e in await store.entries("s", branch=first.branch)) == OLD
    new = [*kept, "c", "re c", "d", "re d"]
    assert texts(e.message for e in await store.entries("s", branch=second.branch)) == new
    found = await store.conversation("s")
    assert found is not None
    assert (found.branch, found.message_count) == (second.branch, len(new))


async def test_history_that_is_only_added_to_stays_one_branch(store: Store) -> None:
    """D6: runs that edit nothing, or only append, make no branch."""
    await talk(store, "a", lambda s: s.append_prompt(user("x"), assistant("y")))
    await talk(store, "b", lambda s: s.leave_last_n_messages(99))
    assert len(await store.branches("s")) == 1
    assert texts(await store.read("s")) == ["x", "y", "a", "re a", "b", "re b"]


async def test_rewritten_twice_in_one_run(store: Store) -> None:
    """D6: only what the run ends with counts; rewriting twice makes one branch."""
    await talk(store, "a")

    def twice(session: WriteSession) -> None:
        session.clear_history()
        session.append_prompt(user("x"))
        session.clear_history()
        session.append_prompt(user("y"))

    assert await talk(store, "b", twice) == ["y", "b"]
    assert texts(await store.read("s")) == ["y", "b", "re b"]
    assert len(await store.branches("s")) == 2


async def test_rewritten_and_put_back_is_not_rewritten(store: Store) -> None:
    """D6: a run that restores the prompt it changed stores only what is new."""
    await talk(store, "a")

    def there_and_back(session: WriteSession) -> None:
        before = session.prompt
        session.clear_history()
        session.prompt = before

    await talk(store, "b", there_and_back)
    assert texts(await store.read("s")) == OLD
    assert len(await store.branches("s")) == 1


async def test_cleared_without_a_word(store: Store) -> None:
    """D3: a run that only clears leaves an empty history, which is no first run: no initial messages."""
    initial = [user("example"), assistant("of an answer")]
    await talk(store, "a", prompt=initial)

    async def only_clear(ctx: RunContext, _: str) -> str:
        async with ctx.llm.write_session() as session:
            session.clear_history()
        return "cleared"

    await Agent(
        model=ScriptedModel([]), strategy=only_clear, prompt=initial, features=[ChatMemory(store)]
    ).run("x", "s")
    assert await store.read("s") == []
    assert await talk(store, "b", prompt=initial) == ["b"]
    old = await store.entries("s", branch=1)
    assert texts(e.message for e in old) == ["example", "of an answer", "a", "re a"]


async def test_rewriting_in_the_first_run(store: Store) -> None:
    """D3: what a conversation's first run makes of the initial messages is what is stored of them."""
    await talk(store, "a", clear, prompt=[user("example")])
    assert texts(await store.read("s")) == ["a", "re a"]


async def test_system_prompt_outlives_clearing(store: Store) -> None:
    """K2: after clear_history the system prompt is still sent first, in this run and the next one."""
    await talk(store, "a", system_prompt="own")
    assert await talk(store, "b", clear, system_prompt="own") == ["own", "b"]
    assert await talk(store, "c", system_prompt="new") == ["new", "b", "re b", "c"]
    assert texts(await store.read("s")) == ["b", "re b", "c", "re c"]


async def test_rewriting_behind_a_window(store: Store) -> None:
    """D6: what a window hid in front of the last message that was left alone stays in the history."""
    for text in "abc":
        await talk(store, text)
    sent = await talk(store, "d", drop_one, window=3)
    assert sent == ["re b", "c", "d"]
    assert texts(await store.read("s")) == ["a", "re a", "b", "re b", "c", "d", "re d"]


async def test_clearing_behind_a_window(store: Store) -> None:
    """C8, D6: clear_history clears the whole history, what a window hides included."""
    for text in "abc":
        await talk(store, text)
    assert await talk(store, "d", clear, window=2) == ["d"]
    assert texts(await store.read("s")) == ["d", "re d"]
    assert await talk(store, "e") == ["d", "re d", "e"]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("by", ["cut", "summary", "memory"])
async def test_what_others_append_while_a_run_rewrites_is_kept(
    by: str, window: int | None, store: Store
) -> None:
    """C13, C65: a message that another writer has appended meanwhile stays in the history, at its end."""
    await store.append("s", [user(f"old{n}") for n in range(6)])

    async def answer(_: ModelRequest) -> str:
        await store.append("s", [user("from outside"), assistant("heard")])
        return "answer"

    async def strategy(ctx: RunContext, said: str) -> str:
        async with ctx.llm.write_session() as session:
            if by == "cut":
                session.drop_last_n_messages(1)
            elif by == "summary":
                await session.replace_history_with_tldr()
            session.append_prompt(user(said))
            return (await session.request_llm()).text

    memory = ChatMemory(store)
    if window is not None:
        memory.window_size(window)
    if by == "memory":
        memory.compress_when(messages=3, strategy=Chunked(9))
    model = ScriptedModel([answer] if by == "cut" else ["summary", answer])
    await Agent(model=model, strategy=strategy, features=[memory]).run("new", "s")
    history = texts(await store.read("s"))
    assert history[-4:] == ["new", "answer", "from outside", "heard"]
    assert len(history) == len(set(history))
    assert texts([e.message for e in await store.entries("s", branch=1)])[-2:] == [
        "from outside",
        "heard",
    ]


async def test_what_others_append_in_the_moment_of_a_rewriting_is_kept(store: Store) -> None:
    """C13: an append between the look at the history and the new branch is in the history, too."""
    start_branch = store.start_branch
    rounds: list[int] = []

    async def overtaken(*args: Any, **options: Any) -> Any:
        rounds.append(1)
        if len(rounds) < 3:
            await store.append("s", [user(f"outside {len(rounds)}")])
        return await start_branch(*args, **options)

    await talk(store, "a")
    store.start_branch = overtaken  # type: ignore[method-assign]
    await talk(store, "b", lambda session: session.clear_history())
    assert texts(await store.read("s")) == ["b", "re b", "outside 1", "outside 2"]


async def test_failed_run_rewrites_nothing(store: Store) -> None:
    """K7: a run that rewrote its history and then failed leaves history and branches as they were."""
    await talk(store, "a")
    before = await store.entries("s")

    async def strategy(ctx: RunContext, said: str) -> str:
        async with ctx.llm.write_session() as session:
            session.clear_history()
        async with ctx.llm.write_session() as session:
            session.append_prompt(user(said))
            return (await session.request_llm()).text

    model = ScriptedModel([ModelRequestError("HTTP 500")])
    agent = Agent(model=model, strategy=strategy, features=[ChatMemory(store)])
    with pytest.raises(ModelRequestError):
        await agent.run("b", "s")
    assert await store.entries("s") == before
    assert len(await store.branches("s")) == 1
    assert await talk(store, "c") == ["a", "re a", "c"]


async def test_rewriting_a_tool_turn(store: Store) -> None:
    """K1: a cut through a stored tool turn stores neither the call nor its result."""
    model = ScriptedModel([assistant("w", call("1")), "done"])
    await Agent(model=model, tools=[search], features=[ChatMemory(store)]).run("a", "s")
    assert await talk(store, "b", leave_two) == ["done", "b"]
    stored = await store.read("s")
    assert texts(stored) == ["done", "b", "re b"]
    assert all(not m.tool_calls and not m.tool_results for m in stored)


class Plain:
    """A provider that overwrites."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Message]] = {}

    def load(self, session_id: str) -> list[Message]:
        return self.kept.get(session_id, [])

    def store(self, session_id: str, messages: list[Message]) -> None:
        self.kept[session_id] = messages


@pytest.mark.parametrize(("edit", "kept"), REWRITES)
async def test_rewritten_history_on_a_plain_provider(edit: Edit, kept: list[str]) -> None:
    """D1, D6: a provider is given the rewritten list as the whole conversation."""
    provider: Any = Plain()
    await talk(provider, "a")
    await talk(provider, "b")
    assert await talk(provider, "c", edit) == [*kept, "c"]
    assert texts(provider.kept["s"]) == [*kept, "c", "re c"]


# --- ChatMemory: streams (K7, K8) ----------------------------------------------------------------


async def streaming(ctx: RunContext, text: str) -> str:
    """The tool loop, by streams."""
    turn: Message = user(text, clock=ctx.clock)
    while True:
        async with ctx.llm.write_session() as session:
            session.append_prompt(turn)
            frames = [frame async for frame in session.request_llm_streaming()]
        assert isinstance(frames[-1], StreamEnd)
        reply = frames[-1].message
        if not reply.tool_calls:
            return reply.text
        turn = await ctx.execute_tools(reply.tool_calls)


def script(clock: ManualClock) -> list[Reply]:
    return [
        assistant("let me", call("1"), call(None), clock=clock),
        assistant("done it", clock=clock),
        assistant("again", clock=clock),
    ]


async def plain_run(agent: Agent, text: str) -> object:
    return (await agent.run(text, "s")).output


async def streamed_run(agent: Agent, text: str) -> object:
    stream = agent.run_stream(text, "s")
    async for _ in stream:
        pass
    assert stream.result is not None
    return stream.result.output


@pytest.mark.parametrize("run", [plain_run, streamed_run])
async def test_streaming_strategy_is_stored_like_a_plain_run(
    run: Callable[[Agent, str], Awaitable[object]], store: Store
) -> None:
    """K8, C18, C19: two runs of a strategy that streams store exactly what the default one stores."""
    stored: list[list[Message]] = []
    outputs: list[list[object]] = []
    for number, options in enumerate(({}, {"strategy": streaming})):
        clock = ManualClock()
        kept = store.for_tenant(str(number))
        agent = Agent(
            model=ScriptedModel(script(clock)), tools=[search], clock=clock,
            features=[ChatMemory(kept)], **options,
        )  # fmt: skip
        outputs.append([await run(agent, "one"), await run(agent, "two")])
        stored.append(await kept.read("s"))
    assert outputs == [["done it", "again"]] * 2
    assert [m.role for m in stored[0]] == [
        "user", "assistant", "tool", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert stored[0] == stored[1]
    assert [m.id for m in stored[0]] == [m.id for m in stored[1]]
    assert all(len({m.id for m in messages}) == len(messages) for messages in stored)


async def test_stream_abandoned_in_a_run_stores_nothing_of_it(store: Store) -> None:
    """K8: a run that breaks off its stream stores the question, and nothing of the reply."""

    async def strategy(ctx: RunContext, text: str) -> str:
        async with ctx.llm.write_session() as session:
            session.append_prompt(user(text))
            async for _ in session.request_llm_streaming():
                break
        return "enough"

    agent = Agent(
        model=ScriptedModel(["one two three"]), strategy=strategy, features=[ChatMemory(store)]
    )
    await agent.run("q", "s")
    assert texts(await store.read("s")) == ["q"]


@pytest.mark.parametrize("strategy", [None, streaming])
async def test_abandoned_run_stream_stores_nothing(strategy: Any, store: Store) -> None:
    """K8, C59: leaving a streamed run early, after a tool turn too, leaves the history as it was."""
    await talk(store, "a")
    before = await store.entries("s")
    for stop_at in range(1, 9):
        agent = Agent(
            model=ScriptedModel(script(ManualClock())), tools=[search], strategy=strategy,
            features=[ChatMemory(store)],
        )  # fmt: skip
        async with agent.run_stream("b", "s") as stream:
            count = 0
            async for _ in stream:
                count += 1
                if count == stop_at:
                    break
        assert count == stop_at
        assert stream.result is None
        assert await store.entries("s") == before
    assert await talk(store, "c") == ["a", "re a", "c"]


async def test_stream_that_fails_in_a_run_stores_nothing(store: Store) -> None:
    """K7: when a stream fails after a tool turn the run fails, and the history is as it was."""
    await talk(store, "a")
    before = await store.entries("s")
    model = ScriptedModel([assistant(call("1")), ModelRequestError("cut off")])
    agent = Agent(model=model, tools=[search], strategy=streaming, features=[ChatMemory(store)])
    with pytest.raises(ModelRequestError, match="cut off"):
        await agent.run("b", "s")
    assert await store.entries("s") == before


async def test_cancelled_streaming_run_stores_nothing(store: Store) -> None:
    """K7: cancelling a run while it waits for a streamed reply leaves the history as it was."""
    await talk(store, "a")
    before = await store.entries("s")
    asked = asyncio.Event()

    async def never(_: object) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    agent = Agent(model=ScriptedModel([never]), strategy=streaming, features=[ChatMemory(store)])
    task = asyncio.create_task(agent.run("b", "s"))
    await asked.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert await store.entries("s") == before


async def test_system_messages_of_the_history_are_stored_where_they_were(store: Store) -> None:
    """C23: a cut that preserves system messages stores them in their places for the next run."""

    def with_system(session: WriteSession) -> None:
        session.append_prompt(system("rule"))

    await talk(store, "a", with_system)
    await talk(store, "b")
    assert await talk(store, "c", lambda s: s.leave_last_n_messages(1)) == ["rule", "re b", "c"]
    assert texts(await store.read("s")) == ["rule", "re b", "c", "re c"]
    assert isinstance((await store.read("s"))[0], SystemMessage)
