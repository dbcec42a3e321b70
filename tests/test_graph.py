"""Graphs: nodes, edges, subgraphs, parallel branches, limits, and every ready node and step of an edge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tenure import (
    Agent,
    AssistantMessage,
    ChatMemory,
    Event,
    Feature,
    InMemoryStore,
    InvalidValueError,
    IterationLimitError,
    Message,
    ModelRequestError,
    NodeCompleted,
    NodeStarted,
    RunContext,
    StuckInNodeError,
    Text,
    ToolCall,
    ToolMessage,
    ToolOutcome,
    WholeHistory,
    assistant,
    tool,
    tool_loop,
    user,
)
from tenure import graph_edges as edges
from tenure import graph_nodes as nodes
from tenure.graph import BranchOutcome, Graph, fold, select_by
from tenure.testing import ManualClock, ScriptedModel

pytestmark = pytest.mark.anyio


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def fail() -> str:
    """Fail."""
    raise RuntimeError("broken")


def calls(*names: str, text: str = "") -> AssistantMessage:
    """A reply that calls tools."""
    said = [Text(text=text)] if text else []
    made = [
        ToolCall(id=f"c{n}", name=name, args='{"a": 1, "b": 2}' if name == "add" else "{}")
        for n, name in enumerate(names)
    ]
    return AssistantMessage(parts=(*said, *made))


async def run(graph: Graph[Any, Any], *replies: Any, text: str = "hi", **options: Any) -> Any:
    """What a run of the graph gives."""
    return (await agent(graph, *replies, **options).run(text)).output


def agent(graph: Graph[Any, Any], *replies: Any, **options: Any) -> Agent:
    return Agent(model=ScriptedModel([*replies]), tools=[add, fail], strategy=graph, **options)


async def through(node: Callable[[RunContext, Any], Any], value: Any, *replies: Any) -> Any:
    """What one node makes of a value, and the conversation afterwards."""
    seen: list[list[tuple[str, str]]] = []
    graph = Graph[str, object]()

    @graph.node
    def give(ctx: RunContext, text: str) -> Any:
        return value

    @graph.node
    def look(ctx: RunContext, output: object) -> object:
        seen.append([(m.role, m.text) for m in ctx.conversation])
        return output

    tested = graph.node(node, name="tested")
    graph.edge(graph.start, give)
    graph.edge(give, tested)
    graph.edge(tested, look)
    graph.edge(look, graph.finish)
    output = await run(graph, *replies)
    return output, seen[0]


# --- the engine ----------------------------------------------------------------------------------


async def test_nodes_run_in_the_order_of_edges() -> None:
    """Each node gets what the one before has returned, sync or async; the last value is the output."""
    graph = Graph[str, int]()

    @graph.node
    async def length(ctx: RunContext, text: str) -> int:
        return len(text)

    @graph.node
    def double(ctx: RunContext, number: int) -> int:
        return 2 * number

    graph.edge(graph.start, length)
    graph.edge(length, double)
    graph.edge(double, graph.finish)
    assert await run(graph, text="four") == 8


async def test_the_first_matching_edge_is_taken() -> None:
    """Edges are tried in the order in which they were added, with their conditions and changes."""
    graph = Graph[str, str]()

    async def is_long(text: str) -> bool:
        return len(text) > 3

    @graph.node
    def same(ctx: RunContext, text: str) -> str:
        return text

    graph.edge(graph.start, same)
    graph.edge(same, graph.finish, edges.on_condition(is_long), edges.transformed(str.upper))
    graph.edge(same, graph.finish, edges.on_condition(lambda t: t == "no"), edges.transformed(len))
    graph.edge(same, graph.finish)
    assert [await run(graph, text=text) for text in ("long one", "no", "yes")] == [
        "LONG ONE",
        2,
        "yes",
    ]


async def test_a_node_without_a_way_on_is_an_error() -> None:
    """B4: when no edge matches, the run fails with the node's path, and nothing of it is stored."""
    store = InMemoryStore()
    graph = Graph[str, str]("main")
    inner = Graph[str, str]("inner")
    stuck = inner.node(lambda ctx, text: 7, name="stuck")
    inner.edge(inner.start, stuck)
    inner.edge(stuck, inner.finish, edges.on_is_instance(str))
    sub = graph.subgraph(inner)
    graph.edge(graph.start, sub)
    graph.edge(sub, graph.finish)
    made = agent(graph, features=[ChatMemory(store)])
    with pytest.raises(StuckInNodeError, match=r"'main/inner/stuck': its output of type int"):
        await made.run("hi", "s")
    assert await store.conversation("s") is None


