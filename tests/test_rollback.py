"""Going back: checkpoints by hand, rollbacks that undo what tools did, and going somewhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from runs import Died, agent_of, died, dies_after, line_of, named, said

from tenure import (
    Agent,
    ChatMemory,
    Checkpoint,
    Graph,
    InvalidValueError,
    Persistence,
    RollbackToolRegistry,
    RunContext,
    Store,
    Tool,
    UndoFailedError,
    UnknownNodeError,
    UsageError,
    idempotency_key,
    user,
)
from tenure import graph_nodes as nodes
from tenure.features.execution_points import RollbackStrategy

pytestmark = pytest.mark.anyio


class Shop:
    """Two tools that take effect, one that does not, and what undoes the two."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.keys: dict[str, list[str]] = {}
        self.fails = False

        def effect(name: str) -> Tool:
            def function(n: int) -> str:
                self.did.append(f"{name}{n}")
                self.keys.setdefault(f"{name}{n}", []).append(idempotency_key())
                if n == 13:
                    raise RuntimeError("bad luck")
                return f"{name}{n}"

            function.__name__ = name
            return Tool(function)

        def undo(name: str) -> Callable[[int], None]:
            def function(n: int) -> None:
                if self.fails:
                    raise RuntimeError("the shop is closed")
                self.did.append(f"un{name}{n}")
                self.keys.setdefault(f"{name}{n}", []).append(idempotency_key())

            function.__name__ = f"un{name}"
            return function

        self.buy, self.send, self.look = effect("buy"), effect("send"), effect("look")
        self.registry = RollbackToolRegistry()
        self.registry.register(self.buy, undo("buy"))
        self.registry.register("send", undo("send"))

    @property
    def tools(self) -> list[Tool]:
        return [self.buy, self.send, self.look]

    def calls(self, name: str, *numbers: int) -> Callable[[RunContext, Any], Any]:
        """A node that calls a tool."""

        async def node(ctx: RunContext, value: Any) -> Any:
            async with ctx.llm.write_session() as session:
                for n in numbers:
                    await session.call_tool(name, {"n": n})
            return value

        node.__name__ = f"{name}_{'_'.join(map(str, numbers))}"
        return node

    def agent(
        self, store: Store, graph: Graph[Any, Any], *replies: Any, **options: Any
    ) -> tuple[Agent, Persistence]:
        persistence = Persistence(store, rollback_tools=self.registry, **options)
        features = [ChatMemory(store), persistence]
        return (
            agent_of(store, graph, *replies, features=features, tools=self.tools),
            persistence,
        )


@dataclass
class Once:
    """Does something the first time only."""

    work: Callable[[RunContext], Any]
    done: bool = False

    async def __call__(self, ctx: RunContext, value: Any) -> Any:
        if not self.done:
            self.done = True
            result = self.work(ctx)
            if hasattr(result, "__await__"):
                await result
        return value


def once(name: str, work: Callable[[RunContext], Any]) -> Callable[[RunContext, Any], Any]:
    what = Once(work)

    async def function(ctx: RunContext, value: Any) -> Any:
        return await what(ctx, value)

    function.__name__ = name
    return function


async def back_to_the_first(ctx: RunContext, persistence: Persistence) -> None:
    """Ask for a rollback to the run's first checkpoint."""
    first, *_ = await persistence.get_checkpoints("s")
    await persistence.rollback_to_checkpoint(ctx, first.checkpoint_id)


# --- taking a run back ---


async def test_a_rollback_undoes_in_reverse(store: Store) -> None:
    """What tools did since the checkpoint is undone, the last first; what cannot be undone stays."""
    shop = Shop()
    found: list[Checkpoint | None] = []

    async def back(ctx: RunContext) -> None:
        first = (await persistence.get_checkpoints("s"))[1]
        found.append(await persistence.rollback_to_checkpoint(ctx, first.checkpoint_id))

    graph = line_of(
        named("start_here"),
        shop.calls("buy", 1),
        shop.calls("buy", 2, 3),
        shop.calls("look", 4),
        shop.calls("send", 5),
        once("back", back),
    )
    agent, persistence = shop.agent(store, graph)
    result = await agent.run("go", "s")
    assert result.output == "go start_here"
    assert found[0] is not None
    assert (found[0].node_path, found[0].version) == ("line/buy_1", 2)
    assert shop.did == [
        "buy1", "buy2", "buy3", "look4", "send5",
        "unsend5", "unbuy3", "unbuy2",
        "buy2", "buy3", "look4", "send5",
    ]  # fmt: skip


