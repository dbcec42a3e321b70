"""ChatMemory on a store: the log is only appended to, and pre-processors change only what is new."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from tenure import (
    Agent,
    ChatMemory,
    HistoryNotStoredError,
    InMemoryStore,
    Message,
    PreprocessorError,
    RunContext,
    Store,
    StoreOpenError,
    Text,
    ToolCall,
    assistant,
    tool,
    tool_result,
    user,
)
from tenure.features.preprocessing import WindowSizePreprocessor
from tenure.stores.sqlite import SQLiteStore
from tenure.testing import ScriptedModel

pytestmark = pytest.mark.anyio


class Spy(InMemoryStore):
    """A store that records how much was asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int | None] = []

    async def read(
        self, session_id: str, *, last: int | None = None, revision: int | None = None
    ) -> list[Message]:
        self.reads.append(last)
        return await super().read(session_id, last=last, revision=revision)


def texts(messages: Iterable[Message]) -> list[str]:
    return [message.text for message in messages]


async def converse(memory: ChatMemory, turns: int = 3, first: int = 1) -> ScriptedModel:
    numbers = range(first, first + turns)
    model = ScriptedModel([f"Reply {n}" for n in numbers])
    agent = Agent(model=model, system_prompt="S", features=[memory])
    for n in numbers:
        await agent.run(f"Q{n}", "s")
    return model


ALL = ["Q1", "Reply 1", "Q2", "Reply 2", "Q3", "Reply 3"]


async def test_a_window_only_hides() -> None:
    """On a store a window shows the model the last messages, and the log keeps them all."""
    store = InMemoryStore()
    model = await converse(ChatMemory(store).window_size(2))
    assert texts(model.requests[2].messages) == ["S", "Q2", "Reply 2", "Q3"]
    assert texts(await store.read("s")) == ALL


async def test_a_wider_window_shows_more_again() -> None:
    """What a window has hidden is there for a later agent with a wider one."""
    store = InMemoryStore()
    await converse(ChatMemory(store).window_size(0))
    model = await converse(ChatMemory(store).window_size(100), 1, first=4)
    assert texts(model.requests[0].messages) == ["S", *ALL, "Q4"]


async def test_a_leading_window_is_read_with_a_limit() -> None:
    """A window that comes first reads only so many messages; behind a filter, all are read."""
    store = Spy()
    await converse(ChatMemory(store).window_size(2), 1)
    await converse(ChatMemory(store).filter_messages(lambda m: True).window_size(2), 1, first=2)
    assert store.reads == [2, None]


async def test_a_limited_read_pairs_results_as_a_whole_one_does() -> None:
    """A result without id that belongs to a call before the window is dropped, with a limit too."""
    store = InMemoryStore()
    await store.append(
        "s",
        [
            user("q"),
            assistant(ToolCall(name="look")),
            assistant(ToolCall(name="look")),
            tool_result(None, "first", name="look"),
            tool_result(None, "second", name="look"),
        ],
    )
    model = ScriptedModel(["ok"])

    @tool
    def look() -> str:
        """Look."""
        return ""

    memory = ChatMemory(store).window_size(3)
    await Agent(model=model, tools=[look], features=[memory]).run("next", "s")
    results = [r.text for m in model.requests[0].messages for r in m.tool_results]
    assert results == ["second"]


async def test_only_new_messages_are_written() -> None:
    """Each run writes its own messages; rows that are there are not written again (C15)."""

    class Counting(InMemoryStore):
        written: list[list[str]] = []  # noqa: RUF012

        async def append(self, session_id: str, messages: list[Message], **rest: object) -> int:
            self.written.append(texts(messages))
            return await super().append(session_id, messages, **rest)

    store = Counting()
    await converse(ChatMemory(store), 2)
    assert store.written == [["Q1", "Reply 1"], ["Q2", "Reply 2"]]


async def test_a_filter_drops_what_is_new_and_leaves_what_is_stored() -> None:
    """A filter keeps new messages from being written, and removes none that is in the log."""
    store = InMemoryStore()
    await converse(ChatMemory(store), 1)
    memory = ChatMemory(store).filter_messages(lambda m: m.role == "user")
    model = await converse(memory, 2, first=2)
    assert texts(await store.read("s")) == ["Q1", "Reply 1", "Q2", "Q3"]
    assert texts(model.requests[1].messages) == ["S", "Q1", "Q2", "Q3"]


