"""Runs on one conversation wait for each other: in a process, in several, and when one of them dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tenure import (
    Agent,
    Appended,
    ChatMemory,
    ConversationBusyError,
    HistoryNotStoredError,
    InMemoryStore,
    InvalidValueError,
    LeaseLostError,
    Message,
    ModelRequest,
    ModelRequestError,
    Store,
    StoreError,
    ToolCall,
    UsageError,
    assistant,
    tool,
    user,
)
from tenure.stores.base import Lease
from tenure.stores.sqlite import SQLiteStore
from tenure.testing import ManualClock, ScriptedModel

pytestmark = pytest.mark.anyio


async def texts(store: Store, session_id: str = "s") -> list[str]:
    return [message.text for message in await store.read(session_id)]


class Slow:
    """A model that answers only when it is told to, and counts who is inside."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, request: ModelRequest) -> str:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.asked.set()
        await self.go_on.wait()
        self.inside -= 1
        return f"answer to {request.messages[-1].text}"


# --- in one process ---


async def test_two_runs_on_one_conversation_do_not_overlap(store: Store) -> None:
    """Two runs at once on one conversation both end up in history, one after the other (C08, C09)."""
    slow = Slow()
    model = ScriptedModel([slow, slow])
    agent = Agent(model=model, features=[ChatMemory(store)])
    runs = [asyncio.create_task(agent.run(f"Q{n}", "s")) for n in range(2)]
    await slow.asked.wait()
    slow.go_on.set()
    await asyncio.gather(*runs)
    assert slow.most == 1
    assert await texts(store) == ["Q0", "answer to Q0", "Q1", "answer to Q1"]
    assert [m.text for m in model.requests[1].messages] == ["Q0", "answer to Q0", "Q1"]


def places_in_line(store: Store) -> set[str]:
    """Who has a place in line: whoever has asked for a lease, and got the answer to wait."""
    found: set[str] = set()
    request_lease = store.request_lease

    async def asked(session_id: str, *, holder: str, wait: bool) -> Lease | None:
        lease = await request_lease(session_id, holder=holder, wait=wait)
        found.add(holder)
        return lease

    store.request_lease = asked  # type: ignore[method-assign]
    return found


async def test_runs_are_served_in_the_order_in_which_they_came(store: Store) -> None:
    """Waiting runs get their turn first come, first served."""
    model = ScriptedModel([lambda r: f"A{r.messages[-1].text}"] * 8)
    agent = Agent(model=model, features=[ChatMemory(store)])
    await store.request_lease("s", holder="outside", wait=True)
    in_line = places_in_line(store)
    runs: list[asyncio.Task[object]] = []
    for n in range(8):
        runs.append(asyncio.create_task(agent.run(str(n), "s")))
        while len(in_line) <= n:
            await asyncio.sleep(0.001)
    await store.release_lease("s", holder="outside")
    await asyncio.gather(*runs)
    assert await texts(store) == [text for n in range(8) for text in (str(n), f"A{n}")]


async def test_different_conversations_do_not_wait_for_each_other(store: Store) -> None:
    """Runs on different conversations, and runs without one, go on at the same time."""
    slow = Slow()
    agent = Agent(model=ScriptedModel([slow] * 3), features=[ChatMemory(store)])
    runs = [asyncio.create_task(agent.run("Q", name)) for name in ("a", "b", None)]
    while slow.inside < 3:
        await asyncio.sleep(0.001)
    slow.go_on.set()
    await asyncio.gather(*runs)


async def test_a_busy_conversation_can_be_refused(store: Store) -> None:
    """With `on_busy="reject"` a run on a busy conversation raises at once, and asks nothing."""
    slow = Slow()
    model = ScriptedModel([slow, "later"])
    agent = Agent(model=model, features=[ChatMemory(store)], on_busy="reject")
    first = asyncio.create_task(agent.run("Q0", "s"))
    await slow.asked.wait()
    with pytest.raises(ConversationBusyError, match="Another run is using the conversation 's'"):
        await agent.run("Q1", "s")
    assert len(model.requests) == 1
    slow.go_on.set()
    await first
    assert str(await agent.run("Q2", "s")) == "later"


