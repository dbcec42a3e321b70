"""Runs that are interrupted and resumed: nodes, new inputs, and the conversation that comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from journey import TEN_NODES, Journey, happened
from runs import Died, agent_of, died, dies_after, line_of, named, parts_of, said

from tenure import (
    Agent,
    AssistantMessage,
    ChatMemory,
    CheckpointSaved,
    Event,
    Graph,
    InMemoryStore,
    InvalidValueError,
    LongTermMemory,
    ModelRequestError,
    NodeCompleted,
    NothingToResumeError,
    Persistence,
    RunContext,
    RunResumed,
    Store,
    Text,
    ToolCall,
    ToolCallReused,
    UnknownNodeError,
    UsageError,
    UserMessage,
    assistant,
    idempotency_key,
    tool,
    user,
)
from tenure import graph_nodes as nodes
from tenure.graph import BranchOutcome
from tenure.graph_edges import on_condition
from tenure.messages import Message
from tenure.stores.base import Lease
from tenure.stores.run_records import NewCheckpoint
from tenure.testing import ManualClock, ScriptedModel

pytestmark = pytest.mark.anyio


# --- every node and every tool once ---


@pytest.mark.parametrize("path", TEN_NODES)
async def test_a_run_goes_on_behind_any_node(store: Store, tmp_path: Path, path: str) -> None:
    """Interrupted behind any node, every node and tool runs once, and the conversation is the same."""
    whole = Journey(InMemoryStore(), tmp_path / "whole")
    expected = await whole.agent.run("go", "s")
    provider = whole.agent._features[0]  # pyright: ignore[reportPrivateUsage]
    assert isinstance(provider, ChatMemory)
    assert isinstance(provider.provider, Store)
    log = tmp_path / "log"
    first = Journey(store, log)
    dies_after(first.agent, path)
    await died(first.agent, "go")
    assert await store.read("s") == []
    second = Journey(store, log)
    result = await second.agent.run("go", "s")
    assert happened(log) == happened(tmp_path / "whole")
    assert (result.output, result.usage) == (expected.output, expected.usage)
    assert parts_of(result.new_messages) == parts_of(expected.new_messages)
    assert parts_of(await store.read("s")) == parts_of(await provider.provider.read("s"))
    assert await store.runs("s", unfinished=True) == []


async def test_interrupted_many_times(store: Store, tmp_path: Path) -> None:
    """A run that is interrupted behind every node, one after the other, comes to the same end."""
    whole = Journey(InMemoryStore(), tmp_path / "whole")
    expected = await whole.agent.run("go", "s")
    log = tmp_path / "log"
    for path in TEN_NODES:
        journey = Journey(store, log)
        dies_after(journey.agent, path)
        await died(journey.agent, "go")
    result = await Journey(store, log).agent.run("go", "s")
    assert result.output == expected.output
    assert happened(log) == happened(tmp_path / "whole")


async def test_a_loop_goes_on_in_its_round(store: Store) -> None:
    """A subgraph that is executed again in a loop goes on in the round in which it was."""
    done: list[str] = []

    def below_two(n: int) -> bool:
        return n < 2

    def graph() -> Graph[int, int]:
        def step(name: str) -> Callable[[RunContext, int], int]:
            def function(ctx: RunContext, n: int) -> int:
                done.append(f"{name}{n}")
                return n

            function.__name__ = name
            return function

        outer = Graph[int, int]("outer")
        inner = outer.subgraph(line_of(step("a"), step("b")), name="inner")

        def plus_one(ctx: RunContext, n: Any) -> int:
            return 0 if n == "go" else n + 1

        count = outer.node(plus_one)
        outer.edge(outer.start, count)
        outer.edge(count, inner)
        outer.edge(inner, count, on_condition(below_two))
        outer.edge(inner, outer.finish)
        return outer

    agent = agent_of(store, graph())
    rounds = 0

    @agent.on_event
    def die(event: Event) -> None:
        nonlocal rounds
        if isinstance(event, NodeCompleted) and event.path == "outer/inner/a":
            rounds += 1
            if rounds == 2:
                raise Died

    _ = die
    await died(agent, "go")
    result = await agent_of(store, graph()).run("go", "s")
    assert (result.output, done) == (2, ["a0", "b0", "a1", "b1", "a2", "b2"])


async def test_a_graph_that_a_function_calls_is_part_of_its_node(store: Store) -> None:
    """A node whose function calls a graph, however often, is executed again as a whole."""
    inner = line_of(named("x"), named("y"), name="inner")

    async def each(ctx: RunContext, text: str) -> list[str]:
        return [await inner(ctx, number) for number in "123"]

    dying = agent_of(store, line_of(each))
    seen = 0

    @dying.on_event
    def die(event: Event) -> None:
        nonlocal seen
        seen += isinstance(event, NodeCompleted) and event.path == "line/each/x"
        if seen == 2:
            raise Died

    _ = die
    await died(dying, "go")
    result = await agent_of(store, line_of(each)).run("go", "s")
    assert result.output == ["1 x y", "2 x y", "3 x y"]


async def test_the_default_strategy_is_resumed(store: Store) -> None:
    """The tool loop goes on where it was, with an answer of any type, and no tool runs again."""
    ran: list[int] = []

    @tool
    def double(n: int) -> int:
        """Double it."""
        ran.append(n)
        return 2 * n

    call = assistant(ToolCall(id="c", name="double", args='{"n": 2}'))
    options: dict[str, Any] = {"tools": [double], "output_type": Answer, "system_prompt": "Hi."}
    first = agent_of(store, None, call, ModelRequestError("down"), **options)
    with pytest.raises(ModelRequestError):
        await first.run("twice two?", "s")
    second = agent_of(store, None, '{"value": 4}', **options)
    result = await second.run("twice two?", "s")
    assert (result.output, ran) == (Answer(4), [2])
    assert [role for role, _ in await said(store)] == ["user", "assistant", "tool", "assistant"]
    options["output_type"] = list[Answer] | None
    listing = agent_of(store, None, '{"result": [{"value": 5}]}', **options)
    dies_after(listing, "tool_loop/ask")
    await died(listing, "which?")
    assert (await agent_of(store, None, **options).run("which?", "s")).output == [Answer(5)]
    options["output_type"] = Answer
    third = agent_of(store, None, '{"value": 5}', **options)
    dies_after(third, "tool_loop/ask")
    await died(third, "and?")
    assert (await agent_of(store, None, **options).run("and?", "s")).output == Answer(5)


async def test_a_run_is_resumed_while_it_is_streamed(store: Store) -> None:
    """A stream tells that a run goes on, and ends with the result of what was said now."""
    agent = agent_of(store, None, "one")
    dies_after(agent, "tool_loop/say")
    await died(agent, "first")
    stream = agent_of(store, None, "one", "two").run_stream("second", "s")
    events = [event async for event in stream]
    resumed = next(event for event in events if isinstance(event, RunResumed))
    assert (resumed.input, resumed.path, resumed.session_id) == ("first", "tool_loop/say", "s")
    assert stream.result is not None
    assert stream.result.output == "two"
    assert [text for _, text in await said(store)] == ["first", "one", "second", "two"]


async def test_saved_checkpoints_are_events(store: Store) -> None:
    """Each checkpoint is told before its node's end, with versions that rise by one."""
    agent = agent_of(store, None, "hi")
    events: list[Event] = []
    agent.on_event(events.append)
    await agent.run("hello", "s")
    told = [
        (e.path, e.version if isinstance(e, CheckpointSaved) else 0)
        for e in events
        if isinstance(e, (CheckpointSaved, NodeCompleted))
    ]
    assert told == [
        ("tool_loop/say", 1), ("tool_loop/say", 0), ("tool_loop/ask", 2), ("tool_loop/ask", 0),
    ]  # fmt: skip