async def test_a_window_before_a_filter_does_not_lose_what_it_hides() -> None:
    """A new message that the window hides from the filter is written as it was."""
    store = InMemoryStore()
    memory = ChatMemory(store).window_size(1).filter_messages(lambda m: m.role == "user")
    await converse(memory, 1)
    assert texts(await store.read("s")) == ["Q1"]


EMAIL = re.compile(r"\S+@\S+")


def rebuilt(messages: list[Message]) -> list[Message]:
    """Koog's example as a newcomer writes it: new messages, so new ids, in the same order."""
    make = {"user": user, "assistant": assistant}
    return [make[m.role](EMAIL.sub("[REDACTED]", m.text)) for m in messages]


def replaced(messages: list[Message]) -> list[Message]:
    """The same with ids, roles and other parts kept."""
    return [
        replace(
            m,
            parts=tuple(
                replace(p, text=EMAIL.sub("[REDACTED]", p.text)) if isinstance(p, Text) else p
                for p in m.parts
            ),
        )
        for m in messages
    ]


@pytest.mark.parametrize("redact", [rebuilt, replaced])
async def test_redaction_writes_the_changed_message_only(
    redact: Callable[[list[Message]], list[Message]],
) -> None:
    """A changed message is written once, changed; the original is not, and nothing doubles."""
    store = InMemoryStore()
    model = ScriptedModel(["Mail a@b.c now", "ok", "fine"])
    agent = Agent(model=model, features=[ChatMemory(store).add_preprocessor(redact)])
    result = await agent.run("I am x@y.z", "s")
    await agent.run("and?", "s")
    await agent.run("bye", "s")
    found = await store.read("s")
    assert texts(found) == ["I am [REDACTED]", "Mail [REDACTED] now", "and?", "ok", "bye", "fine"]
    assert [m.id for m in found[:2]] == [m.id for m in result.new_messages]
    assert "@" not in " ".join(texts(model.requests[1].messages))
    assert texts(model.requests[0].messages) == ["I am x@y.z"]  # the run itself sees the original


async def test_a_summary_of_old_messages_is_not_written() -> None:
    """A pre-processor that puts one new message in place of old ones changes the view only."""

    def shortened(messages: list[Message]) -> list[Message]:
        return messages if len(messages) < 4 else [user("(earlier talk)"), *messages[-2:]]

    store = InMemoryStore()
    model = await converse(ChatMemory(store).add_preprocessor(shortened))
    assert texts(model.requests[2].messages) == ["S", "(earlier talk)", "Q2", "Reply 2", "Q3"]
    assert texts(await store.read("s")) == ALL


async def test_an_ambiguous_pre_processor_is_refused() -> None:
    """New ids and another length: which message stands for which can't be told, so nothing is lost
    silently; the error has the answer and names the cure.
    """

    def merged(messages: list[Message]) -> list[Message]:
        return [user(" ".join(texts(messages)))]

    store = InMemoryStore()
    agent = Agent(
        model=ScriptedModel(["the answer"]),
        features=[ChatMemory(store).add_preprocessor(merged, apply_on=("store",))],
    )
    with pytest.raises(HistoryNotStoredError, match=r"merged .* keep the ids") as info:
        await agent.run("q", "s")
    assert isinstance(info.value.__cause__, PreprocessorError)
    assert info.value.result.output == "the answer"
    assert await store.read("s") == []


def copied(messages: Iterable[Message]) -> list[Message]:
    """Messages of the same content with new ids."""
    make = {"user": user, "assistant": assistant}
    return [make[m.role](m.text) for m in messages]