async def test_an_undo_has_the_key_of_the_call(store: Store) -> None:
    """What undoes a call has its idempotency key; the call that is made instead has another one."""
    shop = Shop()

    async def back(ctx: RunContext) -> None:
        await back_to_the_first(ctx, persistence)

    graph = line_of(named("first"), shop.calls("buy", 1), once("back", back))
    agent, persistence = shop.agent(store, graph)
    await agent.run("go", "s")
    bought, undone, again = shop.keys["buy1"]
    assert bought == undone != again


async def test_a_call_that_failed_is_not_undone(store: Store) -> None:
    """Of a call that came to an error there is nothing to undo."""
    shop = Shop()

    async def back(ctx: RunContext) -> None:
        await back_to_the_first(ctx, persistence)

    graph = line_of(named("first"), shop.calls("buy", 13), once("back", back))
    agent, persistence = shop.agent(store, graph)
    await agent.run("go", "s")
    assert shop.did == ["buy13", "buy13"]


async def test_a_call_of_unknown_end_is_undone(store: Store) -> None:
    """A call that may have taken effect is undone, also after the model was told that nobody knows."""
    undone: list[int] = []
    is_dying = True

    async def buy(n: int) -> str:
        if is_dying:
            raise Died
        return "bought"

    def agent() -> Agent:
        registry = RollbackToolRegistry()
        registry.register("buy", lambda n: undone.append(n))
        persistence = Persistence(store, rollback_tools=registry)

        async def buys(ctx: RunContext, value: Any) -> Any:
            async with ctx.llm.write_session() as session:
                await session.call_tool("buy", {"n": 1})
            return value

        async def back(ctx: RunContext) -> None:
            first = (await persistence.get_checkpoints("s"))[0]
            await persistence.rollback_to_checkpoint(ctx, first.checkpoint_id)

        graph = line_of(named("begin"), buys, once("back", back))
        return agent_of(store, graph, features=[ChatMemory(store), persistence], tools=[buy])

    await died(agent(), "q")
    is_dying = False
    await agent().run("q", "s")
    assert undone == [1]


async def test_compression_does_not_hide_what_is_to_be_undone(store: Store) -> None:
    """Between the checkpoint and the rollback the history may be compressed; undoing still happens."""
    shop = Shop()

    async def back(ctx: RunContext) -> None:
        (latest,) = [c for c in await persistence.get_checkpoints("s") if "first" in c.node_path]
        await persistence.rollback_to_checkpoint(ctx, latest.checkpoint_id)

    first = nodes.node_llm_request()
    first.__name__ = "first"
    graph = line_of(
        first,
        shop.calls("buy", 1),
        nodes.node_llm_compress_history(),
        once("back", back),
        lambda ctx, reply: [m.text for m in ctx.conversation],
    )
    agent, persistence = shop.agent(store, graph, "hello", "the summary", "another summary")
    result = await agent.run("go", "s")
    assert shop.did == ["buy1", "unbuy1", "buy1"]
    assert isinstance(result.output, list)
    assert "another summary" in result.output[-1]
    assert "the summary" not in str(result.output)


async def test_an_undo_that_fails_is_tried_again(store: Store) -> None:
    """When an undo fails the run fails and says so; the next run goes on undoing, and then goes on."""
    shop = Shop()
    shop.fails = True

    async def back(ctx: RunContext) -> None:
        await back_to_the_first(ctx, persistence)

    graph = line_of(named("first"), shop.calls("buy", 1), shop.calls("send", 2), once("x", back))
    agent, persistence = shop.agent(store, graph)
    with pytest.raises(UndoFailedError, match=r"'undo_send'.*'send'.*the shop is closed"):
        await agent.run("go", "s")
    shop.fails = False
    again, persistence = shop.agent(store, graph)
    assert (await again.run("go", "s")).output == "go first"
    assert shop.did == ["buy1", "send2", "unsend2", "unbuy1", "buy1", "send2"]