# --- what was said ---


async def test_a_new_input_follows_the_resumed_work(store: Store) -> None:
    """What is said to a run that resumes another one is answered after it, and its result returned."""
    agent = agent_of(store, None, "a1")
    dies_after(agent, "tool_loop/ask")
    await died(agent, "q1")
    again = agent_of(store, None, "a2")
    result = await again.run("q2", "s")
    assert result.output == "a2"
    assert await said(store) == [
        ("user", "q1"), ("assistant", "a1"), ("user", "q2"), ("assistant", "a2"),
    ]  # fmt: skip
    assert [m.text for m in result.new_messages] == ["q2", "a2"]


async def test_the_same_input_is_not_answered_twice(store: Store) -> None:
    """A run that is tried again with its own input is that run."""
    agent = agent_of(store, None, "a1")
    dies_after(agent, "tool_loop/ask")
    await died(agent, "q1")
    assert (await agent_of(store, None).run("q1", "s")).output == "a1"
    assert await said(store) == [("user", "q1"), ("assistant", "a1")]


async def test_a_run_that_has_ended_is_not_resumed(store: Store) -> None:
    """After a run has succeeded the next one begins anew, also with the same input."""
    agent = agent_of(store, None, "a1", "a2")
    assert (await agent.run("q", "s")).output == "a1"
    assert (await agent.run("q", "s")).output == "a2"
    assert len(await store.read("s")) == 4
    assert [run.ended_at is None for run in await store.runs("s")] == [False, False]


async def test_never_gives_an_unfinished_run_up(store: Store) -> None:
    """With `resume="never"` a run begins anew, and what the other one had saved is gone."""
    agent = agent_of(store, None, "a1")
    dies_after(agent, "tool_loop/ask")
    await died(agent, "q1")
    features = [ChatMemory(store), Persistence(store, resume="never")]
    result = await agent_of(store, None, "a2", features=features).run("q2", "s")
    assert result.output == "a2"
    assert await said(store) == [("user", "q2"), ("assistant", "a2")]
    assert await store.runs("s", unfinished=True) == []


