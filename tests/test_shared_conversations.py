"""LongTermMemory where a conversation is not one run's alone: rewritten, shared, and forgotten from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from json import dumps
from typing import Any

import pytest

from tenure import (
    Agent,
    AssistantMessage,
    ChatMemory,
    Concept,
    Event,
    KeepLastN,
    LongTermMemory,
    Memories,
    MemoriesRecalled,
    Message,
    RunContext,
    Store,
    Text,
    ToolCall,
    Turn,
    UsageError,
    WholeHistory,
    assistant,
    facts,
    tool_loop,
    user,
)
from tenure.marks import is_summary
from tenure.testing import ScriptedModel
from tenure.testing.scripted import Reply

pytestmark = pytest.mark.anyio


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


@pytest.mark.parametrize("is_summarised", [True, False])
async def test_a_rewritten_history_does_not_bring_back_what_was_forgotten(
    store: Store, is_summarised: bool
) -> None:
    """What is removed while a run goes on that has compressed its history is not written again."""
    first = agent_of(store, None, *"123456")
    for text in ("Hi", "I like tea", "My code is 1234", "I like milk", "I live in Porto", "Bye"):
        await first.ask(text)
    secret = next(m for m in await first.memory.list() if "1234" in m.content)
    kept = 1 if is_summarised else 8
    agent = agent_of(
        store,
        None,
        "A summary.",
        call("forget", memory_id=secret.id),
        "Done.",
        features=[
            ChatMemory(store).compress_when(messages=kept + 4, strategy=KeepLastN(kept)),
            LongTermMemory(embedder=None, recall_tools=True),
        ],
    )
    await agent.ask("Forget it")
    texts = [m.text for m in await store.read("agent:A") if m.text]
    assert "My code is 1234" not in texts
    assert any("A summary." in text for text in texts) is not is_summarised
    assert texts[-3:] == ["6", "Forget it", "Done."]


async def test_a_rewritten_history_does_not_bring_back_what_was_redacted(store: Store) -> None:
    """What is changed in the store while such a run goes on stays as it was changed."""
    first = agent_of(store, None, *"123")
    for text in ("Hi", "I like tea", "My code is 1234"):
        await first.run(text, "s")

    async def redacting(ctx: RunContext, text: str) -> object:
        await store.redact("s", lambda m: user("My code is X") if "1234" in m.text else m)
        return await tool_loop(ctx, text)

    memory = ChatMemory(store).compress_when(messages=5, strategy=KeepLastN(1))
    agent = agent_of(store, None, "A summary.", "Hello.", features=[memory], strategy=redacting)
    await agent.run("And now?", "s")
    texts = [m.text for m in await store.read("s")]
    assert texts[2:] == ["My code is X", "3", "And now?", "Hello."]


async def test_a_fact_and_a_note_come_from_their_turn(store: Store) -> None:
    """What a function or a tool made a memory of is not recalled beside it, and goes along with it."""

    async def fact(turn: Turn) -> list[str]:
        return ["The code of the user is 1234"]

    agent = agent_of(
        store,
        None,
        call("remember", text="The user has a code"),
        "Noted.",
        "Yes.",
        features=[LongTermMemory(embedder=None, ingest=fact, recall_tools=True)],
    )
    recalled: list[str] = []

    @agent.on_event
    def watch(event: Event) -> None:
        if isinstance(event, MemoriesRecalled):
            recalled.extend(memory.content for memory in event.memories)

    await agent.ask("My code is 1234")
    assert await contents(agent) == ["The code of the user is 1234", "The user has a code"]
    for memory in await agent.memory.list():
        told = await store.read("agent:A")
        assert memory.provenance.message_ids == tuple(m.id for m in told)
    await agent.ask("Do you know the code of the user?")
    assert recalled == []
    [_, note, *_] = await agent.memory.list(order="asc")
    await agent.memory.delete(note.id)
    texts = [m.text for m in await store.read("agent:A")]
    assert texts == ["Do you know the code of the user?", "Yes."]


class Kept:
    """A provider of histories that is no store."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def load(self, session_id: str) -> list[Message]:
        """Return them."""
        return self.messages

    def store(self, session_id: str, messages: list[Message]) -> None:
        """Keep them."""
        self.messages = messages


async def test_a_provider_keeps_no_secrets_either(store: Store) -> None:
    """What pre-processors change or drop is remembered so where a provider keeps the history, too."""

    def masked(messages: Sequence[Message]) -> list[Message]:
        return [
            replace(m, parts=(Text(text=m.text.replace("1234", "****")),))
            for m in messages
            if "internal" not in m.text
        ]

    provider = Kept()
    history = ChatMemory(provider).add_preprocessor(masked).window_size(1)
    agent = agent_of(store, None, "internal note", "Noted.", features=[history])
    await agent.run("My code is 1234", "s")
    await agent.run("Is 1234 my code?", "s")
    assert [m.text for m in provider.messages] == ["Noted."]
    assert await contents(agent) == ["My code is ****", "Is **** my code?", "Noted."]