async def test_the_number_of_nodes_is_limited() -> None:
    """B4: each executed node counts against `max_iterations`, those of subgraphs and branches too."""
    graph = Graph[str, str]()
    again = graph.node(lambda ctx, text: text, name="again")
    graph.edge(graph.start, again)
    graph.edge(again, again)
    with pytest.raises(IterationLimitError, match="max_iterations=7 nodes"):
        await run(graph, max_iterations=7)

    outer = Graph[str, str]("outer")
    inner = Graph[str, str]("inner")
    step = inner.node(lambda ctx, text: text, name="step")
    inner.edge(inner.start, step)
    inner.edge(step, inner.finish)
    both = outer.parallel({"a": inner, "b": inner}, name="both", merge=fold("", lambda x, y: x + y))
    outer.edge(outer.start, both)
    outer.edge(both, outer.finish)
    assert await run(outer, max_iterations=3) == "hihi"
    with pytest.raises(IterationLimitError):
        await run(outer, max_iterations=2)


async def test_a_node_that_raises_fails_the_run() -> None:
    """What a node raises is what the caller gets."""
    graph = Graph[str, str]()

    @graph.node
    def broken(ctx: RunContext, text: str) -> str:
        raise ZeroDivisionError("x")

    graph.edge(graph.start, broken)
    graph.edge(broken, graph.finish)
    with pytest.raises(ZeroDivisionError):
        await run(graph)


async def test_events_and_hooks_have_paths() -> None:
    """Each node is told of by an event and a hook before and after, with its path."""
    seen: list[str] = []

    class Watching(Feature):
        async def before_node(self, ctx: RunContext, path: str, value: object) -> None:
            seen.append(f"before {path} {value}")

        async def after_node(self, ctx: RunContext, path: str, output: object) -> None:
            seen.append(f"after {path} {output}")

    inner = Graph[str, int]("inner")
    count = inner.node(lambda ctx, text: len(text), name="count")
    inner.edge(inner.start, count)
    inner.edge(count, inner.finish)
    graph = Graph[str, int]("main")
    sub = graph.subgraph(inner, name="sub")
    graph.edge(graph.start, sub)
    graph.edge(sub, graph.finish)
    made = agent(graph, features=[Watching()])

    @made.on_event
    def watch(event: Event) -> None:
        if isinstance(event, NodeStarted):
            seen.append(f"started {event.path} {event.input}")
        elif isinstance(event, NodeCompleted):
            seen.append(f"completed {event.path} {event.output}")

    await made.run("hi")
    assert seen == [
        "before main/sub hi",
        "started main/sub hi",
        "before main/sub/count hi",
        "started main/sub/count hi",
        "after main/sub/count 2",
        "completed main/sub/count 2",
        "after main/sub 2",
        "completed main/sub 2",
    ]


async def test_a_subgraph_has_tools_of_its_own() -> None:
    """Inside a subgraph the chosen tools are offered; the prompt is shared, and the tools come back."""
    offered: list[list[str]] = []

    async def look(ctx: RunContext, value: str) -> str:
        offered.append([spec.name for spec in ctx.llm.tools])
        return value

    def inner(name: str, *, fails: bool = False) -> Graph[str, str]:
        made = Graph[str, str](name)
        looking = made.node(look, name="look")
        asking = made.node(nodes.node_llm_request(), name="ask")
        made.edge(made.start, looking)
        made.edge(looking, asking)
        made.edge(asking, made.finish, edges.on_assistant_message())
        return made

    graph = Graph[str, str]("main")
    first = graph.subgraph(inner("all"))
    second = graph.subgraph(inner("some"), tools=[add])
    third = graph.subgraph(inner("none"), tools="none")
    last = graph.node(look, name="last")
    for source, target in [
        (graph.start, first),
        (first, second),
        (second, third),
        (third, last),
        (last, graph.finish),
    ]:
        graph.edge(source, target)
    made = agent(graph, "one", "two", "three")
    assert (await made.run("hi")).output == "three"
    assert offered == [["add", "fail"], ["add"], [], ["add", "fail"]]
    assert isinstance(made.model, ScriptedModel)
    assert [m.text for m in made.model.requests[2].messages] == ["hi", "one", "one", "two", "two"]