async def test_require_wants_an_unfinished_run(store: Store) -> None:
    """With `resume="require"` a run that has nothing to resume raises, and leaves nothing behind."""
    features = [ChatMemory(store), Persistence(store, resume="require")]
    agent = agent_of(store, None, "a1", features=features)
    with pytest.raises(NothingToResumeError, match="'s'"):
        await agent.run("q", "s")
    assert await store.runs("s") == []
    other = agent_of(store, None, "a1")
    dies_after(other, "tool_loop/say")
    await died(other, "q")
    assert (await agent.run("q", "s")).output == "a1"


async def test_require_answers_what_was_said_meanwhile(store: Store) -> None:
    """With `resume="require"` a new input is answered after the run that was required."""
    other = agent_of(store, None, "a1")
    dies_after(other, "tool_loop/say")
    await died(other, "q1")
    features = [ChatMemory(store), Persistence(store, resume="require")]
    result = await agent_of(store, None, "a1", "a2", features=features).run("q2", "s")
    assert result.output == "a2"
    assert [text for _, text in await said(store)] == ["q1", "a1", "q2", "a2"]


async def test_an_unfinished_run_can_be_given_up(store: Store) -> None:
    """`give_up` removes what an unfinished run has saved; a second call finds nothing."""
    agent = agent_of(store, None, "a1", "a2")
    dies_after(agent, "tool_loop/ask")
    await died(agent, "q1")
    persistence = Persistence(store)
    again = agent_of(store, None, "a2", features=[ChatMemory(store), persistence])
    assert await persistence.give_up("s") is True
    assert await persistence.give_up("s") is False
    assert await persistence.get_checkpoints("s") == []
    await again.run("q2", "s")
    assert await said(store) == [("user", "q2"), ("assistant", "a2")]


async def test_an_old_run_is_given_up() -> None:
    """With `max_age` an unfinished run whose last checkpoint is older is not resumed."""
    clock = ManualClock()
    store = InMemoryStore(clock=clock)

    def agent(*replies: str) -> Agent:
        persistence = Persistence(store, max_age=timedelta(hours=1))
        features = [ChatMemory(store), persistence]
        return agent_of(store, None, *replies, features=features, clock=clock)

    for seconds, expected in ((3600, ["q1", "a1", "q2", "a2"]), (3601, ["q2", "a2"])):
        dying = agent("a1")
        dies_after(dying, "tool_loop/ask")
        await died(dying, "q1", f"s{seconds}")
        clock.advance(seconds)
        await agent("a2").run("q2", f"s{seconds}")
        assert [text for _, text in await said(store, f"s{seconds}")] == expected


async def test_a_run_is_its_agents_and_its_users(store: Store) -> None:
    """An unfinished run is resumed by the same agent for the same user only (C70)."""
    agent = agent_of(store, None, "a1", name="one", user_id="ada")
    dies_after(agent, "tool_loop/ask")
    await died(agent, "q1")
    for name, user_id in (("two", "ada"), ("one", "eve"), ("one", None)):
        other = agent_of(store, None, "other", name=name, user_id=user_id)
        assert (await other.run("q1", "s")).output == "other"
    again = agent_of(store, None, name="one", user_id="ada")
    assert (await again.run("q1", "s")).output == "a1"


async def test_without_a_session_id_nothing_is_saved(store: Store) -> None:
    """A run that is part of no conversation runs as ever."""
    persistence = Persistence(store)
    agent = agent_of(store, None, "hi", features=[persistence])
    assert (await agent.run("hello")).output == "hi"
    assert await store.conversations() == []


async def test_persistence_needs_a_graph(store: Store) -> None:
    """A strategy that is a plain function is refused in one sentence, before anything happens."""

    async def strategy(ctx: RunContext, text: str) -> str:
        return text

    agent = Agent(model=ScriptedModel([]), strategy=strategy, features=[Persistence(store)])
    with pytest.raises(UsageError, match=r"tenure\.Graph"):
        await agent.run("hello", "s")


# --- with ChatMemory ---


@pytest.mark.parametrize("is_first", [True, False])
async def test_the_order_of_installation_does_not_matter(store: Store, is_first: bool) -> None:
    """The checkpoint's messages win over the loaded history, whichever feature was installed first."""

    def agent(*replies: Any) -> Agent:
        memory, persistence = ChatMemory(store).window_size(2), Persistence(store)
        features = [persistence, memory] if is_first else [memory, persistence]
        return agent_of(store, None, *replies, features=features)

    await agent("a1", "a2").run("q1", "s")
    dying = agent("a2")
    dies_after(dying, "tool_loop/ask")
    await died(dying, "q2")
    assert len(await store.read("s")) == 2
    await agent().run("q2", "s")
    assert [text for _, text in await said(store)] == ["q1", "a1", "q2", "a2"]
    assert (await store.conversation("s")).revision == 2  # pyright: ignore[reportOptionalMemberAccess]


