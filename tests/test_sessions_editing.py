"""Editing the history in a write session (spec C8, K1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure import (
    Agent,
    AssistantMessage,
    InvalidValueError,
    LLMParams,
    Message,
    NamedTool,
    Prompt,
    PromptError,
    RunContext,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    WriteSession,
    assistant,
    system,
    tool,
    tool_result,
    user,
)
from tenure.testing import ScriptedModel, random_history
from tenure.testing.scripted import Reply

pytestmark = pytest.mark.anyio

many = settings(
    max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
histories = st.integers(0, 2**32).map(random_history)


@tool
def search(query: str = "") -> str:
    """Search."""
    return f"found {query}"


async def in_run(*replies: Reply, prompt: Any = (), **options: Any) -> RunContext:
    """The context of a run whose strategy does nothing."""

    async def strategy(ctx: RunContext, _: str) -> RunContext:
        return ctx

    options = {"model": ScriptedModel(replies), "tools": [search], **options}
    ctx = (await Agent(strategy=strategy, prompt=prompt, **options).run("")).output
    assert isinstance(ctx, RunContext)
    return ctx


async def edited(
    messages: Sequence[Message], edit: Callable[[WriteSession], object]
) -> tuple[Message, ...]:
    """The messages after an edit in a write session that was committed."""
    ctx = await in_run(prompt=messages)
    async with ctx.llm.write_session() as session:
        edit(session)
    return ctx.llm.prompt.messages


def texts(messages: Any) -> list[str]:
    return [message.text for message in messages]


def call(call_id: str | None, name: str = "search") -> ToolCall:
    return ToolCall(id=call_id, name=name)


CHAT = (system("s"), user("1"), assistant("2"), system("t"), user("3"), assistant("4"))


# --- what the methods do (C8) --------------------------------------------------------------------


async def test_append_prompt_of_all_roles() -> None:
    """J2 appendPrompt: system, user, assistant and tool results in order, each result behind its call."""
    turn = assistant(call("a"), call("b"))
    messages = await edited(
        (user("q"),),
        lambda s: s.append_prompt(
            system("s"), turn, user("wait"), tool_result("b", "rb", name="search"), user("u"),
            tool_result("a", "ra", name="search"),
        ),
    )  # fmt: skip
    said = [m.text or "+".join(r.text for r in m.tool_results) or m.role for m in messages]
    assert said == ["q", "s", "assistant", "rb", "ra", "wait", "u"]


@pytest.mark.parametrize(
    ("again", "says"),
    [("x", "no call message with id x"), ("a", "the call with id a has a result already")],
)
async def test_append_prompt_refuses_an_orphan(again: str, says: str) -> None:
    """J2 appendPrompt, A6: a result without a call, or a second one, is an error; nothing is added."""
    ctx = await in_run(prompt=[assistant(call("a")), tool_result("a", "r", name="search")])
    async with ctx.llm.write_session() as session:
        with pytest.raises(PromptError, match=f"Failed to add tool result: {says}"):
            session.append_prompt(user("new"), tool_result(again, "r", name="search"))
        assert len(session.prompt.messages) == 2
        session.append_prompt(tool_result(again, "kept", name="search"), strict=False)
        assert len(session.prompt.messages) == 3


async def test_append_prompt_keeps_id_and_params() -> None:
    """C8 appendPrompt: id and params of the prompt stay."""
    ctx = await in_run(prompt=Prompt(id="p", params=LLMParams(temperature=0.5)))
    async with ctx.llm.write_session() as session:
        session.append_prompt(user("a"), user("b"))
    prompt = ctx.llm.prompt
    assert (prompt.id, prompt.params, texts(prompt.messages)) == (
        "p", LLMParams(temperature=0.5), ["a", "b"],
    )  # fmt: skip


async def test_prompt_is_replaced_whole() -> None:
    """J2 `prompt = prompt.copy(messages=filtered)`: the next request has what was kept, and no more."""
    ctx = await in_run("a", prompt=CHAT)
    async with ctx.llm.write_session() as session:
        kept = [m for m in session.prompt.messages if m.role == "user"]
        session.prompt = session.prompt.copy(messages=kept)
        await session.request_llm()
    assert isinstance(ctx.llm.model, ScriptedModel)
    assert texts(ctx.llm.model.requests[0].messages) == ["1", "3"]
    assert texts(ctx.llm.prompt.messages) == ["1", "3", "a"]


async def test_prompt_seeded_by_id_only() -> None:
    """J2 `Prompt.builder(oldPrompt.id)`: params and messages of the old prompt are not carried."""
    ctx = await in_run("a", prompt=Prompt(id="p", messages=CHAT, params=LLMParams(temperature=1)))
    async with ctx.llm.write_session() as session:
        session.prompt = Prompt(id=session.prompt.id, messages=(user("new"),))
        await session.request_llm()
    assert isinstance(ctx.llm.model, ScriptedModel)
    (request,) = ctx.llm.model.requests
    assert (texts(request.messages), request.params) == (["new"], LLMParams())
    assert ctx.llm.prompt.id == "p"


async def test_rewrite_prompt() -> None:
    """C8 rewritePrompt: the function gets the old prompt, and its result is the new one."""
    new = Prompt(id="n", messages=(user("new"),), params=LLMParams(max_tokens=1))
    ctx = await in_run(prompt=CHAT)
    async with ctx.llm.write_session() as session:
        old, seen = session.prompt, []
        session.rewrite_prompt(lambda prompt: (seen.append(prompt), new)[1])
        assert seen == [old]
    assert ctx.llm.prompt is new


@pytest.mark.parametrize("value", [None, [], "text"])
async def test_prompt_of_another_type_is_refused(value: Any) -> None:
    """C8: what is no Prompt cannot be one, and the prompt stays as it is."""
    ctx = await in_run(prompt=CHAT)
    async with ctx.llm.write_session() as session:
        with pytest.raises(InvalidValueError, match="is no Prompt"):
            session.prompt = value
        with pytest.raises(InvalidValueError, match="is no Prompt"):
            session.rewrite_prompt(lambda _: value)
        assert session.prompt.messages == CHAT


async def test_clear_history() -> None:
    """C8 clearHistory: no message is left, system messages neither; id and params are kept."""
    params = LLMParams(temperature=0.5)
    ctx = await in_run(prompt=Prompt(id="p", messages=CHAT, params=params), system_prompt="own")
    async with ctx.llm.write_session() as session:
        session.clear_history()
    assert ctx.llm.prompt == Prompt(id="p", messages=(), params=params)


LEAVE: list[Any] = [
    (0, True, ["s", "t"]),
    (1, True, ["s", "t", "4"]),
    (3, True, ["s", "t", "3", "4"]),
    (4, True, ["s", "2", "t", "3", "4"]),
    (6, True, ["s", "1", "2", "t", "3", "4"]),
    (99, True, ["s", "1", "2", "t", "3", "4"]),
    (0, False, []),
    (1, False, ["4"]),
    (3, False, ["t", "3", "4"]),
    (99, False, ["s", "1", "2", "t", "3", "4"]),
]


@pytest.mark.parametrize(("n", "systems", "left"), LEAVE)
async def test_leave_last_n_messages(n: int, systems: bool, left: list[str]) -> None:
    """C8 leaveLastNMessages, #706, C23: the last n, and systems in their places if so wished."""
    messages = await edited(
        CHAT, lambda s: s.leave_last_n_messages(n, preserve_system_messages=systems)
    )
    assert texts(messages) == left