async def test_the_latest_checkpoint(store: Store) -> None:
    """Going back to the latest checkpoint does the node that asks for it again, effects undone."""
    shop = Shop()

    async def back(ctx: RunContext) -> None:
        async with ctx.llm.write_session() as session:
            await session.call_tool("buy", {"n": 1})
            session.append_prompt(user("wrong"))
        found = await persistence.rollback_to_latest_checkpoint(ctx)
        assert found is not None
        assert found.node_path == "line/first"

    graph = line_of(named("first"), once("back", back), lambda ctx, _: len(ctx.conversation))
    agent, persistence = shop.agent(store, graph)
    assert (await agent.run("go", "s")).output == 0
    assert shop.did == ["buy1", "unbuy1"]


async def test_an_unknown_checkpoint(store: Store) -> None:
    """Without such a checkpoint, or without any, None is returned and nothing happens."""
    found: list[object] = []

    async def back(ctx: RunContext) -> None:
        found.append(await persistence.rollback_to_latest_checkpoint(ctx))
        found.append(await persistence.rollback_to_checkpoint(ctx, "none"))

    agent, persistence = Shop().agent(store, line_of(once("back", back)))
    assert (await agent.run("go", "s")).output == "go"
    assert found == [None, None]


async def test_a_rollback_out_of_a_branch(store: Store) -> None:
    """A branch may take the whole run back; the other branches are cancelled, and nothing is lost."""
    shop = Shop()

    async def back(ctx: RunContext) -> None:
        await back_to_the_first(ctx, persistence)

    graph = Graph[Any, Any]("g")
    first = graph.node(named("first"))
    wide = graph.parallel(
        {"a": line_of(shop.calls("buy", 1), once("back", back)), "b": shop.calls("send", 2)},
        name="wide",
        merge=lambda outcomes: [outcome.output for outcome in outcomes],
        concurrency=1,
    )
    graph.edge(graph.start, first)
    graph.edge(first, wide)
    graph.edge(wide, graph.finish)
    agent, persistence = shop.agent(store, graph)
    assert (await agent.run("go", "s")).output == ["go first", "go first"]
    assert shop.did == ["buy1", "unbuy1", "buy1", "send2"]


async def test_branches_at_work_are_over_before_anything_is_undone(store: Store) -> None:
    """What a branch did while another one asked to go back is undone, too, and then done once."""
    shop = Shop()

    async def back(ctx: RunContext) -> None:
        await back_to_the_first(ctx, persistence)
        await asyncio.sleep(0.05)

    async def slowly(ctx: RunContext, value: Any) -> Any:
        await asyncio.sleep(0.02)
        return await shop.calls("buy", 1)(ctx, value)

    graph = Graph[Any, Any]("g")
    first = graph.node(named("first"))
    branches = {"a": once("back", back), "b": line_of(slowly, once("rest", lambda _: None))}
    wide = graph.parallel(branches, name="wide", merge=lambda outcomes: len(outcomes))
    graph.edge(graph.start, first)
    graph.edge(first, wide)
    graph.edge(wide, graph.finish)
    agent, persistence = shop.agent(store, graph)
    assert (await agent.run("go", "s")).output == 2
    assert shop.did == ["buy1", "unbuy1", "buy1"]


async def test_a_rollback_survives_the_process(store: Store) -> None:
    """A run that was taken back and then dies goes on from there, and not from where it was before."""
    did: list[str] = []

    async def back(ctx: RunContext) -> None:
        await back_to_the_first(ctx, persistence)

    def noting(name: str) -> Callable[[RunContext, Any], Any]:
        def node(ctx: RunContext, value: Any) -> Any:
            did.append(name)
            if did == ["one", "two", "three", "two"]:
                raise Died
            return value

        node.__name__ = name
        return node

    steps = [noting("one"), noting("two"), noting("three"), once("back", back)]
    agent, persistence = Shop().agent(store, line_of(*steps))
    await died(agent, "go")
    again, persistence = Shop().agent(store, line_of(*steps))
    await again.run("go", "s")
    assert did == ["one", "two", "three", "two", "two", "three"]