async def test_what_others_append_meanwhile_stays(store: Store) -> None:
    """Between the death of a run and its resumption others may append; nothing of either is lost (C08)."""
    await agent_of(store, None, "a1").run("q1", "s")
    dying = agent_of(store, None, "a2")
    dies_after(dying, "tool_loop/say")
    await died(dying, "q2")
    await store.append("s", [user("note of another")])
    again = agent_of(store, None, "a2")
    await again.run("q2", "s")
    model = again.model
    assert isinstance(model, ScriptedModel)
    assert [m.text for m in model.requests[0].messages] == ["q1", "a1", "q2"]  # as it had begun
    texts = [text for _, text in await said(store)]
    assert texts == ["q1", "a1", "note of another", "q2", "a2"]


async def test_initial_messages_are_stored_once(store: Store) -> None:
    """A resumed first run stores the agent's examples once, and they are not new messages of it."""
    prompt: list[Message] = [user("example"), assistant("shown")]
    dying = agent_of(store, None, "a1", prompt=prompt)
    dies_after(dying, "tool_loop/ask")
    await died(dying, "q1")
    prompt = [user("example"), assistant("shown")]  # of another process, with other ids
    result = await agent_of(store, None, prompt=prompt).run("q1", "s")
    assert [m.text for m in result.new_messages] == ["q1", "a1"]
    assert [text for _, text in await said(store)] == ["example", "shown", "q1", "a1"]


async def test_preprocessors_obey_in_a_resumed_run(store: Store) -> None:
    """What is stored in the end is processed; what was saved on the way is gone."""

    def memory() -> ChatMemory:
        return ChatMemory(store).add_preprocessor(_redacted)

    def agent(*replies: Any) -> Agent:
        return agent_of(store, None, *replies, features=[memory(), Persistence(store)])

    dying = agent("my secret")
    dies_after(dying, "tool_loop/ask")
    await died(dying, "a secret")
    (run,) = await store.runs("s", unfinished=True)
    assert "secret" in str(await store.run_entries("s", run.run_id))
    await agent().run("a secret", "s")
    assert await said(store) == [("user", "a ***"), ("assistant", "my ***")]
    assert await store.run_entries("s", run.run_id) == []
    assert await store.checkpoints("s", run.run_id) == []
    assert await store.calls("s", run.run_id) == []


async def test_redacting_ends_the_hope_of_resuming(store: Store) -> None:
    """A run whose conversation was redacted begins anew: its checkpoints might hold the old text."""
    await store.append("s", [user("secret")])
    dying = agent_of(store, None, "a1")
    dies_after(dying, "tool_loop/ask")
    await died(dying, "q1")
    await store.redact("s", lambda m: None if m.text == "secret" else m)
    assert (await agent_of(store, None, "new").run("q1", "s")).output == "new"


async def test_another_store_for_checkpoints(store: Store) -> None:
    """Checkpoints and history may be in different stores; the run is stored once."""
    checkpoints = InMemoryStore()

    def agent(*replies: Any) -> Agent:
        features = [ChatMemory(store), Persistence(checkpoints)]
        return agent_of(store, None, *replies, features=features)

    await agent("a1").run("q1", "s")
    dying = agent("a2")
    dies_after(dying, "tool_loop/ask")
    await died(dying, "q2")
    assert len(await store.read("s")) == 2
    await agent().run("q2", "s")
    assert [text for _, text in await said(store)] == ["q1", "a1", "q2", "a2"]
    assert await checkpoints.runs("s", unfinished=True) == []


async def test_dying_between_two_stores(store: Store) -> None:
    """Dead behind the commit of the history and before that of the end, nothing is there twice (C14)."""

    class Dying(InMemoryStore):
        is_dying = True

        async def discard_run(
            self, session_id: str, run_id: str, *, lease: Lease | None = None
        ) -> bool:
            if self.is_dying:
                raise Died
            return await super().discard_run(session_id, run_id, lease=lease)

    checkpoints = Dying()

    def agent(*replies: Any) -> Agent:
        features = [
            ChatMemory(store),
            Persistence(checkpoints),
            LongTermMemory(embedder=None),
        ]
        return agent_of(store, None, *replies, features=features, store=store)

    await died(agent("a1"), "q1")
    assert len(await store.read("s")) == 2
    checkpoints.is_dying = False
    again = agent("a2")
    await again.run("q2", "s")
    assert [text for _, text in await said(store)] == ["q1", "a1", "q2", "a2"]
    contents = [memory.content for memory in await again.memory.list(order="asc")]
    assert contents == ["q1", "a1", "q2", "a2"]


async def test_others_in_another_store(store: Store) -> None:
    """Also with two stores, what others append between a death and the resumption stays (C08)."""
    checkpoints = InMemoryStore()

    def agent(*replies: Any) -> Agent:
        features = [ChatMemory(store), Persistence(checkpoints)]
        return agent_of(store, None, *replies, features=features)

    await agent("a1").run("q1", "s")
    dying = agent("a2")
    dies_after(dying, "tool_loop/ask")
    await died(dying, "q2")
    await store.append("s", [user("note of another")])
    await agent().run("q2", "s")
    texts = [text for _, text in await said(store)]
    assert texts == ["q1", "a1", "note of another", "q2", "a2"]


