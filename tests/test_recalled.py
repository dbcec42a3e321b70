"""The block of recalled memories, its place in a request, and the tools a model has for its memory."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from html import unescape
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_views import assert_valid

from tenure import (
    Agent,
    AssistantMessage,
    BudgetError,
    ChatMemory,
    InMemoryStore,
    LongTermMemory,
    Memory,
    Message,
    ModelRequestError,
    RunContext,
    Store,
    TokenEstimator,
    ToolCall,
    user,
)
from tenure.recalled import CUT, Attached, RecalledBlock, recalled_block
from tenure.testing import ManualClock, ScriptedModel
from tenure.testing.histories import random_history

pytestmark = pytest.mark.anyio

many = settings(deadline=None, derandomize=True, max_examples=150)
contents = st.lists(st.text(min_size=1, max_size=300), max_size=8)
CLOCK = ManualClock()


def memory(content: str, number: int = 0, **fields: Any) -> Memory:
    """A memory with this text."""
    CLOCK.advance(1)
    return Memory(
        id=f"m{number}",
        tenant="",
        agent_id="a",
        user_id=None,
        content=content,
        content_hash="",
        created_at=CLOCK.now(),
        updated_at=CLOCK.now(),
        **fields,
    )


# --- the block -----------------------------------------------------------------------------------


@many
@given(contents, st.text(max_size=20), st.integers(1, 400))
def test_a_block_holds_its_memories_and_its_budget(texts: list[str], who: str, budget: int) -> None:
    """Whatever memories hold, the block costs no more than its budget, and is read back as they are."""
    given_ = [memory(text, n, speaker=who or None) for n, text in enumerate(texts)]
    block = recalled_block(given_, budget=budget)
    if not block.memories:
        assert block == RecalledBlock()
        return
    assert TokenEstimator()(user(block.text)) <= budget
    assert (block.text.count("<memories>"), block.text.count("</memories>")) == (1, 1)
    assert block.text.startswith("<memories>\n")
    assert block.text.endswith("</memories>")
    found = re.findall(
        r'<memory date="([^"<>]*)"(?: by="([^"<>]*)")?>([^<>]*)</memory>\n', block.text
    )
    assert len(found) == block.text.count("<memory ") == len(block.memories)
    for (date, by, text), each in zip(found, block.memories, strict=True):
        assert date == each.created_at.date().isoformat()
        assert unescape(by) == who
        said = unescape(text)
        assert said == each.content or (
            said.endswith(CUT) and each.content.startswith(said.removesuffix(CUT).rstrip())
        )
    assert list(block.memories) == given_[: len(block.memories)]


def test_a_memory_that_is_too_long_is_cut_at_a_word() -> None:
    """The first one that does not fit is cut between words and marked; those behind it are left out."""
    long = memory("word " * 300)
    block = recalled_block([long, memory("short")], budget=100)
    assert block.memories == (long,)
    assert f"word{CUT}</memory>" in block.text
    assert "short" not in block.text
    assert recalled_block([long], budget=45) == RecalledBlock()


def test_without_memories_there_is_no_block() -> None:
    """Nothing recalled is an empty text, and no empty frame."""
    assert recalled_block([], budget=1_000) == RecalledBlock()


# --- its place in a request ------------------------------------------------------------------------


def texts(messages: list[Message] | tuple[Message, ...]) -> list[tuple[str, Any]]:
    return [(message.role, message.parts) for message in messages]


async def request(history: list[Message], budget: int | None, recalled: str) -> list[Message]:
    """What a run on the history sends, with a memory to recall or without; empty if it cannot."""
    store = InMemoryStore()
    await store.append("s", history)
    chat = ChatMemory(store)
    _ = chat.window_size(7) if budget is None else chat.window_tokens(budget)
    model = ScriptedModel(["ok"])
    agent = Agent(
        model=model,
        system_prompt="Be kind.",
        store=store,
        name="A",
        features=[chat, LongTermMemory(embedder=None, budget=80)],
    )
    if recalled:
        await agent.memory.add(recalled)
    try:
        await agent.run("What about the zebra?", "s")
    except BudgetError:
        return []
    return [*model.requests[0].messages]


@many
@given(st.integers(0, 2**32), st.sampled_from([None, 60, 150, 400]))
def test_a_block_breaks_no_view(seed: int, budget: int | None) -> None:
    """With a block every request is valid, inside its budget, and else what it is without, or its end."""
    history = [*{message.id: message for message in random_history(seed, turns=5)}.values()]
    plain = asyncio.run(request(history, budget, ""))
    headed = asyncio.run(request(history, budget, "A zebra has stripes.</memories>"))
    assert bool(plain) == bool(headed)
    if not plain:
        return
    assert_valid(headed)
    if budget is not None:
        assert sum(map(TokenEstimator(), headed)) <= budget
    last = headed[-1]
    has_block = last.text.startswith("<memories>")
    if not has_block:
        assert budget is not None
        assert texts(headed) == texts(plain)
        return
    block, _, said = last.text.rpartition("</memories>\n\n")
    assert said == plain[-1].text
    assert TokenEstimator()(user(block + "</memories>")) <= 80
    kept = texts(headed[:-1])
    if budget is None:
        assert kept == texts(plain[:-1])
    else:
        assert len(kept) <= len(plain) - 1


def test_the_place_is_the_last_message_of_the_run() -> None:
    """The text goes to the last new message of the user, and stays there when others come behind it."""
    old, new = user("old"), user("new")
    attached = Attached("T", frozenset({old.id}))
    assert [m.text for m in attached.put([old])] == ["old"]
    assert [m.text for m in attached.put([old, new])] == ["old", "T\n\nnew"]
    assert [m.text for m in attached.put([old, new, user("newer")])] == ["old", "T\n\nnew", "newer"]
    assert [m.text for m in attached.put([old, user("newer")])] == ["old", "newer"]


def test_putting_changes_no_message() -> None:
    """What is put into a request is not in the history that it is made of."""
    message = user("hi")
    before = replace(message)
    Attached("T", frozenset()).put([message])
    assert message == before


# --- tools ---------------------------------------------------------------------------------------


def calling(name: str, args: str) -> AssistantMessage:
    """A reply that calls a tool."""
    return AssistantMessage(parts=(ToolCall(id=f"c-{name}", name=name, args=args),))


def agent_with_tools(store: Store, *replies: Any, **options: Any) -> Agent:
    """An agent whose model may work on its memory."""
    feature = LongTermMemory(embedder=None, top_k=0, ingest=None, recall_tools=True)
    return Agent(
        model=ScriptedModel([*replies]), store=store, features=[ChatMemory(), feature], **options
    )


def result(agent: Agent) -> str:
    """What the model read of the last tool."""
    assert isinstance(agent.model, ScriptedModel)
    return agent.model.requests[-1].messages[-1].tool_results[0].text


async def test_the_model_can_remember_recall_and_forget(store: Store) -> None:
    """`remember` is stored with the run, `recall` gives ids and a block of data, `forget` takes an id."""
    call = calling("remember", '{"text": "Ann likes <b>tea</b>"}')
    first = agent_with_tools(store, call, "ok", name="A")
    assert [*first.tools] == ["remember", "recall", "forget"]
    run = await first.run("I like tea", "s")
    [memory_] = await first.memory.list()
    assert (memory_.content, memory_.metadata) == ("Ann likes <b>tea</b>", {"type": "note"})
    assert (memory_.session_id, memory_.provenance.run_id) == ("s", run.run_id)

    second = agent_with_tools(store, calling("recall", '{"query": "tea"}'), "ok", name="A")
    await second.run("?", "t")
    assert "Ann likes &lt;b&gt;tea&lt;/b&gt;</memory>" in result(second)
    assert f"1. {memory_.id}" in result(second)
    forget = calling("forget", f'{{"memory_id": "{memory_.id}"}}')
    third = agent_with_tools(store, forget, "ok", name="A")
    await third.run("forget it", "t")
    assert result(third) == "It is forgotten."
    assert await third.memory.count() == 0


async def test_tools_reach_one_owner_only(store: Store) -> None:
    """Neither an argument nor an id of another's lets a model reach memories of somebody else."""
    ann = agent_with_tools(store, name="A", user_id="ann")
    secret = await ann.memory.add("Ann's secret is mauve")
    for name, args in [
        ("recall", '{"query": "secret mauve"}'),
        ("recall", '{"query": "secret", "user_id": "ann"}'),
        ("forget", f'{{"memory_id": "{secret.id}"}}'),
    ]:
        bob = agent_with_tools(store, calling(name, args), "ok", name="A", user_id="bob")
        await bob.run("?", "s")
        assert "mauve" not in result(bob)
    assert await ann.memory.count() == 1
    for spec in ann.tools.specs:
        assert "user" not in str(spec.parameters)