async def test_the_lease_is_given_back_however_a_run_ends(store: Store) -> None:
    """After a failed, a cancelled and an abandoned run the next one starts at once."""
    slow = Slow()
    replies = [ModelRequestError("down"), slow, "some words to stream", "ok"]
    agent = Agent(model=ScriptedModel(replies), features=[ChatMemory(store)], on_busy="reject")
    with pytest.raises(ModelRequestError):
        await agent.run("fails", "s")
    cancelled = asyncio.create_task(agent.run("is cancelled", "s"))
    await slow.asked.wait()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    async with agent.run_stream("is left", "s") as stream:
        async for _ in stream.text():
            break
    assert str(await agent.run("works", "s")) == "ok"
    assert await texts(store) == ["works", "ok"]


async def test_a_cancelled_waiter_gives_up_its_place(store: Store) -> None:
    """A run that is cancelled while it waits holds up nobody behind it."""
    agent = Agent(model=ScriptedModel(["ok"]), features=[ChatMemory(store)])
    await store.request_lease("s", holder="outside", wait=True)
    in_line = places_in_line(store)
    waiting = asyncio.create_task(agent.run("never", "s"))
    while not in_line:
        await asyncio.sleep(0.001)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await store.release_lease("s", holder="outside")
    assert str(await asyncio.wait_for(agent.run("now", "s"), 30)) == "ok"


async def test_a_run_inside_a_run_is_refused(store: Store) -> None:
    """A tool that runs the agent on the same conversation is told so, instead of waiting for ever."""
    said: list[str] = []

    @tool
    async def ask_again() -> str:
        """Ask the agent again."""
        try:
            return str(await agent.run("inner", "s"))
        except UsageError as error:
            said.append(str(error))
            raise

    call = assistant(ToolCall(id="c", name="ask_again"))
    agent = Agent(
        model=ScriptedModel([call, "done"]), tools=[ask_again], features=[ChatMemory(store)]
    )
    assert str(await asyncio.wait_for(agent.run("outer", "s"), 30)) == "done"
    assert "would wait for itself" in said[0]


async def test_a_task_that_outlives_its_run_may_use_the_conversation(store: Store) -> None:
    """What a run has started may run on the same conversation after the run has ended."""
    later: list[asyncio.Task[object]] = []
    ended = asyncio.Event()

    async def after() -> object:
        await ended.wait()
        return await agent.run("later", "s")

    @tool
    async def remind() -> str:
        """Come back later."""
        later.append(asyncio.create_task(after()))
        return "will do"

    replies = [assistant(ToolCall(id="c", name="remind")), "ok", "here I am"]
    agent = Agent(model=ScriptedModel(replies), tools=[remind], features=[ChatMemory(store)])
    await agent.run("remind me", "s")
    ended.set()
    assert str(await asyncio.wait_for(later[0], 30)) == "here I am"


async def test_runs_with_a_plain_provider_wait_for_each_other() -> None:
    """A provider that overwrites loses nothing when two runs come at once: they do not overlap."""

    class Overwriting:
        kept: list[Message] = []  # noqa: RUF012

        async def load(self, session_id: str) -> list[Message]:
            await asyncio.sleep(0.01)
            return self.kept

        async def store(self, session_id: str, messages: list[Message]) -> None:
            await asyncio.sleep(0.01)
            self.kept = messages

    provider = Overwriting()
    agent = Agent(model=ScriptedModel(["a"] * 5), features=[ChatMemory(provider)])
    await asyncio.gather(*(agent.run(f"Q{n}", "s") for n in range(5)))
    assert sorted(m.text for m in provider.kept) == ["Q0", "Q1", "Q2", "Q3", "Q4", *"aaaaa"]