async def test_checkpoints_show_what_the_run_was_shown(store: Store) -> None:
    """What a filter hid from the run is in none of its checkpoints, and does not come back."""

    def agent(*replies: Any) -> tuple[Agent, Persistence]:
        memory = ChatMemory(store).filter_messages(lambda m: "secret" not in m.text)
        persistence = Persistence(store)
        return agent_of(store, None, *replies, features=[memory, persistence]), persistence

    await store.append("s", [user("one"), user("secret"), user("two")])
    dying, persistence = agent("a")
    dies_after(dying, "tool_loop/ask")
    await died(dying, "q")
    (_, last) = await persistence.get_checkpoints("s")
    assert [m.text for m in last.messages] == ["one", "two", "q", "a"]
    again, _ = agent()
    await again.run("q", "s")
    assert [text for _, text in await said(store)] == ["one", "secret", "two", "q", "a"]


async def test_without_chat_memory(store: Store) -> None:
    """Persistence alone resumes a run, too; no history comes of it."""
    graph = line_of(nodes.node_llm_request(), nodes.node_do_nothing())
    dying = agent_of(store, graph, "a1", features=[Persistence(store)])
    dies_after(dying, "line/llm_request")
    await died(dying, "q1")
    again = agent_of(store, graph, features=[Persistence(store)])
    result = await again.run("q1", "s")
    assert [m.text for m in result.new_messages] == ["q1", "a1"]
    assert await store.read("s") == []
    assert await store.runs("s", unfinished=True) == []


async def test_a_provider_of_ones_own(store: Store) -> None:
    """With a plain provider the whole resumed conversation is given to it, once."""

    class Provider:
        def __init__(self) -> None:
            self.kept: list[Message] = []

        def load(self, session_id: str) -> list[Message]:
            return self.kept

        def store(self, session_id: str, messages: list[Message]) -> None:
            self.kept = [*messages]

    provider = Provider()

    def agent(*replies: Any) -> Agent:
        features = [ChatMemory(provider), Persistence(store)]
        return agent_of(store, None, *replies, features=features)

    await agent("a1").run("q1", "s")
    dying = agent("a2")
    dies_after(dying, "tool_loop/ask")
    await died(dying, "q2")
    assert len(provider.kept) == 2
    await agent().run("q2", "s")
    assert [m.text for m in provider.kept] == ["q1", "a1", "q2", "a2"]


async def test_failed_runs_are_kept_only_without_persistence(store: Store) -> None:
    """While a run can be resumed, `on_failure="keep"` puts nothing of it into the history."""
    features = [ChatMemory(store, on_failure="keep"), Persistence(store)]
    agent = agent_of(store, None, ModelRequestError("down"), "a1", features=features)
    with pytest.raises(ModelRequestError):
        await agent.run("q1", "s")
    assert await store.read("s") == []
    await agent.run("q1", "s")
    assert [(e.message.text, e.is_failed) for e in await store.entries("s")] == [
        ("q1", False), ("a1", False),
    ]  # fmt: skip


async def test_what_was_summarised_can_be_read_after_a_resumption(store: Store) -> None:
    """What a run said and then summarised is in the archive, also when it was resumed in between."""
    graph = line_of(
        nodes.node_llm_request(),
        nodes.node_llm_compress_history(),
        lambda _, reply: reply.text,
    )
    dying = agent_of(store, graph, "a1", "the summary")
    dies_after(dying, "line/llm_compress_history")
    await died(dying, "q1")
    await agent_of(store, graph).run("q1", "s")
    messages = await store.read("s")
    (summary,) = [m for m in messages if "the summary" in m.text]
    covered = [m.text for m in await store.covered("s", summary.id)]
    assert "a1" in covered


async def test_long_term_memory_remembers_a_resumed_run_once(store: Store) -> None:
    """A resumed run is remembered as one that was never interrupted is, with its own input (C78)."""

    def agent(*replies: Any) -> Agent:
        features = [LongTermMemory(embedder=None), ChatMemory(store), Persistence(store)]
        return agent_of(store, None, *replies, features=features, store=store)

    dying = agent("tea noted")
    dies_after(dying, "tool_loop/ask")
    await died(dying, "I like tea")
    again = agent("hello")
    await again.run("good morning", "s")
    contents = [memory.content for memory in await again.memory.list(order="asc")]
    assert contents == ["I like tea", "tea noted", "good morning", "hello"]


async def test_failed_runs_are_kept_when_they_are_not_resumed(store: Store) -> None:
    """With `resume="never"` nobody goes on with a failed run, so `on_failure="keep"` keeps it."""
    features = [ChatMemory(store, on_failure="keep"), Persistence(store, resume="never")]
    agent = agent_of(store, None, ModelRequestError("down"), "a2", features=features)
    with pytest.raises(ModelRequestError):
        await agent.run("q1", "s")
    await agent.run("q2", "s")
    assert [(e.message.text, e.is_failed) for e in await store.entries("s")] == [
        ("q1", True), ("q2", False), ("a2", False),
    ]  # fmt: skip