async def test_going_back_to_the_messages_only(store: Store) -> None:
    """With `"message_history"` the graph starts again, with the messages of the checkpoint."""
    seen: list[list[str]] = []

    def look(ctx: RunContext, value: Any) -> Any:
        seen.append([m.text for m in ctx.conversation])
        return value

    async def back(ctx: RunContext) -> None:
        await persistence.rollback_to_checkpoint(
            ctx, (await persistence.get_checkpoints("s"))[1].checkpoint_id
        )

    graph = line_of(look, nodes.node_append_prompt(user("more")), once("back", back))
    agent, persistence = Shop().agent(store, graph, rollback_strategy="message_history")
    result = await agent.run("go", "s")
    assert seen == [[], ["more"]]
    assert [m.text for m in result.new_messages] == ["more", "more"]


async def test_resuming_with_the_messages_only(store: Store) -> None:
    """With `"message_history"` an unfinished run's messages are there, and what is said now is answered."""
    dying = agent_of(store, None, "a1")
    dies_after(dying, "tool_loop/ask")
    await died(dying, "q1")
    features = [ChatMemory(store), Persistence(store, rollback_strategy="message_history")]
    again = agent_of(store, None, "a2", features=features)
    assert (await again.run("q2", "s")).output == "a2"
    assert [text for _, text in await said(store)] == ["q1", "a1", "q2", "a2"]


# --- checkpoints by hand ---


async def test_without_automatic_checkpoints(store: Store) -> None:
    """With `automatic=False` a run goes on behind the last checkpoint that code has made."""
    did: list[str] = []

    def noting(name: str) -> Callable[[RunContext, Any], Any]:
        async def node(ctx: RunContext, value: Any) -> Any:
            did.append(name)
            if name == "two":
                made = await persistence.create_checkpoint(ctx, f"{value}!", checkpoint_id="mine")
                assert (made.node_path, made.output) == ("line/two", "go!")
            return value

        node.__name__ = name
        return node

    graph = line_of(noting("one"), noting("two"), noting("three"), noting("four"))
    agent, persistence = Shop().agent(store, graph, automatic=False)
    dies_after(agent, "line/three")
    await died(agent, "go")
    (checkpoint,) = await persistence.get_checkpoints("s")
    assert checkpoint.checkpoint_id == "mine"
    again, persistence = Shop().agent(store, graph, automatic=False)
    assert (await again.run("go", "s")).output == "go!"
    assert did == ["one", "two", "three", "three", "four"]


@pytest.mark.parametrize("keep_last", [None, 1])
async def test_a_checkpoint_in_a_subgraph_is_enough(store: Store, keep_last: int | None) -> None:
    """A run goes on inside of a subgraph also when no checkpoint says how it came there."""
    did: list[str] = []

    def noting(name: str, *, saves: bool = False) -> Callable[[RunContext, Any], Any]:
        async def node(ctx: RunContext, value: Any) -> Any:
            did.append(name)
            if saves:
                await persistence.create_checkpoint(ctx, value)
            return value

        node.__name__ = name
        return node

    outer = Graph[Any, Any]("outer")
    first = outer.node(noting("first"))
    inner = outer.subgraph(line_of(noting("a", saves=True), noting("b")), name="inner")
    outer.edge(outer.start, first)
    outer.edge(first, inner)
    outer.edge(inner, outer.finish)
    options: dict[str, Any] = {"automatic": False, "keep_last": keep_last}
    agent, persistence = Shop().agent(store, outer, **options)
    dies_after(agent, "outer/inner/b")
    await died(agent, "go")
    again, persistence = Shop().agent(store, outer, **options)
    assert (await again.run("go", "s")).output == "go"
    assert did == ["first", "a", "b", "b"]


async def test_dying_where_one_was_sent_to(store: Store) -> None:
    """A run that was sent into a subgraph, or started there, and dies in it goes on in it."""
    did: list[str] = []

    def jump(ctx: RunContext) -> None:
        persistence.set_execution_point(ctx, "outer/inner/b", input="x")

    def noting(name: str) -> Callable[[RunContext, Any], Any]:
        def node(ctx: RunContext, value: Any) -> Any:
            did.append(name)
            return value

        node.__name__ = name
        return node

    def graph() -> Graph[Any, Any]:
        outer = Graph[Any, Any]("outer")
        first = outer.node(once("first", jump))
        between = outer.node(noting("between"))
        steps = (noting("a"), noting("b"), noting("c"))
        inner = outer.subgraph(line_of(*steps), name="inner")
        outer.edge(outer.start, first)
        outer.edge(first, between)
        outer.edge(between, inner)
        outer.edge(inner, outer.finish)
        return outer

    agent, persistence = Shop().agent(store, graph())
    dies_after(agent, "outer/inner/b")
    await died(agent, "go")
    checkpoint = await persistence.get_latest_checkpoint("s")
    assert checkpoint is not None
    again, persistence = Shop().agent(store, graph())
    assert (await again.run("go", "s")).output == "x"
    assert did == ["b", "c"]
    started, persistence = Shop().agent(store, graph())
    dies_after(started, "outer/inner/c")
    with pytest.raises(Died):
        await Persistence.run_from_checkpoint(started, checkpoint)
    again, persistence = Shop().agent(store, graph())
    assert (await again.run("go", "s")).output == "x"
    assert did == ["b", "c", "c"]