async def test_memories_of_one_provider_wait_for_each_other() -> None:
    """Two agents whose memories have the same provider lose nothing of each other's (C08)."""

    class Provider:
        kept: tuple[Message, ...] = ()

        def load(self, session_id: str) -> list[Message]:
            return list(self.kept)

        def store(self, session_id: str, messages: list[Message]) -> None:
            self.kept = tuple(messages)

    async def answer(_: ModelRequest) -> str:
        await asyncio.sleep(0)
        return "a"

    provider = Provider()
    agents = [Agent(model=ScriptedModel([answer]), features=[ChatMemory(provider)]) for _ in "123"]
    await asyncio.gather(*(agent.run(f"Q{n}", "s") for n, agent in enumerate(agents)))
    assert sorted(m.text for m in provider.kept) == ["Q0", "Q1", "Q2", "a", "a", "a"]


# --- leases that run out ---


async def test_a_blocking_tool_does_not_lose_the_conversation(store: Store) -> None:
    """A tool that blocks the event loop for longer than the lease keeps it: a thread renews it."""
    store.lease_ttl_s = 2.0  # leaves a slow machine more than a second for each renewal
    stolen: list[object] = []

    @tool
    async def block() -> str:
        """Block the loop, while somebody else tries to take the conversation."""

        def steal() -> None:
            deadline = time.monotonic() + 2.5
            while time.monotonic() < deadline:
                lease = asyncio.run(store.request_lease("s", holder="thief", wait=False))
                if lease is not None:
                    stolen.append(lease)
                time.sleep(0.02)

        thief = threading.Thread(target=steal)
        thief.start()
        thief.join()  # blocks the loop on purpose
        return "done"

    replies = [assistant(ToolCall(id="c", name="block")), "ok"]
    agent = Agent(model=ScriptedModel(replies), tools=[block], features=[ChatMemory(store)])
    assert str(await agent.run("go", "s")) == "ok"
    assert stolen == []


@pytest.mark.parametrize(
    "make", [lambda clock, path: InMemoryStore(clock=clock),
             lambda clock, path: SQLiteStore(path / "chat.db", clock=clock)],
    ids=["memory", "sqlite"],
)  # fmt: skip
async def test_a_run_that_was_replaced_cannot_write(
    make: Callable[[ManualClock, Path], Store], tmp_path: Path
) -> None:
    """When a lease has run out and another run has taken over, the first one's write is refused,
    and its answer is in the error.
    """
    clock = ManualClock()
    store = make(clock, tmp_path)

    async def overtaken(_: ModelRequest) -> str:
        clock.advance(10_000)  # it was asleep for hours
        assert await store.request_lease("s", holder="other", wait=True) is not None
        return "too late"

    agent = Agent(model=ScriptedModel([overtaken]), features=[ChatMemory(store)])
    with pytest.raises(HistoryNotStoredError, match="lost to another run") as info:
        await agent.run("Q", "s")
    assert isinstance(info.value.__cause__, LeaseLostError)
    assert info.value.result.output == "too late"
    assert await store.read("s") == []
    await store.close()


RUNNER = """
    import asyncio, os, sys
    from tenure import Agent, ChatMemory
    from tenure.stores.sqlite import SQLiteStore
    from tenure.testing import ScriptedModel

    async def main(path, name, runs, pause, ttl):
        store = SQLiteStore(path)
        store.lease_ttl_s = float(ttl)

        async def answer(request):
            print("asked", flush=True)
            await asyncio.sleep(float(pause))
            return f"to {request.messages[-1].text}"

        agent = Agent(model=ScriptedModel([answer] * int(runs)), features=[ChatMemory(store)])
        for n in range(int(runs)):
            await agent.run(f"{name}.{n}", "s")
        await store.close()

    asyncio.run(main(*sys.argv[1:]))
"""