async def test_tools_come_back_when_a_subgraph_fails() -> None:
    """A subgraph that raises has changed no tools for whoever catches that."""
    inner = Graph[str, str]("inner")
    broken = inner.node(nodes.node_llm_request(), name="broken")
    inner.edge(inner.start, broken)
    graph = Graph[str, str]("main")
    sub = graph.subgraph(inner, tools="none")

    async def guarded(ctx: RunContext, text: str) -> str:
        with pytest.raises(ModelRequestError):
            await sub.function(ctx, text)
        return ",".join(spec.name for spec in ctx.llm.tools)

    guard = graph.node(guarded)
    graph.edge(graph.start, guard)
    graph.edge(guard, graph.finish)
    assert await run(graph, ModelRequestError("HTTP 500")) == "add,fail"


async def test_branches_run_at_once_on_forks() -> None:
    """Branches see none of each other's prompt; the run goes on with that of the chosen one."""
    barrier = asyncio.Barrier(3)

    def branch(name: str) -> Callable[[RunContext, str], Any]:
        async def asking(ctx: RunContext, text: str) -> str:
            await barrier.wait()
            ctx.storage["who"] = name
            async with ctx.llm.write_session() as session:
                session.append_prompt(user(f"{text} {name}"))
                reply = await session.request_llm()
            await barrier.wait()
            assert ctx.storage["who"] == name
            return reply.text

        return asking

    graph = Graph[str, str]()
    tried = graph.parallel(
        {name: branch(name) for name in ("a", "b", "c")},
        name="try",
        merge=select_by(len),
    )

    @graph.node
    def look(ctx: RunContext, answer: str) -> list[object]:
        return [answer, ctx.storage["who"], [m.text for m in ctx.conversation]]

    graph.edge(graph.start, tried)
    graph.edge(tried, look)
    graph.edge(look, graph.finish)
    made = agent(
        graph,
        *[lambda r: "answer to " + r.messages[-1].text * ("b" in r.messages[-1].text) * 2] * 3,
    )
    result = await made.run("hi")
    assert result.output == ["answer to hi bhi b", "b", ["hi b", "answer to hi bhi b"]]
    assert [m.text for m in result.new_messages] == ["hi b", "answer to hi bhi b"]


async def test_merges_make_a_value() -> None:
    """A merge may make any value, sync or async; the prompt is then what it was before the branches."""

    async def merge(outcomes: Any) -> str:
        assert all(isinstance(outcome, BranchOutcome) for outcome in outcomes)
        return " + ".join(f"{outcome.name}={outcome.output}" for outcome in outcomes)

    graph = Graph[str, str]()
    both = graph.parallel(
        {"ask": nodes.node_llm_request(), "count": lambda ctx, text: len(text)},
        name="both",
        merge=merge,
    )

    @graph.node
    def look(ctx: RunContext, merged: str) -> object:
        return [merged, len(ctx.conversation), ctx.usage.requests]

    graph.edge(graph.start, both)
    graph.edge(both, look)
    graph.edge(look, graph.finish)
    output = await run(graph, assistant("x"))
    assert output[0].startswith("ask=AssistantMessage(")
    assert output[0].endswith("count=2")
    assert output[1] == 0


async def test_a_failing_branch_ends_the_others() -> None:
    """When one branch fails the others are cancelled, and its error is raised."""
    cancelled: list[str] = []

    async def slow(ctx: RunContext, text: str) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append("slow")
            raise

    async def failing(ctx: RunContext, text: str) -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    graph = Graph[str, object]()
    both = graph.parallel({"slow": slow, "failing": failing}, name="both", merge=select_by(len))
    graph.edge(graph.start, both)
    graph.edge(both, graph.finish)
    with pytest.raises(ZeroDivisionError):
        await run(graph)
    assert cancelled == ["slow"]