async def test_checkpoints_are_made_in_nodes_of_saved_runs(store: Store) -> None:
    """A run without a session id, a node that is not there, an id that is taken: one sentence each."""
    asked: list[RunContext] = []

    async def node(ctx: RunContext, value: Any) -> Any:
        asked.append(ctx)
        with pytest.raises(UnknownNodeError, match="'line/none'"):
            await persistence.create_checkpoint(ctx, node_path="line/none")
        await persistence.create_checkpoint(ctx, checkpoint_id="one")
        with pytest.raises(InvalidValueError, match="'one'"):
            await persistence.create_checkpoint(ctx, checkpoint_id="one")
        return value

    agent, persistence = Shop().agent(store, line_of(node))
    with pytest.raises(UsageError, match="session id"):
        await agent.run("go")
    await agent.run("go", "s")
    with pytest.raises(UsageError, match="node"):
        await persistence.create_checkpoint(asked[-1])


# --- going somewhere else ---


@pytest.mark.parametrize(("where", "expected"), [("input", "x b c"), ("output", "x c")])
async def test_the_execution_point_can_be_set(store: Store, where: str, expected: str) -> None:
    """A node can send the run to a node, or behind it, with any value and with other messages."""

    def jump(ctx: RunContext) -> None:
        value: dict[str, Any] = {where: "x"}
        persistence.set_execution_point(ctx, "line/b", messages=[user("other")], **value)

    graph = line_of(named("a"), named("b"), named("c"), once("jump", jump))
    agent, persistence = Shop().agent(store, graph)
    result = await agent.run("go", "s")
    assert result.output == expected
    assert [m.text for m in result.new_messages] == ["other"]


async def test_the_execution_point_can_be_in_a_subgraph(store: Store) -> None:
    """Each graph on the way to a node is entered; messages and storage stay as they are."""

    def jump(ctx: RunContext) -> None:
        ctx.storage["seen"] = 1
        persistence.set_execution_point(ctx, "outer/inner/b", input="x")

    def seen(ctx: RunContext, value: Any) -> Any:
        return value, ctx.storage.get("seen")

    outer = Graph[Any, Any]("outer")
    first = outer.node(once("first", jump))
    inner = outer.subgraph(line_of(named("a"), named("b"), named("c")), name="inner")
    last = outer.node(seen)
    outer.edge(outer.start, first)
    outer.edge(first, inner)
    outer.edge(inner, last)
    outer.edge(last, outer.finish)
    agent, persistence = Shop().agent(store, outer)
    assert (await agent.run("go", "s")).output == ("x b c", 1)


async def test_a_wrong_execution_point(store: Store) -> None:
    """A node that is not there, or neither an input nor an output: one sentence, and the run goes on."""

    def jump(ctx: RunContext) -> None:
        for path in ("line/none", "line", "other/a", "line/a/b"):
            with pytest.raises(UnknownNodeError, match=path):
                persistence.set_execution_point(ctx, path, input=1)
        with pytest.raises(InvalidValueError, match="either"):
            persistence.set_execution_point(ctx, "line/a")
        with pytest.raises(InvalidValueError, match="either"):
            persistence.set_execution_point(ctx, "line/a", input=1, output=1)

    agent, persistence = Shop().agent(store, line_of(named("a"), once("jump", jump)))
    assert (await agent.run("go", "s")).output == "go a"


# --- from a checkpoint ---