DROP: list[Any] = [
    (0, True, ["s", "1", "2", "t", "3", "4"]),
    (1, True, ["s", "1", "2", "t", "3"]),
    (3, True, ["s", "1", "2", "t"]),
    (6, True, ["s", "t"]),
    (99, True, ["s", "t"]),
    (3, False, ["s", "1", "2"]),
    (6, False, []),
    (99, False, []),
]


@pytest.mark.parametrize(("n", "systems", "left"), DROP)
async def test_drop_last_n_messages(n: int, systems: bool, left: list[str]) -> None:
    """C8 dropLastNMessages: the last n go, but systems among them stay if so wished."""
    messages = await edited(
        CHAT, lambda s: s.drop_last_n_messages(n, preserve_system_messages=systems)
    )
    assert texts(messages) == left


@pytest.mark.parametrize("method", ["leave_last_n_messages", "drop_last_n_messages"])
async def test_negative_n_is_refused(method: str) -> None:
    """C8: a negative n is an error, and the history stays as it is."""
    ctx = await in_run(prompt=CHAT)
    async with ctx.llm.write_session() as session:
        with pytest.raises(InvalidValueError, match="-1 messages cannot be"):
            getattr(session, method)(-1)
        assert session.prompt.messages == CHAT


@pytest.mark.parametrize(
    ("seconds", "systems", "left"),
    [
        (-1, True, ["s", "1", "2", "t", "3", "4"]),
        (4, True, ["s", "t", "3", "4"]),
        (4, False, ["3", "4"]),
        (99, True, ["s", "t"]),
        (99, False, []),
    ],
)
async def test_leave_messages_from(seconds: int, systems: bool, left: list[str]) -> None:
    """C8 leaveMessagesFromTimestamp: those of that moment or later, and systems in their places."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    chat = [replace(m, created_at=start + timedelta(seconds=n)) for n, m in enumerate(CHAT)]
    moment = (start + timedelta(seconds=seconds)).astimezone()
    messages = await edited(
        chat, lambda s: s.leave_messages_from(moment, preserve_system_messages=systems)
    )
    assert texts(messages) == left


async def test_moment_without_time_zone_is_refused() -> None:
    """C31: a naive moment is an error."""
    ctx = await in_run(prompt=CHAT)
    async with ctx.llm.write_session() as session:
        with pytest.raises(InvalidValueError, match="zone"):
            session.leave_messages_from(datetime(2026, 1, 1))  # noqa: DTZ001
        assert session.prompt.messages == CHAT


async def test_drop_trailing_tool_calls() -> None:
    """C8 dropTrailingToolCalls: a last turn with calls goes, its text and reasoning too."""
    turn = assistant("let me", call("a"), call("b"))
    assert texts(await edited((user("q"), turn), lambda s: s.drop_trailing_tool_calls())) == ["q"]


async def test_all_trailing_turns_with_calls_are_dropped() -> None:
    """C8 dropTrailingToolCalls (0.7): all turns with calls that the history ends with go."""
    history = (
        user("q"),
        assistant(call("a")),
        user("u"),
        assistant(call("b")),
        assistant(call("c")),
    )
    assert await edited(history, lambda s: s.drop_trailing_tool_calls()) == history[:3]


@pytest.mark.parametrize(
    "history",
    [
        (),
        (user("q"),),
        (user("q"), assistant(call("a")), tool_result("a", "r", name="search")),
        (assistant(call("a")), user("q")),
        (assistant(call("a"), call("b")), tool_result("a", "r", name="search")),
    ],
    ids=["empty", "user", "answered", "not last", "half answered"],
)
async def test_calls_that_are_not_trailing_stay(history: tuple[Message, ...]) -> None:
    """C8 dropTrailingToolCalls: when the last message calls no tool, nothing is dropped."""
    assert await edited(history, lambda s: s.drop_trailing_tool_calls()) == history


@pytest.mark.parametrize("choice", ["auto", "none", "required", NamedTool("search")])
async def test_tool_choice_persists(choice: Any) -> None:
    """C8 setToolChoice, unsetToolChoice: kept in the prompt's params for this and later sessions."""
    ctx = await in_run("a", "b", "c", params=LLMParams(temperature=0.5))
    async with ctx.llm.write_session() as session:
        session.set_tool_choice(choice)
        await session.request_llm()
    async with ctx.llm.write_session() as session:
        await session.request_llm()
        session.unset_tool_choice()
        await session.request_llm()
    assert isinstance(ctx.llm.model, ScriptedModel)
    params = [request.params for request in ctx.llm.model.requests]
    kept = LLMParams(temperature=0.5)
    assert params == [replace(kept, tool_choice=choice)] * 2 + [kept]
    assert ctx.llm.prompt.params == kept