def test_wrong_graphs_are_refused() -> None:
    """A name that is taken, empty or has a slash, a node of another graph, no branch: errors at once."""
    graph, other = Graph[str, str](), Graph[str, str]("other")
    one = graph.node(lambda ctx, text: text, name="one")
    foreign = other.node(lambda ctx, text: text, name="one")
    for wrong in (
        lambda: graph.node(lambda ctx, text: text, name="one"),
        lambda: graph.node(lambda ctx, text: text, name="a/b"),
        lambda: graph.node(lambda ctx, text: text, name=""),
        lambda: graph.node(7, name="seven"),  # type: ignore[call-overload]
        lambda: graph.node(lambda ctx, text: text, name="start"),
        lambda: graph.edge(one, foreign),
        lambda: graph.edge(graph.finish, one),
        lambda: graph.edge(one, graph.start),
        lambda: graph.parallel({}, name="p", merge=select_by(len)),
    ):
        with pytest.raises(InvalidValueError):
            wrong()


def test_a_graph_draws_itself() -> None:
    """`mermaid()` has every node and edge, what edges let pass, and subgraphs as boxes."""
    inner = Graph[str, str]("inner")
    inner.edge(inner.start, inner.finish)
    graph = Graph[str, str]()
    ask = graph.node(nodes.node_llm_request(), name='ask "it"')
    sub = graph.subgraph(inner)
    graph.edge(graph.start, ask)
    graph.edge(ask, sub, edges.on_tool_call(add), edges.transformed(str))
    graph.edge(sub, graph.finish)
    assert (
        graph.mermaid()
        == """flowchart TD
    n0(["start"])
    n1(["finish"])
    n2["ask #quot;it#quot;"]
    subgraph n3["inner"]
        n3_n0(["start"])
        n3_n1(["finish"])
        n3_n0 --> n3_n1
    end
    n0 --> n2
    n2 -->|"calls add, str"| n3
    n3 --> n1
"""
    )
    assert '-->|"calls_tools"|' in tool_loop.mermaid()


async def test_the_default_loop_is_a_graph() -> None:
    """The default strategy tells of its nodes, and its nodes do not count against `max_iterations`."""
    made = Agent(model=ScriptedModel([calls("add"), "3"]), tools=[add], max_iterations=2)
    paths: list[str] = []

    @made.on_event
    def watch(event: Event) -> None:
        if isinstance(event, NodeStarted):
            paths.append(event.path)

    assert str(await made.run("1 + 2")) == "3"
    names = ["say", "ask", "execute_tools", "ask"]
    assert paths == [f"tool_loop/{name}" for name in names]


async def test_runs_of_one_graph_at_once_are_apart() -> None:
    """A graph holds no state of a run."""
    graph = Graph[str, str]()
    ask = graph.node(nodes.node_llm_request(), name="ask")
    graph.edge(graph.start, ask)
    graph.edge(ask, graph.finish, edges.on_assistant_message())
    made = agent(graph, *[lambda r: f"re {r.messages[-1].text}"] * 20)
    results = await asyncio.gather(*(made.run(f"q{n}") for n in range(20)))
    assert [str(result) for result in results] == [f"re q{n}" for n in range(20)]


# --- edges of spec G ---------------------------------------------------------------------------------

REPLY = calls("add", "fail", text="Let me see.")
RESULTS = tool_results = ToolMessage(
    parts=tuple(
        ToolOutcome(kind="success", parts=(Text(text="3"),)).result_of(c) for c in REPLY.tool_calls
    )
)
GOOD = ToolOutcome(kind="success", parts=(Text(text="3"),), value=3)
BAD = ToolOutcome(kind="failure", parts=(Text(text="broken"),))


@pytest.mark.parametrize(
    ("step", "value", "passed"),
    [
        (edges.on_condition(bool), 1, 1),
        (edges.on_condition(bool), 0, None),
        (edges.transformed(str), 1, "1"),
        (edges.on_is_instance(int), 1, 1),
        (edges.on_is_instance((str, bytes)), 1, None),
        (edges.on_tool_calls(), REPLY, REPLY),
        (edges.on_tool_calls(), assistant("x"), None),
        (edges.on_tool_calls(), "x", None),
        (edges.on_tool_calls(lambda call: call.name == "fail"), REPLY, REPLY),
        (edges.on_tool_calls(lambda call: call.name == "other"), REPLY, None),
        (edges.on_multiple_tool_calls(), REPLY, REPLY),
        (edges.on_multiple_tool_calls(), calls("add"), None),
        (edges.on_multiple_tool_calls(lambda call: call.name == "add"), REPLY, None),
        (edges.on_tool_call(add), REPLY, REPLY),
        (edges.on_tool_call("other"), REPLY, None),
        (edges.on_tool_not_called("other"), REPLY, REPLY),
        (edges.on_tool_not_called(add), REPLY, None),
        (edges.on_tool_not_called(add), "x", None),
        (edges.on_assistant_message(), assistant("x"), "x"),
        (edges.on_assistant_message(), REPLY, None),
        (edges.on_assistant_message(lambda reply: reply.text == "y"), assistant("x"), None),
        (edges.on_tool_results(), RESULTS, RESULTS),
        (edges.on_tool_results(lambda result: result.is_error), RESULTS, None),
        (edges.on_tool_results(), ToolMessage(parts=(Text(text="x"),)), None),
        (edges.on_tool_result(add), RESULTS, RESULTS),
        (edges.on_tool_result("other"), RESULTS, None),
        (edges.on_successful(), GOOD, 3),
        (edges.on_successful(), BAD, None),
        (edges.on_failure(), BAD, "broken"),
        (edges.on_failure(), GOOD, None),
    ],
)  # fmt: skip
async def test_steps_of_edges(step: edges.Step, value: object, passed: object) -> None:
    """Each step lets pass what it is named for, whole, and nothing else (None here)."""
    found = await step.passed(value)
    assert found == (edges.NO_MATCH if passed is None else passed)