async def test_the_chat_memorys_store_is_taken(store: Store) -> None:
    """Without a storage and without a store of the agent, checkpoints are where the history is."""
    for is_first in (True, False):
        session_id = f"s{is_first}"

        def agent(*replies: Any, first: bool = is_first) -> tuple[Agent, Persistence]:
            memory, persistence = ChatMemory(store), Persistence()
            features = [persistence, memory] if first else [memory, persistence]
            return agent_of(store, None, *replies, features=features), persistence

        dying, _ = agent("a1")
        dies_after(dying, "tool_loop/ask")
        await died(dying, "q1", session_id)
        again, persistence = agent()
        assert len(await persistence.get_checkpoints(session_id)) == 2
        assert (await again.run("q1", session_id)).output == "a1"


async def test_one_for_each_agent(store: Store) -> None:
    """A `Persistence` of one agent is refused by another one, whose runs it would mix up."""
    persistence = Persistence(store)
    agent_of(store, None, name="one", features=[persistence])
    with pytest.raises(InvalidValueError, match="'one'"):
        agent_of(store, None, name="two", features=[persistence])


# --- changed graphs ---


async def test_a_removed_node_isnamed(store: Store) -> None:
    """A run that stood behind a node that is gone says which, in one sentence; nothing is lost."""
    dying = agent_of(store, line_of(named("one"), named("two"), named("three")))
    dies_after(dying, "line/two")
    await died(dying, "go")
    changed = agent_of(store, line_of(named("one"), named("renamed"), named("three")))
    with pytest.raises(UnknownNodeError, match=r"'line/two'.*resume='never'"):
        await changed.run("go", "s")
    back = agent_of(store, line_of(named("one"), named("two"), named("three")))
    assert (await back.run("go", "s")).output == "go one two three"


async def test_a_removed_subgraph_isnamed(store: Store) -> None:
    """A run that was inside of a subgraph that is gone, or is not on the way any more, says so."""

    def outer(name: str) -> Graph[Any, Any]:
        graph = Graph[Any, Any]("outer")
        first = graph.node(named("first"))
        inner = graph.subgraph(line_of(named("one"), named("two")), name=name)
        graph.edge(graph.start, first)
        graph.edge(first, inner)
        graph.edge(inner, graph.finish)
        return graph

    dying = agent_of(store, outer("inner"))
    dies_after(dying, "outer/inner/one")
    await died(dying, "go")
    with pytest.raises(UnknownNodeError, match=r"'outer/inner'.*'outer/other'"):
        await agent_of(store, outer("other")).run("go", "s")
    assert (await agent_of(store, outer("inner")).run("go", "s")).output == "go first one two"


async def test_a_renamed_graph_isnamed(store: Store) -> None:
    """A run of a graph of another name does not silently begin anew."""
    dying = agent_of(store, line_of(named("one"), named("two"), name="before"))
    dies_after(dying, "before/one")
    await died(dying, "go")
    with pytest.raises(UnknownNodeError, match=r"'before'.*'after'"):
        await agent_of(store, line_of(named("one"), named("two"), name="after")).run("go", "s")


async def test_a_graph_may_grow(store: Store) -> None:
    """Nodes that are new are executed; only those where the run was have to be there."""
    dying = agent_of(store, line_of(named("one"), named("two")))
    dies_after(dying, "line/one")
    await died(dying, "go")
    grown = agent_of(store, line_of(named("one"), named("new"), named("two")))
    assert (await grown.run("go", "s")).output == "go one new two"


# --- values ---


async def test_outputs_that_cannot_be_saved_arenamed(store: Store) -> None:
    """An output that has no exact form, or could not be read back, fails the run and is named."""
    for made, what in ((lambda: object(), "object"), (lambda: Answer(1), "Answer")):
        graph = line_of(_returning("node", made))
        with pytest.raises(InvalidValueError, match=rf"'line/node'.*{what}"):
            await agent_of(store, graph).run("go", f"s {what}")


async def test_values_of_the_storage_come_back(store: Store) -> None:
    """Registered values of the storage are what they were at the checkpoint; others are gone."""
    seen: list[object] = []

    def first(ctx: RunContext, text: str) -> str:
        ctx.storage |= {"kept": Answer(1), "gone": 1}
        return text

    def second(ctx: RunContext, text: str) -> str:
        ctx.storage["kept"] = Answer(2)
        return text

    def last(ctx: RunContext, text: str) -> str:
        seen.extend((ctx.storage.get("kept"), ctx.storage.get("gone"), ctx.storage.get("none")))
        return text

    def agent() -> Agent:
        persistence = Persistence(store, values=["kept", "none"], types=[Answer])
        return agent_of(store, line_of(first, second, last), features=[persistence])

    dying = agent()
    dies_after(dying, "line/second")
    await died(dying, "go")
    await agent().run("go", "s")
    assert seen == [Answer(2), None, None]


async def test_values_that_cannot_be_saved_arenamed(store: Store) -> None:
    """A registered value that has no exact form fails the run and is named."""

    def first(ctx: RunContext, text: str) -> str:
        ctx.storage["thing"] = object()
        return text

    persistence = Persistence(store, values=["thing"])
    agent = agent_of(store, line_of(first), features=[persistence])
    with pytest.raises(InvalidValueError, match="'thing'"):
        await agent.run("go", "s")