@pytest.mark.parametrize("choice", ["Auto", None, "search", 1])
async def test_unknown_tool_choice_is_refused(choice: Any) -> None:
    """C8 setToolChoice: anything else is an error, and the params stay."""
    ctx = await in_run()
    async with ctx.llm.write_session() as session:
        with pytest.raises(InvalidValueError, match="is no tool choice"):
            session.set_tool_choice(choice)
        assert session.prompt.params == LLMParams()


async def test_change_model_and_params() -> None:
    """C8 changeModel, changeLLMParams: for this and later sessions; params are replaced as a whole."""
    ctx = await in_run(params=LLMParams(temperature=0.5, user="u"))
    other = ScriptedModel(["a", "b"])
    async with ctx.llm.write_session() as session:
        session.change_model(other)
        session.change_params(LLMParams(max_tokens=9))
        await session.request_llm()
    async with ctx.llm.read_session() as session:
        await session.request_llm()
    assert [request.params for request in other.requests] == [LLMParams(max_tokens=9)] * 2
    assert ctx.llm.model is other


# --- K1: pairs -----------------------------------------------------------------------------------


def labelled(history: Sequence[Message]) -> list[Message]:
    """The history with a name of its own on every call and result, so that a copy can be told apart."""
    made: list[Message] = []
    for index, message in enumerate(history):
        parts: list[Any] = []
        for position, part in enumerate(message.parts):
            label = f"{index}/{position}"
            if isinstance(part, ToolCall):
                part = replace(part, args=label)
            elif isinstance(part, ToolResult):
                part = replace(part, parts=(Text(text=label),))
            parts.append(part)
        made.append(replace(message, parts=tuple(parts)))
    return made