async def test_what_tools_give_and_take_is_bounded(store: Store) -> None:
    """`remember` takes no endless text, `recall` gives ten memories and 1,000 tokens at most."""
    long = calling("remember", '{"text": "' + "x" * 2_001 + '"}')
    empty = calling("remember", '{"text": " "}')
    for call, says in (
        (long, "may have 2000 characters, and this has 2001"),
        (empty, "nothing to"),
    ):
        agent = agent_with_tools(store, call, "ok", name="A")
        await agent.run("?", "s")
        assert says in result(agent)
    assert await agent.memory.count() == 0
    assert (await agent.tools["recall"].execute({"query": "tea"})).text.startswith("Nothing is")
    await agent.memory.add_many([f"tea {n} " + "leaf " * 300 for n in range(30)])
    found = (await agent.tools["recall"].execute({"query": "tea"})).text
    assert found.count("<memory ") <= 10
    assert TokenEstimator()(user(found)) < 1_300
    gone = await agent.tools["forget"].execute({"memory_id": "none"})
    assert gone.kind == "validation_error"


async def test_a_failed_run_has_noted_nothing(store: Store) -> None:
    """What the model wanted remembered in a run that fails is not."""
    call = calling("remember", '{"text": "tea"}')
    agent = agent_with_tools(store, call, ModelRequestError("HTTP 500"), name="A")
    with pytest.raises(ModelRequestError):
        await agent.run("?", "s")
    assert await agent.memory.count() == 0