async def test_calls_beat_text_and_none_is_left_unanswered() -> None:
    """A reply with text and calls goes to the tools first, and a condition on one call answers them all."""
    graph = Graph[str, str]()
    ask = graph.node(nodes.node_llm_request(), name="ask")
    execute = graph.node(nodes.node_execute_tools(), name="execute")
    send = graph.node(nodes.node_llm_send_tool_results(), name="send")
    graph.edge(graph.start, ask)
    graph.edge(ask, graph.finish, edges.on_assistant_message())
    graph.edge(ask, execute, edges.on_tool_calls(lambda call: call.name == "add"))
    graph.edge(execute, send)
    graph.edge(send, graph.finish, edges.on_assistant_message())
    made = agent(graph, REPLY, "done")
    assert (await made.run("hi")).output == "done"
    assert isinstance(made.model, ScriptedModel)
    results = made.model.requests[1].messages[-1].tool_results
    assert [result.call_id for result in results] == ["c0", "c1"]


# --- nodes of spec G ---------------------------------------------------------------------------------


async def test_node_do_nothing() -> None:
    """It passes the value on, and the prompt is as it was."""
    assert await through(nodes.node_do_nothing(), 7) == (7, [])


async def test_node_append_prompt() -> None:
    """It appends messages, or what functions make of the value, and passes the value on."""
    node = nodes.node_append_prompt(user("a"), lambda value: assistant(f"got {value}"))
    assert await through(node, 7) == (7, [("user", "a"), ("assistant", "got 7")])


async def test_node_llm_request() -> None:
    """It appends what was said, a text or a message, and the reply; calls may be switched off."""
    output, said = await through(nodes.node_llm_request(), "q", REPLY)
    assert output.tool_calls == REPLY.tool_calls
    assert said == [("user", "q"), ("assistant", "Let me see.")]
    output, said = await through(nodes.node_llm_request(allow_tool_calls=False), user("q"), "a")
    assert (output.text, said) == ("a", [("user", "q"), ("assistant", "a")])


async def test_node_llm_request_multiple() -> None:
    """Its output are the parts of the reply."""
    output, _ = await through(nodes.node_llm_request_multiple(), "q", REPLY)
    assert [type(part).__name__ for part in output] == ["Text", "ToolCall", "ToolCall"]


@pytest.mark.parametrize(
    ("node", "choice"),
    [
        (nodes.node_llm_request_only_calling_tools(), "required"),
        (nodes.node_llm_request_force_one_tool(add), "add"),
        (nodes.node_llm_send_tool_results_only_calling_tools(), "required"),
        (nodes.node_llm_send_tool_results_force_one_tool("add"), "add"),
        (nodes.node_llm_send_tool_results(), None),
    ],
)
async def test_nodes_that_force_calls(node: Any, choice: str | None) -> None:
    """They append what they are given, and force calls for one request."""
    seen: list[Any] = []

    def reply(request: Any) -> AssistantMessage:
        seen.append(request.params.tool_choice)
        return calls("add")

    await through(node, "q", reply)
    assert getattr(seen[0], "name", seen[0]) == choice