def answers(history: Sequence[Message]) -> dict[str, str]:
    """The label of the call that each result answers, by the result's label; the spec's rule, naively."""
    open_calls: list[tuple[int, ToolCall]] = []
    latest: dict[str, int] = {}
    found: dict[str, str] = {}
    for index, message in enumerate(history):
        for part in message.parts:
            if isinstance(part, ToolCall):
                open_calls.append((index, part))
                if part.id is not None:
                    latest[part.id] = index
            elif isinstance(part, ToolResult):
                for turn, made in open_calls:
                    if part.call_id is None:
                        fits = made.id is None and made.name == part.name
                    else:
                        fits = made.id == part.call_id and turn == latest[part.call_id]
                    if fits:
                        open_calls.remove((turn, made))
                        found[part.text] = made.args
                        break
    return found


def labels(messages: Sequence[Message], kind: type) -> list[str]:
    parts = [part for message in messages for part in message.parts if isinstance(part, kind)]
    return [part.args if isinstance(part, ToolCall) else part.text for part in parts]


EDITS: dict[str, Callable[[WriteSession, int, bool], None]] = {
    "leave": lambda s, n, keep: s.leave_last_n_messages(n, preserve_system_messages=keep),
    "drop": lambda s, n, keep: s.drop_last_n_messages(n, preserve_system_messages=keep),
    "from": lambda s, n, keep: s.leave_messages_from(
        s.prompt.messages[n].created_at if n < len(s.prompt.messages) else datetime.max.replace(tzinfo=UTC),
        preserve_system_messages=keep,
    ),
}  # fmt: skip


async def each_edit(
    history: Sequence[Message], check: Callable[[str, tuple[Message, ...], int], object]
) -> None:
    """Check what every edit with every n leaves of a history."""
    ctx = await in_run(prompt=history)
    before = ctx.llm.prompt
    async with ctx.llm.write_session() as session:
        for name, edit in EDITS.items():
            for n in range(len(history) + 2):
                for keep in (True, False):
                    session.prompt = before
                    edit(session, n, keep)
                    check(name, session.prompt.messages, n)


@many
@given(histories)
async def test_cuts_leave_no_orphan(history: list[Message]) -> None:
    """K1, C01, C05: for every n, every result that is left answers the call that it answered before."""
    history = labelled(history)
    before = answers(history)

    def check(name: str, left: tuple[Message, ...], n: int) -> None:
        after = answers(left)
        assert sorted(after) == sorted(labels(left, ToolResult)), (name, n)
        assert after.items() <= before.items()

    await each_edit(history, check)


@many
@given(histories)
async def test_cuts_leave_no_call_unanswered(history: list[Message]) -> None:
    """K1, C01, C05: for every n, no call that was answered is left without its answer."""
    history = labelled(history)
    answered = set(answers(history).values())

    def check(name: str, left: tuple[Message, ...], n: int) -> None:
        calls = Counter(labels(left, ToolCall))
        assert (answered & set(calls)) == set(answers(left).values()), (name, n)

    await each_edit(history, check)


@many
@given(histories)
async def test_cuts_take_away_only_what_they_must(history: list[Message]) -> None:
    """C8: in order, with systems in place; beyond the cut go only turns and results that it tears."""
    history = labelled(history)
    pairs = answers(history)
    index_of = {
        label: index
        for index, message in enumerate(history)
        for label in labels([message], ToolCall) + labels([message], ToolResult)
    }
    torn_by: dict[int, set[int]] = {}
    for result, made in pairs.items():
        torn_by.setdefault(index_of[made], set()).add(index_of[result])
    ctx = await in_run(prompt=history)
    before = ctx.llm.prompt
    async with ctx.llm.write_session() as session:
        for n in range(len(history) + 2):
            session.prompt = before
            session.leave_last_n_messages(n, preserve_system_messages=False)
            kept = set(range(max(len(history) - n, 0), len(history)))
            expected = [
                message
                for index, message in enumerate(history)
                if index in kept
                and (not isinstance(message, AssistantMessage) or torn_by.get(index, set()) <= kept)
                and not isinstance(message, ToolMessage)
            ]
            assert [m for m in session.prompt.messages if m.role != "tool"] == expected