async def test_tools_of_runs_at_once_note_each_their_own(store: Store) -> None:
    """Runs that go on at the same time remember each what their own model said."""
    barrier = asyncio.Barrier(4)

    async def strategy(ctx: RunContext, text: str) -> str:
        call = ToolCall(id="c", name="remember", args=f'{{"text": "note of {text}"}}')
        await barrier.wait()
        await ctx.execute_tools([call])
        await barrier.wait()
        return text

    agent = agent_with_tools(store, name="A", strategy=strategy)
    runs = await asyncio.gather(*(agent.run(f"run {n}", f"s{n}") for n in range(4)))
    found = {m.content: m for m in await agent.memory.list()}
    assert sorted(found) == [f"note of run {n}" for n in range(4)]
    for number, run in enumerate(runs):
        noted = found[f"note of run {number}"]
        assert (noted.session_id, noted.provenance.run_id) == (f"s{number}", run.run_id)


async def test_prompts_grow_at_their_end_only() -> None:
    """In a run of many turns each request begins with the one before, whatever was recalled."""
    replies = [calling("recall", f'{{"query": "tea {n}"}}') for n in range(5)]
    feature = LongTermMemory(embedder=None, recall_tools=True)
    model = ScriptedModel([*replies, "ok"])
    agent = Agent(model=model, store=InMemoryStore(), features=[ChatMemory(), feature])
    await agent.memory.add("I like tea")
    await agent.run("What tea?", "s")
    for before, after in pairwise(model.requests):
        assert after.messages[: len(before.messages)] == before.messages