def start(
    path: Path, name: object, runs: int, pause: float, *, ttl: float
) -> subprocess.Popen[str]:
    """Start a process whose agent runs several times on one conversation."""
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(RUNNER),
            str(path),
            str(name),
            str(runs),
            str(pause),
            str(ttl),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_eight_processes_share_one_conversation(tmp_path: Path) -> None:
    """Eight processes that each run an agent ten times on one conversation leave 160 messages, in
    pairs, none interleaved, and each process's in its order (C11).
    """
    path = tmp_path / "chat.db"
    children = [start(path, name, 10, 0.001, ttl=60) for name in range(8)]
    for child in children:
        assert child.stdout is not None
        child.stdout.read()
        child.stdout.close()
        assert child.wait(120) == 0

    async def found() -> list[str]:
        store = SQLiteStore(path)
        result = await texts(store)
        await store.close()
        return result

    said = asyncio.run(found())
    assert len(said) == 160
    assert said[1::2] == [f"to {question}" for question in said[::2]]
    for name in range(8):
        mine = [question for question in said[::2] if question.startswith(f"{name}.")]
        assert mine == [f"{name}.{n}" for n in range(10)]


async def test_a_killed_holder_is_replaced(tmp_path: Path) -> None:
    """When the process that has a conversation is killed, the next run gets it once the lease is out."""
    path = tmp_path / "chat.db"
    child = start(path, "dead", 1, 60, ttl=3)
    assert child.stdout is not None
    assert child.stdout.readline() == "asked\n"
    store = SQLiteStore(path)
    assert await store.request_lease("s", holder="me", wait=False) is None
    os.kill(child.pid, signal.SIGKILL)
    child.wait(30)
    child.stdout.close()
    agent = Agent(model=ScriptedModel(["alive"]), features=[ChatMemory(store)])
    assert str(await asyncio.wait_for(agent.run("hello?", "s"), 60)) == "alive"
    assert await texts(store) == ["hello?", "alive"]
    await store.close()


# --- what is kept of a failed run, and of what a window hides ---


@tool
def look() -> str:
    """Look around."""
    return "a door"


async def test_a_failed_run_can_be_kept(store: Store) -> None:
    """With `on_failure="keep"` the user's message and what had finished are stored, marked failed,
    and the next run sees them (C61).
    """
    replies = [assistant(ToolCall(id="c", name="look")), ModelRequestError("down"), "ok"]
    model = ScriptedModel(replies)
    memory = ChatMemory(store, on_failure="keep")
    agent = Agent(model=model, tools=[look], features=[memory])
    with pytest.raises(ModelRequestError):
        await agent.run("look", "s")
    entries = await store.entries("s")
    assert [(e.message.role, e.is_failed) for e in entries] == [
        ("user", True), ("assistant", True), ("tool", True),
    ]  # fmt: skip
    await agent.run("and now?", "s")
    assert [m.role for m in model.requests[-1].messages] == ["user", "assistant", "tool", "user"]
    assert [e.is_failed for e in await store.entries("s")] == [True] * 3 + [False] * 2


async def test_a_run_that_fails_at_once_keeps_the_users_message(store: Store) -> None:
    """What the user said is kept also when the strategy raised before it was in the prompt, or the
    run was cancelled.
    """

    async def broken(ctx: object, text: str) -> str:
        raise RuntimeError("bug")

    memory = ChatMemory(store, on_failure="keep")
    agent = Agent(model=ScriptedModel([]), strategy=broken, features=[memory])
    with pytest.raises(RuntimeError):
        await agent.run("hello", "s")
    assert await texts(store) == ["hello"]
    slow = Slow()
    agent = Agent(model=ScriptedModel([slow]), features=[ChatMemory(store, on_failure="keep")])
    run = asyncio.create_task(agent.run("still there?", "s"))
    await slow.asked.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert await texts(store) == ["hello", "still there?"]