async def test_a_newer_format_is_refused(store: Store) -> None:
    """A checkpoint of a newer version is not read as if it were of this one."""
    dying = agent_of(store, None, "a1")
    dies_after(dying, "tool_loop/ask")
    await died(dying, "q1")
    (run,) = await store.runs("s")
    *_, last = await store.checkpoints("s", run.run_id)
    newer = last.state.replace('"format": 1', '"format": 2')
    from tenure.stores.run_records import NewCheckpoint

    await store.save_checkpoint(
        "s",
        run.run_id,
        NewCheckpoint(checkpoint_id="new", node_path=last.node_path, scope=last.scope, state=newer),
    )
    with pytest.raises(InvalidValueError, match="format 2"):
        await agent_of(store, None).run("q1", "s")


async def test_few_checkpoints_are_enough(store: Store, tmp_path: Path) -> None:
    """With `keep_last=1` a run keeps what resuming needs, in every scope, and no more."""
    features = [ChatMemory(store), Persistence(store, keep_last=1, values=["count"])]
    journey = Journey(store, tmp_path / "log", features=features)
    dies_after(journey.agent, "journey/both/left/b")
    await died(journey.agent, "go")
    (run,) = await store.runs("s", unfinished=True)
    scopes = [each.scope for each in await store.checkpoints("s", run.run_id)]
    assert len(scopes) == len(set(scopes))
    again = Journey(store, tmp_path / "log", features=features)
    await again.agent.run("go", "s")
    lines = happened(tmp_path / "log")
    assert len(lines) == len(set(lines))


# --- many at once ---


async def test_versions_of_parallel_branches_are_unique(store: Store) -> None:
    """Thirty branches that finish together get thirty versions (C12)."""
    graph = Graph[Any, Any]("wide")
    branches = {f"b{n}": named(f"b{n}") for n in range(30)}
    both = graph.parallel(
        branches, name="all", merge=lambda outcomes: len(outcomes), concurrency=30
    )
    graph.edge(graph.start, both)
    graph.edge(both, graph.finish)
    agent = agent_of(store, graph)
    events: list[Event] = []
    agent.on_event(events.append)
    assert (await agent.run("go", "s")).output == 30
    versions = [event.version for event in events if isinstance(event, CheckpointSaved)]
    assert versions == [*range(1, 32)]


async def test_branches_are_merged_in_their_order(store: Store) -> None:
    """Outcomes of branches are merged in the order of the branches, live and after a death (C62)."""

    def graph(dies: bool) -> Graph[Any, Any]:
        def branch(name: str, delay: float) -> Callable[[RunContext, Any], Any]:
            async def function(ctx: RunContext, value: Any) -> str:
                await asyncio.sleep(delay)
                if dies and name == "c":
                    raise Died
                ctx.storage["who"] = name
                return name

            return function

        def merged(outcomes: Sequence[BranchOutcome[Any]]) -> Any:
            order = "".join(outcome.output for outcome in outcomes)
            values = [outcome.ctx.storage["who"] for outcome in outcomes]
            return f"{order} {values}"

        made = Graph[Any, Any]("wide")
        branches = {"b": branch("b", 0.01), "a": branch("a", 0), "c": branch("c", 0.02)}
        both = made.parallel(branches, name="all", merge=merged)
        made.edge(made.start, both)
        made.edge(both, made.finish)
        return made

    def agent(dies: bool) -> Agent:
        features = [Persistence(store, values=["who"])]
        return agent_of(store, graph(dies), features=features)

    await died(agent(dies=True), "go")
    expected = "bac ['b', 'a', 'c']"
    assert (await agent(dies=False).run("go", "s")).output == expected
    assert (await agent(dies=False).run("go", "other")).output == expected


async def test_two_processes_do_not_resume_one_run(store: Store) -> None:
    """Of two runs that find an unfinished one, one resumes it, and the other comes after it (C08)."""
    dying = agent_of(store, None, "a1")
    dies_after(dying, "tool_loop/ask")
    await died(dying, "q1")
    one, two = agent_of(store, None, "a2"), agent_of(store, None, "a2")
    await asyncio.gather(one.run("q1", "s"), two.run("q2", "s"))
    assert sorted(text for _, text in await said(store)) == ["a1", "a2", "q1", "q2"]
    assert [text for _, text in await said(store)] == ["q1", "a1", "q2", "a2"]