@pytest.mark.parametrize("is_copied", [False, True])
@pytest.mark.parametrize("moved", [
    lambda ms: ms[::-1],
    lambda ms: [*ms[1:], *ms[:1]],
    lambda ms: sorted(ms, key=lambda m: m.text),
    lambda ms: [m for m in ms for _ in range(2)],
    lambda ms: ms[-2:],
])  # fmt: skip
async def test_reordering_and_doubling_change_only_the_view(
    moved: Callable[[list[Message]], list[Message]], is_copied: bool
) -> None:
    """What was said is written in the order in which it was said, once, however a pre-processor
    arranges it, with ids kept or new ones, and though much of it is equal.
    """

    def arranged(messages: list[Message]) -> list[Message]:
        return copied(moved(messages)) if is_copied else moved(messages)

    store = InMemoryStore()
    model = ScriptedModel(["ok", "yes", "ok"])
    agent = Agent(model=model, features=[ChatMemory(store).add_preprocessor(arranged)])
    for question in ("again", "why?", "again"):
        await agent.run(question, "s")
    assert texts(await store.read("s")) == ["again", "ok", "why?", "yes", "again", "ok"]


@pytest.mark.parametrize("first", ["filter", "window"])
async def test_what_one_pre_processor_drops_the_next_need_not_have(first: str) -> None:
    """A pre-processor that adds a note is not taken to task for what an earlier one has left out."""
    store = InMemoryStore()
    memory = ChatMemory(store)
    if first == "filter":
        memory.filter_messages(lambda m: m.role == "user")
    else:
        memory.window_size(1)
    memory.add_preprocessor(lambda messages: [user("(a note)"), *messages])
    await converse(memory, 2)
    expected = ["Q1", "Q2"] if first == "filter" else ["Q1", "Reply 1", "Q2", "Reply 2"]
    assert texts(await store.read("s")) == expected


@pytest.mark.parametrize("moments", [("load", "store"), ("load",)])
async def test_retention_removes_what_a_later_window_hides(
    moments: tuple[Literal["load", "store"], ...],
) -> None:
    """With `retention="delete"` a window behind a filter removes all that it hides, like a first one:
    also what was there before it, and nothing that the filter alone has left out.
    """
    store = InMemoryStore()
    await store.append("s", [user(f"{kind}{n}") for n in range(6) for kind in ("old", "note")])
    memory = ChatMemory(store, retention="delete").filter_messages(lambda m: m.text[:4] != "note")
    memory.add_preprocessor(WindowSizePreprocessor(2), apply_on=moments)
    await converse(memory, 1)
    kept = [text for text in texts(await store.read("s")) if not text.startswith("note")]
    assert kept == (["Q1", "Reply 1"] if "store" in moments else ["old4", "old5", "Q1", "Reply 1"])
    assert sum(m.text.startswith("note") for m in await store.read("s")) == 6


async def test_the_initial_messages_are_written_with_the_first_run_only() -> None:
    """Few-shot messages are stored once, even when the window hides every message."""
    store = InMemoryStore()
    model = ScriptedModel(["1", "2"])
    memory = ChatMemory(store).window_size(0)
    agent = Agent(model=model, prompt=[user("example"), assistant("shown")], features=[memory])
    await agent.run("a", "s")
    await agent.run("b", "s")
    assert texts(model.requests[0].messages) == ["example", "shown", "a"]
    assert texts(model.requests[1].messages) == ["b"]
    assert texts(await store.read("s")) == ["example", "shown", "a", "1", "b", "2"]


@tool
def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing in {place}"


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_turns_are_stored_whole(stream: bool, tmp_path: Path) -> None:
    """Calls and results are stored with the turn, streamed or not, and shown again (C18, C19)."""
    store = SQLiteStore(tmp_path / "chat.db")
    calls = [ToolCall(id=None, name="look", args='{"place": "attic"}') for _ in range(2)]
    model = ScriptedModel([assistant("Let me see.", *calls), "Nothing.", "Still nothing."])
    agent = Agent(model=model, tools=[look], features=[ChatMemory(store).window_size(20)])
    if stream:
        async for _ in agent.run_stream("Where is it?", "s"):
            pass
    else:
        await agent.run("Where is it?", "s")
    await agent.run("Sure?", "s")
    found = await store.read("s")
    assert [m.role for m in found] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    ids = [call.id for call in found[1].tool_calls]
    assert len(set(ids)) == 2
    assert None not in ids
    assert [r.call_id for r in found[2].tool_results] == ids
    assert [r.text for r in found[2].tool_results] == ["nothing in attic"] * 2
    assert list(model.requests[2].messages) == found[:5]
    await store.close()