async def test_facts_are_not_made_of_what_was_recalled(store: Store) -> None:
    """What the recall tool gave is remembered already, and no fact of the turn that asked for it."""
    model = ScriptedModel([call("recall", query="nuts"), "Nuts.", '{"result": []}'])
    ingest = facts([Concept(keyword="diet", description="What the user eats")])
    memory = LongTermMemory(embedder=None, top_k=0, recall_tools=True, ingest=ingest)
    agent = Agent(model=model, name="A", store=store, memory=True, features=[memory])
    await agent.memory.add("No nuts, says the doctor")
    await agent.run("What do I not eat?", "s")
    [result] = model.requests[1].messages[-1].tool_results
    assert "says the doctor" in result.text
    asked = model.requests[2].messages[-1].text
    assert "What do I not eat?" in asked
    assert "Nuts." in asked
    assert "says the doctor" not in asked


async def test_memories_of_all_users_are_only_recalled(store: Store) -> None:
    """A handle on all users is refused at once where something is to be remembered; else it works."""
    await agent_of(store, "ann").memory.add("Tea is in the kitchen")
    everybody = Memories.open(store, agent_id="A", all_users=True, embedder=None)
    wrong: list[dict[str, Any]] = [{}, {"ingest": None, "recall_tools": True}]
    for options in wrong:
        with pytest.raises(UsageError, match="only reads"):
            LongTermMemory(everybody, **options)
    agent = agent_of(store, None, "There.", features=[LongTermMemory(everybody, ingest=None)])
    await agent.run("Where is tea?", "s")
    assert isinstance(agent.model, ScriptedModel)
    assert "in the kitchen" in agent.model.requests[0].messages[-1].text
    assert await everybody.count() == 1


async def test_a_note_outside_a_run_is_not_lost(store: Store) -> None:
    """The remember tool, called by code when a run is over, remembers at once."""

    async def noting(ctx: RunContext, text: str) -> object:
        async with ctx.llm.write_session() as session:
            return await session.call_tool("remember", {"text": "In the run"})

    memory = LongTermMemory(embedder=None, recall_tools=True)
    agent = agent_of(store, None, features=[memory], strategy=noting)
    await agent.run("Hi", "s")
    await agent.tools["remember"].execute({"text": "After the run"})
    assert await contents(agent) == ["In the run", "After the run"]


@pytest.mark.parametrize("is_first", [True, False])
async def test_what_a_run_says_and_then_summarises_is_kept(store: Store, is_first: bool) -> None:
    """What a run has added and then summarised is logged, found by `covered`, and remembered."""
    if not is_first:
        await store.append("s", [user("before"), assistant("earlier")])

    async def strategy(ctx: RunContext, text: str) -> str:
        async with ctx.llm.write_session() as session:
            session.append_prompt(user("the first"))
            session.append_prompt(user(text))
            await session.request_llm()
            await session.replace_history_with_tldr(WholeHistory())
        async with ctx.llm.write_session() as session:
            await session.replace_history_with_tldr(WholeHistory())
            session.append_prompt(user("and then?"))
            return (await session.request_llm()).text

    replies = ("Noted.", "in short", "shorter", "Done.")
    agent = agent_of(store, None, *replies, strategy=strategy)
    await agent.run("IMPORTANT", "s")
    history = await store.read("s")
    [last] = [message for message in history if is_summary(message)]
    assert [m.text for m in history if m.text in ("IMPORTANT", "Noted.", "in short")] == []
    found = {m.text: m for m in await store.covered("s", last.id)}
    covered = {m.text for m in found.values()}
    for each in [m for m in found.values() if is_summary(m)]:
        covered |= {m.text for m in await store.covered("s", each.id)}
    assert {"IMPORTANT", "Noted."} <= covered
    contents = {m.content for m in await agent.memory.list()}
    assert {"IMPORTANT", "and then?", "Done."} <= contents
    assert len(await store.read("s")) == len({m.id for m in history})
    other = store.for_tenant("t")
    assert await other.covered("s", last.id) == []


async def test_nothing_is_archived_where_nothing_is_kept(store: Store) -> None:
    """With `retention="delete"` what a summary stands for is nowhere."""

    async def strategy(ctx: RunContext, text: str) -> str:
        async with ctx.llm.write_session() as session:
            session.append_prompt(user("the first"))
            session.append_prompt(user(text))
            await session.replace_history_with_tldr(WholeHistory())
        return "ok"

    chat = ChatMemory(store, retention="delete").window_size(50)
    agent = agent_of(store, None, "in short", strategy=strategy, memory=False, features=[chat])
    await agent.run("SECRET", "s")
    for branch in await store.branches("s"):
        entries = await store.entries("s", branch=branch.branch)
        assert "SECRET" not in [entry.message.text for entry in entries]