async def test_what_a_window_hides_can_be_deleted(store: Store) -> None:
    """With `retention="delete"` only what the window shows stays in the store; a filter deletes
    nothing that is stored.
    """
    memory = ChatMemory(store, retention="delete").window_size(4)
    agent = Agent(model=ScriptedModel([f"A{n}" for n in range(4)]), features=[memory])
    for n in range(4):
        await agent.run(f"Q{n}", "s")
    assert await texts(store) == ["Q2", "A2", "Q3", "A3"]
    await Agent(model=ScriptedModel(["x"]), features=[ChatMemory(store)]).run("stays", "t")
    memory = ChatMemory(store, retention="delete").filter_messages(lambda m: m.role == "user")
    memory.window_size(10)
    await Agent(model=ScriptedModel(["y"]), features=[memory]).run("new", "t")
    assert await texts(store, "t") == ["stays", "x", "new"]


async def test_deleting_what_is_hidden_spares_what_others_append(store: Store) -> None:
    """What somebody else appends while a run goes on is not deleted with what the window hides."""
    await store.append("s", [user(f"old {n}") for n in range(5)])

    async def meanwhile(_: ModelRequest) -> str:
        await store.append("s", [user("from outside")])
        return "answer"

    memory = ChatMemory(store, retention="delete").window_size(3)
    await Agent(model=ScriptedModel([meanwhile]), features=[memory]).run("question", "s")
    assert await texts(store) == ["old 4", "from outside", "question", "answer"]


@pytest.mark.parametrize("option", [{"on_failure": "ask"}, {"retention": "forever"}])
def test_unknown_options_are_refused(option: dict[str, str]) -> None:
    """A wrong value is refused with the right ones."""
    with pytest.raises(InvalidValueError, match="must be"):
        ChatMemory(**option)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="on_busy='wait' must be"):
        Agent(model=ScriptedModel([]), on_busy="wait")  # type: ignore[arg-type]


async def test_a_long_history_without_a_window_is_warned_of_once(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Beyond 1,000 messages a memory without a window warns once; with one, never."""
    await store.append("s", [user(str(n)) for n in range(1_001)])
    agent = Agent(model=ScriptedModel(["a", "b"]), features=[ChatMemory(store)])
    await agent.run("x", "s")
    await agent.run("y", "s")
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "'s' has 1001 messages" in caplog.text
    caplog.clear()
    windowed = ChatMemory(store).filter_messages(lambda m: True).window_size(5)
    await Agent(model=ScriptedModel(["c"]), features=[windowed]).run("z", "s")
    assert caplog.records == []


class Failing(InMemoryStore):
    """A store whose writes fail from some moment on."""

    is_broken = False

    async def append(self, session_id: str, messages: Sequence[Message], **rest: Any) -> Appended:
        if self.is_broken:
            raise StoreError("the disk is gone")
        return await super().append(session_id, messages, **rest)

    async def release_lease(self, session_id: str, *, holder: str) -> None:
        if self.is_broken:
            raise StoreError("the disk is gone")
        await super().release_lease(session_id, holder=holder)


async def test_the_first_error_is_the_one_that_is_raised() -> None:
    """When the model fails and then the store, too, the caller hears of the model, and of both in
    the notes.
    """
    store = Failing()

    def fails(_: ModelRequest) -> ModelRequestError:
        store.is_broken = True
        return ModelRequestError("the model is down")

    memory = ChatMemory(store, on_failure="keep")
    with pytest.raises(ModelRequestError, match="the model is down") as info:
        await Agent(model=ScriptedModel([fails]), features=[memory]).run("q", "s")
    assert info.value.__notes__ == ["ChatMemory failed, too: the disk is gone"]


async def test_a_lease_that_cannot_be_given_back_does_not_fail_a_stored_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """When only the release of the lease fails, the run has succeeded; a warning says so."""

    class NoRelease(InMemoryStore):
        async def release_lease(self, session_id: str, *, holder: str) -> None:
            raise StoreError("the disk is gone")

    store = NoRelease()
    agent = Agent(model=ScriptedModel(["fine"]), features=[ChatMemory(store)])
    assert str(await agent.run("q", "s")) == "fine"
    assert await texts(store) == ["q", "fine"]
    assert "has to run out: the disk is gone" in caplog.text