async def test_open_calls_of_a_crash_do_not_poison_the_conversation() -> None:
    """A stored call without a result is shown with an error result, so that the model can go on (C04)."""
    store = InMemoryStore()
    await store.append("s", [user("q"), assistant(ToolCall(id="c1", name="look", args="{}"))])
    model = ScriptedModel(["ok"])
    await Agent(model=model, tools=[look], features=[ChatMemory(store)]).run("hello?", "s")
    shown = model.requests[0].messages
    assert [m.role for m in shown] == ["user", "assistant", "tool", "user"]
    assert shown[2].tool_results[0].is_error


async def test_the_run_id_is_stored(tmp_path: Path) -> None:
    """Every message says which run it came from."""
    store = SQLiteStore(tmp_path / "chat.db")
    agent = Agent(model=ScriptedModel(["a"]), features=[ChatMemory(store)])
    result = await agent.run("q", "s")
    await store.close()
    connection = sqlite3.connect(store.path)
    found = connection.execute("SELECT DISTINCT run_id FROM entries").fetchall()
    connection.close()
    assert found == [(result.run_id,)]


async def test_the_agents_store_is_used_when_none_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ChatMemory()` uses the store of its agent, or of TENURE_STORE; without either, RAM."""
    store = InMemoryStore()
    agent = Agent(model=ScriptedModel(["a"]), store=store, features=[ChatMemory()])
    await agent.run("q", "s")
    assert texts(await store.read("s")) == ["q", "a"]
    monkeypatch.setenv("TENURE_STORE", f"sqlite:///{tmp_path}/env.db")
    agent = Agent(model=ScriptedModel(["a"]), features=[ChatMemory()])
    await agent.run("q", "s")
    assert texts(await agent.store.read("s")) == ["q", "a"]
    assert (tmp_path / "env.db").exists()
    await agent.store.close()
    monkeypatch.delenv("TENURE_STORE")
    memory = ChatMemory()
    await Agent(model=ScriptedModel(["a"]), features=[memory]).run("q", "s")
    assert isinstance(memory.provider, InMemoryStore)


async def test_a_store_that_fails_at_the_end_keeps_the_answer(tmp_path: Path) -> None:
    """When the database fails after the answer, the error has the answer, and says what to do."""

    class FailsAtTheEnd(SQLiteStore):
        async def append(self, session_id: str, messages: list[Message], **rest: object) -> int:
            raise StoreOpenError("The database is read-only; make it writable.")

    store: Store = FailsAtTheEnd(tmp_path / "chat.db")
    agent = Agent(model=ScriptedModel(["the answer"]), features=[ChatMemory(store)])
    with pytest.raises(HistoryNotStoredError, match="read-only; make it writable") as info:
        await agent.run("q", "s")
    assert info.value.result.output == "the answer"
    await store.close()


async def test_code_in_a_session_adds_to_the_history() -> None:
    """Whatever a strategy appends in a session is part of the run, and is stored in its place."""

    async def strategy(ctx: RunContext, text: str) -> str:
        async with ctx.llm.write_session() as session:
            session.append_prompt(user(text), user("(it is raining)"))
            reply = await session.request_llm()
        async with ctx.llm.read_session() as session:
            assert session.prompt.messages[-1] == reply
        return "done"

    store = InMemoryStore()
    agent = Agent(model=ScriptedModel(["wet"]), strategy=strategy, features=[ChatMemory(store)])
    result = await agent.run("weather?", "s")
    assert result.output == "done"
    assert texts(await store.read("s")) == ["weather?", "(it is raining)", "wet"]


async def test_pre_processors_are_asked_once_a_run(store: Store) -> None:
    """When storing, a pre-processor sees the conversation once, and never an empty list beside it."""
    seen: list[list[str]] = []

    def watch(messages: list[Message]) -> list[Message]:
        seen.append([message.text for message in messages])
        return messages

    memory = ChatMemory(store).add_preprocessor(watch, apply_on=["store"])
    await Agent(model=ScriptedModel(["hello"]), features=[memory]).run("hi", "s")
    assert seen == [["hi", "hello"]]