async def test_reused_tool_calls_are_events(store: Store) -> None:
    """A call that had finished is told as reused, with its result; it is not started again."""
    ran: list[str] = []

    @tool
    def one() -> str:
        """One."""
        ran.append("one")
        return "1"

    @tool
    async def two() -> str:
        """Two."""
        ran.append("two")
        await asyncio.sleep(0.01)
        if len(ran) < 3:
            raise Died
        return "2"

    call = assistant(ToolCall(id="c1", name="one"), ToolCall(id="c2", name="two"))
    two.on_unknown = "retry"
    dying = agent_of(store, None, call, tools=[one, two])
    await died(dying, "go")
    again = agent_of(store, None, "done", tools=[one, two])
    events: list[Event] = []
    again.on_event(events.append)
    await again.run("go", "s")
    reused = [event for event in events if isinstance(event, ToolCallReused)]
    assert [(event.call.name, event.outcome.text) for event in reused] == [("one", "1")]
    assert ran == ["one", "two", "two"]


async def test_a_node_that_asks_and_calls_again(store: Store) -> None:
    """In a node that asked the model and called its tools, the tools do not run again (C63)."""
    ran: list[str] = []

    @tool
    def buy(what: str) -> str:
        """Buy."""
        ran.append(what)
        return f"{what} bought"

    def graph() -> Graph[Any, Any]:
        async def all_at_once(ctx: RunContext, text: str) -> str:
            async with ctx.llm.write_session() as session:
                session.append_prompt(user(text))
                reply = await session.request_llm()
            results = await ctx.execute_tools(reply.tool_calls)
            async with ctx.llm.write_session() as session:
                session.append_prompt(results)
                return (await session.request_llm()).text

        return line_of(all_at_once)

    def call() -> AssistantMessage:
        calls = [ToolCall(id=f"c{n}", name="buy", args='{"what": "tea"}') for n in range(2)]
        return assistant(*calls)

    first = agent_of(store, graph(), call(), ModelRequestError("down"), tools=[buy])
    with pytest.raises(ModelRequestError):
        await first.run("go", "s")
    second = agent_of(store, graph(), call(), "done", tools=[buy])
    assert (await second.run("go", "s")).output == "done"
    assert ran == ["tea", "tea"]


# --- pieces ---


@dataclass(frozen=True)
class Answer:
    """What a model answers with."""

    value: int


def _returning(name: str, made: Callable[[], object]) -> Callable[[RunContext, Any], object]:
    def function(ctx: RunContext, value: Any) -> object:
        return made()

    function.__name__ = name
    return function


def _redacted(messages: list[Message]) -> list[Message]:
    """A pre-processor."""
    return [
        replace(m, parts=(Text(text=m.text.replace("secret", "***")),))
        for m in messages
        if isinstance(m, UserMessage | AssistantMessage)
    ]


async def test_equal_calls_are_told_apart_while_one_is_tried_again(store: Store) -> None:
    """Of two equal calls of one message, only the one that nobody knows the end of is made again."""
    keys: list[str] = []
    is_dying = True

    @tool(on_unknown="retry")
    async def pay(n: int) -> str:
        """Pay."""
        keys.append(idempotency_key())
        if is_dying and len(keys) == 1:
            await asyncio.sleep(0.1)
            raise Died
        return "paid"

    def agent(*replies: AssistantMessage | str) -> Agent:
        made = agent_of(store, None, *replies, tools=[pay])

        @made.on_event
        async def wait(event: Event) -> None:  # so that equal calls overtake each other
            await asyncio.sleep(0.001)

        _ = wait
        return made

    calls = [ToolCall(id=name, name="pay", args='{"n": 1}') for name in ("c1", "c2")]
    await died(agent(assistant("", *calls)), "q")
    is_dying = False
    assert (await agent("done").run("q", "s")).output == "done"
    assert keys == [keys[0], keys[1], keys[0]]


async def test_a_branch_that_is_cancelled_while_it_is_saved(store: Store) -> None:
    """What such a branch has logged takes no place of what the run says afterwards."""
    saved = asyncio.Event()
    save = store.save_checkpoint

    async def slow(session_id: str, run_id: str, checkpoint: NewCheckpoint, **rest: Any) -> Any:
        record = await save(session_id, run_id, checkpoint, **rest)
        if checkpoint.node_path == "g/both/right":
            saved.set()
            await asyncio.sleep(10)
        return record

    def says(text: str) -> Callable[[RunContext, Any], Any]:
        async def node(ctx: RunContext, value: Any) -> Any:
            async with ctx.llm.write_session() as session:
                session.append_prompt(assistant(text))
            return value

        node.__name__ = text
        return node

    def agent() -> Agent:
        persistence = Persistence(store)

        async def left(ctx: RunContext, value: Any) -> Any:
            await saved.wait()
            persistence.set_execution_point(ctx, "g/after", input=value)

        graph = Graph[Any, Any]("g")
        both = graph.parallel(
            {"left": left, "right": says("right")}, name="both", merge=lambda found: found[0]
        )
        after, last = graph.node(says("after")), graph.node(says("last"))
        graph.edge(graph.start, both)
        graph.edge(both, after)
        graph.edge(after, last)
        graph.edge(last, graph.finish)
        return agent_of(store, graph, features=[ChatMemory(store), persistence])

    first = agent()
    dies_after(first, "g/after")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "save_checkpoint", slow)
        await died(first, "q")
    await agent().run("q", "s")
    assert [text for _, text in await said(store)] == ["after", "last"]