@pytest.mark.parametrize("has_persistence", [True, False])
async def test_a_run_from_a_checkpoint(store: Store, has_persistence: bool) -> None:
    """Any checkpoint can start a new run, also of an agent without persistence."""
    graph = line_of(nodes.node_llm_request(), lambda ctx, reply: f"{reply.text} {ctx.input}")
    dying = agent_of(store, graph, "a1")
    dies_after(dying, "line/llm_request")
    await died(dying, "q1")
    persistence = Persistence(store)
    features = [ChatMemory(store), *([persistence] if has_persistence else [])]
    reader = Persistence(store)
    agent_of(store, graph, features=[reader])
    checkpoint = await reader.get_latest_checkpoint("s")
    assert checkpoint is not None
    assert [m.text for m in checkpoint.messages] == ["q1", "a1"]
    checkpoint = Checkpoint.from_json(checkpoint.to_json())
    agent = agent_of(store, graph, "a2", features=features)
    result = await Persistence.run_from_checkpoint(agent, checkpoint)
    assert result.output == "a1 q1"
    assert [text for _, text in await said(store)] == ["q1", "a1"]
    assert await store.runs("s", unfinished=True) == [] if has_persistence else True
    result = await Persistence.run_from_checkpoint(agent, checkpoint, "q2", "other")
    assert result.output == "a2 q2"
    assert [text for _, text in await said(store, "other")] == ["q1", "a1", "q2", "a2"]


async def test_a_run_from_a_checkpoint_need_not_resume(store: Store) -> None:
    """With `resume="require"` a run can be started from a checkpoint all the same."""
    persistence = Persistence(store, resume="require")
    other = agent_of(store, line_of(named("a"), named("b")))
    dies_after(other, "line/a")
    await died(other, "q")
    features = [ChatMemory(store), persistence]
    agent = agent_of(store, line_of(named("a"), named("b")), features=features)
    checkpoint = await persistence.get_latest_checkpoint("s")
    assert checkpoint is not None
    assert (await Persistence.run_from_checkpoint(agent, checkpoint)).output == "q a b"


async def test_a_checkpoint_of_any_output_has_a_hash(store: Store) -> None:
    """A checkpoint can be in a set, whatever the node has returned."""
    persistence = Persistence(store)

    def lists(ctx: RunContext, text: str) -> list[str]:
        return [text]

    agent = agent_of(store, line_of(lists, named("b")), features=[persistence])
    dies_after(agent, "line/lists")
    await died(agent, "q")
    found = await persistence.get_checkpoints("s")
    assert {Checkpoint.from_json(found[0].to_json())} == {*found}


async def test_a_run_from_the_messages_of_a_checkpoint(store: Store) -> None:
    """With `"message_history"` the graph starts from its beginning with the checkpoint's messages."""
    graph = line_of(nodes.node_llm_request(), lambda ctx, reply: reply.text)
    dying = agent_of(store, graph, "a1")
    dies_after(dying, "line/llm_request")
    await died(dying, "q1")
    reader = Persistence(store)
    agent_of(store, graph, features=[reader])
    checkpoint = await reader.get_latest_checkpoint("s")
    assert checkpoint is not None
    agent = agent_of(store, graph, "a2")
    strategy: RollbackStrategy = "message_history"
    result = await Persistence.run_from_checkpoint(
        agent, checkpoint, "q2", rollback_strategy=strategy
    )
    assert result.output == "a2"
    assert [text for _, text in await said(store)] == ["q1", "a1", "q2", "a2"]


async def test_a_checkpoint_of_a_graph_that_has_changed(store: Store) -> None:
    """A checkpoint whose node is gone is refused by name."""
    dying = agent_of(store, line_of(named("a"), named("b")))
    dies_after(dying, "line/a")
    await died(dying, "q1")
    reader = Persistence(store)
    agent_of(store, None, features=[reader])
    checkpoint = await reader.get_latest_checkpoint("s")
    assert checkpoint is not None
    with pytest.raises(UnknownNodeError, match="'line/a'"):
        await Persistence.run_from_checkpoint(agent_of(store, line_of(named("b"))), checkpoint)
    with pytest.raises(InvalidValueError, match="not the JSON of a checkpoint"):
        Checkpoint.from_json("[]")


def test_a_tool_is_undone_by_one_thing() -> None:
    """What undoes a tool is registered once."""
    shop = Shop()
    with pytest.raises(InvalidValueError, match="'buy'"):
        shop.registry.register(shop.buy, shop.send)
