"""Checkpoints in a storage of one's own: an object with three methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from journey import TEN_NODES, Journey, happened
from runs import agent_of, died, dies_after, line_of, named, parts_of, said

from tenure import (
    Agent,
    ChatMemory,
    Checkpoint,
    CheckpointStorage,
    Feature,
    InMemoryStore,
    InvalidValueError,
    Persistence,
    RollbackToolRegistry,
    RunContext,
    Store,
    tool,
    user,
)

pytestmark = pytest.mark.anyio


class Texts:
    """Keeps checkpoints as JSON, in lists."""

    def __init__(self) -> None:
        self.kept: dict[str, list[str]] = {}

    def save_checkpoint(self, session_id: str, checkpoint: Checkpoint) -> None:
        known = [Checkpoint.from_json(text).version for text in self.kept.get(session_id, [])]
        assert checkpoint.version == max(known, default=0) + 1
        self.kept.setdefault(session_id, []).append(checkpoint.to_json())

    async def get_checkpoints(self, session_id: str) -> list[Checkpoint]:
        return [Checkpoint.from_json(text) for text in reversed(self.kept.get(session_id, []))]

    async def get_latest_checkpoint(self, session_id: str) -> Checkpoint | None:
        texts = self.kept.get(session_id, [])
        return Checkpoint.from_json(texts[-1]) if texts else None


def of(storage: CheckpointStorage, store: Store | None, *replies: Any, **options: Any) -> Agent:
    memory: list[Feature] = [] if store is None else [ChatMemory(store)]
    features = [*memory, Persistence(storage, **options)]
    return agent_of(InMemoryStore(), None, *replies, features=features)


@pytest.mark.parametrize("path", TEN_NODES)
async def test_a_run_goes_on_behind_any_node(store: Store, tmp_path: Path, path: str) -> None:
    """With whole checkpoints, too, every node and tool runs once and the conversation is the same."""
    whole_store = InMemoryStore()
    whole = Journey(whole_store, tmp_path / "whole")
    expected = await whole.agent.run("go", "s")
    storage, log = Texts(), tmp_path / "log"

    def journey() -> Journey:
        features = [ChatMemory(store), Persistence(storage, values=["count"])]
        return Journey(store, log, features=features)

    first = journey()
    dies_after(first.agent, path)
    await died(first.agent, "go")
    result = await journey().agent.run("go", "s")
    assert happened(log) == happened(tmp_path / "whole")
    assert (result.output, result.usage) == (expected.output, expected.usage)
    assert parts_of(await store.read("s")) == parts_of(await whole_store.read("s"))
    last = await storage.get_latest_checkpoint("s")
    assert last is not None
    assert (last.is_tombstone, last.messages, last.input) == (True, (), "")


async def test_a_checkpoint_is_whole() -> None:
    """What the storage is given has the prompt, without the system prompt, and what the node returned."""
    storage = Texts()
    dying = of(storage, InMemoryStore(), "a1")
    dies_after(dying, "tool_loop/ask")
    await died(dying, "q1")
    last = await storage.get_latest_checkpoint("s")
    assert last is not None
    assert (last.node_path, last.session_id, last.input) == ("tool_loop/ask", "s", "q1")
    assert [m.text for m in last.messages] == ["q1", "a1"]
    persistence = Persistence(storage)
    agent_of(InMemoryStore(), None, features=[persistence])
    checkpoints = await persistence.get_checkpoints("s")
    assert [c.node_path for c in checkpoints] == ["tool_loop/say", "tool_loop/ask"]
    assert await persistence.get_latest_checkpoint("s") == checkpoints[-1]
    assert await persistence.give_up("s") is True
    assert await persistence.get_checkpoints("s") == []


async def test_what_others_append_meanwhile_stays(store: Store) -> None:
    """The revision of the history is part of a checkpoint, so that nothing of others is lost (C08)."""
    storage = Texts()
    await of(storage, store, "a1").run("q1", "s")
    dying = of(storage, store, "a2")
    dies_after(dying, "tool_loop/say")
    await died(dying, "q2")
    await store.append("s", [user("note of another")])
    await of(storage, store, "a2").run("q2", "s")
    texts = [text for _, text in await said(store)]
    assert texts == ["q1", "a1", "note of another", "q2", "a2"]


async def test_a_rollback_reaches_the_storage() -> None:
    """After a rollback the checkpoints behind it are void, though the storage has them still."""
    storage, did = Texts(), list[str]()

    @tool
    def buy() -> str:
        """Buy."""
        did.append("buy")
        return "bought"

    async def buying(ctx: RunContext, value: Any) -> Any:
        async with ctx.llm.write_session() as session:
            await session.call_tool(buy, {})
        return value

    async def back(ctx: RunContext, value: Any) -> Any:
        if did.count("unbuy") == 0:
            first = (await persistence.get_checkpoints("s"))[0]
            await persistence.rollback_to_checkpoint(ctx, first.checkpoint_id)
        return value

    registry = RollbackToolRegistry()
    registry.register(buy, lambda: did.append("unbuy"))
    graph = line_of(named("first"), buying, back, named("last"))

    def made() -> tuple[Agent, Persistence]:
        kept = Persistence(storage, rollback_tools=registry)
        return agent_of(InMemoryStore(), graph, features=[kept], tools=[buy]), kept

    agent, persistence = made()
    dies_after(agent, "line/buying")
    await died(agent, "go")
    agent, persistence = made()
    result = await agent.run("go", "s")
    assert result.output == "go first last"
    assert did == ["buy", "unbuy", "buy"]


async def test_runs_of_one_storage_wait_for_each_other() -> None:
    """Without a store, too, a conversation's runs come one after the other within the process."""
    import asyncio

    storage = Texts()
    agents = [of(storage, None, "a") for _ in range(3)]
    await asyncio.gather(*(agent.run("q", "s") for agent in agents))
    versions = [Checkpoint.from_json(text).run_id for text in storage.kept["s"]]
    assert len(set(versions)) == 3
    assert [*dict.fromkeys(versions)] == [key for key, _ in _grouped(versions)]


async def test_a_storage_that_gives_something_else() -> None:
    """A storage is no storage without its methods, and has to give checkpoints."""
    with pytest.raises(InvalidValueError, match="save_checkpoint"):
        Persistence(object())  # pyright: ignore[reportArgumentType]

    class Wrong(Texts):
        async def get_latest_checkpoint(self, session_id: str) -> Any:
            return {"version": 1}

    with pytest.raises(InvalidValueError, match="Wrong gave an object of type dict"):
        await of(Wrong(), None, "a").run("q", "s")


def _grouped(values: list[str]) -> list[tuple[str, int]]:
    groups: list[tuple[str, int]] = []
    for value in values:
        if groups and groups[-1][0] == value:
            groups[-1] = (value, groups[-1][1] + 1)
        else:
            groups.append((value, 1))
    return groups