async def test_node_llm_request_structured() -> None:
    """Its output is the result; what was said stays when the answer is not of the type."""
    output, said = await through(nodes.node_llm_request_structured(int), "q", '{"result": 3}')
    assert (output.value, len(said)) == (3, 2)
    output, said = await through(nodes.node_llm_request_structured(int, retries=0), "q", "x")
    assert (output.error is not None, said) == (True, [("user", "q")])


async def test_node_llm_request_streaming() -> None:
    """It calls a function with every frame, and its output is the whole reply, which is recorded."""
    frames: list[str] = []

    async def on_frame(frame: Any) -> None:
        frames.append(type(frame).__name__)

    output, said = await through(nodes.node_llm_request_streaming(on_frame), "q", "a b")
    assert (output.text, said[-1]) == ("a b", ("assistant", "a b"))
    assert frames[-1] == "StreamEnd"
    output, _ = await through(nodes.node_llm_request_streaming(), "q", "a")
    assert output.text == "a"


@pytest.mark.parametrize("parallel", [True, False])
async def test_node_execute_tools(parallel: bool) -> None:
    """Its output are the results in the order of the calls, errors included; nothing is recorded."""
    output, said = await through(nodes.node_execute_tools(parallel=parallel), REPLY)
    assert [(r.call_id, r.is_error) for r in output.tool_results] == [("c0", False), ("c1", True)]
    assert said == []


async def test_tools_run_one_after_the_other_when_asked_to() -> None:
    """`parallel=False` begins a tool when the one before has ended."""
    log: list[str] = []

    @tool
    async def slow(n: int) -> int:
        """Take a moment."""
        log.append(f"begin {n}")
        await asyncio.sleep(0.001)
        log.append(f"end {n}")
        return n

    graph = Graph[str, object]()
    reply = AssistantMessage(
        parts=tuple(ToolCall(id=str(n), name="slow", args=f'{{"n": {n}}}') for n in range(3))
    )
    give = graph.node(lambda ctx, text: reply, name="give")
    execute = graph.node(nodes.node_execute_tools(parallel=False), name="execute")
    graph.edge(graph.start, give)
    graph.edge(give, execute)
    graph.edge(execute, graph.finish)
    await Agent(model=ScriptedModel([]), tools=[slow], strategy=graph).run("")
    assert log == [f"{what} {n}" for n in range(3) for what in ("begin", "end")]


async def test_node_execute_single_tool() -> None:
    """It runs a tool that code has chosen, and tells the model in two messages, unless told not to."""
    node = nodes.node_execute_single_tool(add)
    output, said = await through(node, {"a": 1, "b": 2})
    assert output.value == 3
    assert [role for role, _ in said] == ["user", "user"]
    assert "add" in said[0][1]
    assert said[1][1].endswith("3")
    _, said = await through(
        nodes.node_execute_single_tool(add, append_prompt=False), {"a": 1, "b": 2}
    )
    assert said == []


async def test_a_single_tool_is_told_of_by_the_clock_of_the_run() -> None:
    """What `node_execute_single_tool` tells the model has its times from the agent's clock."""
    clock = ManualClock()
    graph = Graph[str, object]()
    give = graph.node(lambda ctx, text: {"a": 1, "b": 2}, name="give")
    add_them = graph.node(nodes.node_execute_single_tool(add), name="add")
    graph.edge(graph.start, give)
    graph.edge(give, add_them)
    graph.edge(add_them, graph.finish)
    result = await agent(graph, clock=clock).run("")
    assert [message.created_at for message in result.new_messages] == [clock.now()] * 2


async def test_node_llm_compress_history() -> None:
    """It puts a summary in the place of the history, and passes the value on."""
    graph = Graph[str, object]()
    ask = graph.node(nodes.node_llm_request(), name="ask")
    compress = graph.node(nodes.node_llm_compress_history(WholeHistory()), name="compress")

    @graph.node
    def look(ctx: RunContext, reply: Message) -> object:
        return [reply.text, [m.text for m in ctx.conversation]]

    graph.edge(graph.start, ask)
    graph.edge(ask, compress)
    graph.edge(compress, look)
    graph.edge(look, graph.finish)
    assert await run(graph, "a", "in short") == ["a", ["hi", "in short"]]


async def test_node_set_structured_output() -> None:
    """It tells the model the type in a message that stays, and passes the value on."""
    output, [(role, text)] = await through(nodes.node_set_structured_output(int), 7)
    assert (output, role) == (7, "user")
    assert '"integer"' in text
