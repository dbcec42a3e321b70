"""LongTermMemory where a conversation is not one run's alone: rewritten, shared, and forgotten from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from json import dumps
from pathlib import Path
from typing import Any

import pytest

from tenure import (
    Agent,
    AssistantMessage,
    ChatMemory,
    InMemoryStore,
    KeepLastN,
    LongTermMemory,
    Store,
    ToolCall,
    Turn,
)
from tenure.stores.sqlite import SQLiteStore
from tenure.testing import ScriptedModel
from tenure.testing.scripted import Reply

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A new store of each driver."""
    made: Store = InMemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "m.db")
    yield made
    await made.close()


def agent_of(store: Store, user_id: str | None, *replies: Reply, **options: Any) -> Agent:
    """The agent A, for a user, with these replies and with memory found by words."""
    options = {"memory": True, "embedder": None, **options}
    return Agent(
        model=ScriptedModel(list(replies)), name="A", user_id=user_id, store=store, **options
    )


def call(name: str, **args: str) -> AssistantMessage:
    """A reply that calls a tool."""
    return AssistantMessage(parts=(ToolCall(name=name, args=dumps(args), id="1"),))


async def contents(agent: Agent) -> list[str]:
    """What the agent remembers, the oldest first."""
    return [memory.content for memory in await agent.memory.list(order="asc", limit=None)]


@pytest.mark.parametrize("ingest", ["turns", "function"])
async def test_what_others_said_is_not_remembered(store: Store, ingest: str) -> None:
    """A run that compresses a shared conversation remembers its own turn, and nobody else's."""
    ann = agent_of(store, "ann", "1", "2", "3")
    for text in ("My code is 1234", "I like tea", "I live in Porto"):
        await ann.run(text, "s")

    async def everything(turn: Turn) -> list[str]:
        return [message.text for message in turn.messages]

    compressing = ChatMemory(store).compress_when(messages=5, strategy=KeepLastN(1))
    memory = LongTermMemory(embedder=None, ingest=everything if ingest == "function" else "turns")
    bob = agent_of(store, "bob", "Ann has a code.", "Hello.", features=[compressing, memory])
    await bob.run("Bob here", "s")
    texts = [message.text for message in await store.read("s")]
    assert texts[-4:] == ["I live in Porto", "3", "Bob here", "Hello."]
    assert "Ann has a code." in texts[1]
    assert await contents(bob) == ["Bob here", "Hello."]


async def test_the_forget_tool_forgets_in_the_default_conversation(store: Store) -> None:
    """What a model forgets is gone from there, whether or not code has looked at `agent.memory`."""
    first = agent_of(store, None, "1")
    await first.ask("My code is 1234")
    [said, _] = await first.memory.list(order="asc")
    memory = LongTermMemory(embedder=None, recall_tools=True)
    agent = agent_of(store, None, call("forget", memory_id=said.id), "Done.", features=[memory])
    await agent.ask("Forget my code")
    assert [m.text for m in await store.read("agent:A") if m.text] == [
        "1",
        "Forget my code",
        "Done.",
    ]