@many
@given(histories)
async def test_requests_after_a_cut_are_valid(history: list[Message]) -> None:
    """K1, K2: for every n the next request has the system prompt first, no orphan and no open call."""
    model = ScriptedModel(["a"] * 500)
    ctx = await in_run(model=model, prompt=history, system_prompt="own", max_iterations=500)
    before = ctx.llm.prompt
    async with ctx.llm.write_session() as session:
        session.tools = [
            replace(search.spec, name=name) for name in ("search", "add", "now")
        ]  # so that nothing becomes text
        for edit in EDITS.values():
            for n in range(len(history) + 2):
                session.prompt = before
                edit(session, n, True)
                session.append_prompt(user("last"))
                await session.request_llm()
    for request in model.requests:
        assert texts(request.messages)[0] == "own"
        assert [m.id for m in request.messages].count(request.messages[0].id) == 1
        open_ids: list[str | None] = []
        for message in request.messages:
            if isinstance(message, ToolMessage):
                for result in message.tool_results:
                    open_ids.remove(result.call_id)
            else:
                assert open_ids == []
                open_ids = [made.id for made in message.tool_calls]
        assert open_ids == []


@pytest.mark.parametrize(
    ("n", "left"),
    [
        (0, []),
        (1, ["a"]),
        (2, ["a"]),
        (3, ["a"]),
        (4, ["calls", "r1", "r2", "a"]),
        (5, ["q", "calls", "r1", "r2", "a"]),
    ],
)
async def test_leave_keeps_parallel_calls_together(n: int, left: list[str]) -> None:
    """K1, C01, C03: a turn of parallel calls and both its results stay together or go together."""
    history = (
        user("q"), assistant("calls", call("1"), call("2")),
        tool_result("1", "r1", name="search"), tool_result("2", "r2", name="search"), assistant("a"),
    )  # fmt: skip
    messages = await edited(history, lambda s: s.leave_last_n_messages(n))
    assert [m.text or m.tool_results[0].text for m in messages] == left


@pytest.mark.parametrize(
    ("n", "left"),
    [(0, 5), (1, 4), (2, 1), (3, 1), (4, 1), (5, 0)],
)
async def test_drop_takes_half_answered_turns(n: int, left: int) -> None:
    """K1: dropping one of two results takes the turn and the other result, too."""
    history = (
        user("q"), assistant("calls", call("1"), call("2")),
        tool_result("1", "r1", name="search"), tool_result("2", "r2", name="search"), assistant("a"),
    )  # fmt: skip
    assert await edited(history, lambda s: s.drop_last_n_messages(n)) == history[:left]


async def test_trailing_calls_stay_open() -> None:
    """K1: the open calls of the last turn are being run, and stay when messages before them are cut."""
    turn = assistant(call("1"))
    history = (user("a"), assistant("b"), turn)
    messages = await edited(history, lambda s: s.leave_last_n_messages(1))
    assert messages == (turn,)


async def test_without_keep_pairs_the_cut_is_exact() -> None:
    """C8 REC `keep_pairs=False`: exactly the last n, as Koog does; the view still hides the orphan."""
    ctx = await in_run(
        "a",
        prompt=[user("q"), assistant(call("1")), tool_result("1", "r", name="search"), user("u")],
    )
    async with ctx.llm.write_session() as session:
        session.leave_last_n_messages(2, keep_pairs=False)
        assert [m.role for m in session.prompt.messages] == ["tool", "user"]
        await session.request_llm()
    assert isinstance(ctx.llm.model, ScriptedModel)
    assert texts(ctx.llm.model.requests[0].messages) == ["u"]


async def test_words_of_a_mixed_tool_message_stay() -> None:
    """K1: a tool message that loses its results keeps its words, its id and its metadata."""
    result = ToolResult(call_id="1", name="search", parts=(Text(text="r"),))
    mixed = ToolMessage(parts=(result, Text(text="note")), metadata={"k": 1})
    history = (assistant(call("1")), mixed, user("u"))
    left = await edited(history, lambda s: s.leave_last_n_messages(2))
    assert left == (replace(mixed, parts=(Text(text="note"),)), history[2])
    assert left[0].id == mixed.id
