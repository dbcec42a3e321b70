"""Graphs: strategies of named nodes, and edges that say which node comes next.

A graph is a strategy: `Agent(strategy=graph)`. A node is a function of the run's context and one value, and
returns the value for the next node. After a node its edges are looked at in the order in which they were
added, and the first one that matches is taken. A graph can be a node of another one; branches run at the
same time, each with a prompt of its own, and are merged into one.

`graph_nodes.py` has ready nodes, `graph_edges.py` the steps of edges, `tool_selection.py` which tools a
subgraph offers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar, cast, overload

from tenure.errors import InvalidValueError, StuckInNodeError, UnknownNodeError
from tenure.graph_edges import NO_MATCH, Step
from tenure.parallel import mapped
from tenure.run import RunContext
from tenure.run_nodes import resumed_branch, resumed_in, way_on
from tenure.signatures import awaited
from tenure.tool_selection import ToolSelection, checked_selection, offering

I = TypeVar("I")  # noqa: E741 # what goes in
O = TypeVar("O")  # noqa: E741 # what comes out
A = TypeVar("A")
T = TypeVar("T")

NodeFunction: TypeAlias = Callable[[RunContext, I], O | Awaitable[O]]
"""What a node does: a function, sync or async, of the run's context and a value."""

START, FINISH = "start", "finish"


@dataclass(frozen=True, slots=True, eq=False)
class Node(Generic[I, O]):
    """A step of a graph, made by its methods.

    Args:
        name: Its name, unique in its graph.
        function: What it does.
    """

    name: str
    function: NodeFunction[I, O]

    def __repr__(self) -> str:
        return f"Node({self.name!r})"


@dataclass(frozen=True, slots=True)
class Edge:
    """A way from one node to another, for what its steps let pass.

    Args:
        source: Where it begins.
        target: Where it ends.
        steps: Conditions and changes, in order.
    """

    source: Node[Any, Any]
    target: Node[Any, Any]
    steps: tuple[Step, ...]

    async def passed(self, value: object) -> object:
        """What comes through of a value; `NO_MATCH` if it does not."""
        for step in self.steps:
            value = await step.passed(value)
            if value is NO_MATCH:
                break
        return value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BranchOutcome(Generic[O]):
    """What came of one of several branches.

    Args:
        name: The branch.
        output: What it returned.
        ctx: Its context: a prompt and a storage of its own.
    """

    name: str
    output: O
    ctx: RunContext


Merge: TypeAlias = Callable[[Sequence[BranchOutcome[Any]]], object]
"""Makes one of the outcomes of branches, in their order: one of them, or any other value. May be async."""


@dataclass(eq=False)
class Graph(Generic[I, O]):
    """A strategy of nodes and edges.

    Args:
        name: Its name, at the head of its nodes' paths.
        counts_nodes: Whether each executed node counts against the agent's `max_iterations`; model
            calls do by themselves.
        description: What it is for, in a sentence; a model that chooses its tools is told.

    Attributes:
        start: Where an input comes in; it passes on what it gets.
        finish: Where the output goes out.
    """

    name: str = "strategy"
    counts_nodes: bool = True
    description: str = ""
    start: Node[I, I] = field(init=False)
    finish: Node[O, O] = field(init=False)
    _nodes: dict[str, Node[Any, Any]] = field(init=False, repr=False)
    _edges: list[Edge] = field(init=False, repr=False, default_factory=list[Edge])
    _graphs: dict[str, Graph[Any, Any]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise InvalidValueError(f"{self.name!r} cannot name a graph; leave the slash out.")
        self.start, self.finish = Node(START, _same), Node(FINISH, _same)
        self._nodes, self._graphs = {START: self.start, FINISH: self.finish}, {}

    # --- building ---

    @overload
    def node(
        self, function: Callable[[RunContext, A], Awaitable[T]], /, *, name: str | None = None
    ) -> Node[A, T]: ...
    @overload
    def node(
        self, function: Callable[[RunContext, A], T], /, *, name: str | None = None
    ) -> Node[A, T]: ...
    def node(
        self, function: Callable[[RunContext, Any], Any], /, *, name: str | None = None
    ) -> Node[Any, Any]:
        """Add a node; usable as a decorator.

        Args:
            function: What it does.
            name: Its name; the function's own by default.

        Raises:
            InvalidValueError: Another node has this name, or it is empty or has a slash.
        """
        chosen = name if name is not None else getattr(function, "__name__", "")
        if not callable(function):
            raise InvalidValueError(f"{function!r} is no function of a context and a value.")
        if not chosen or "/" in chosen:
            raise InvalidValueError(f"{chosen!r} cannot name a node; give name= without a slash.")
        if chosen in self._nodes:
            raise InvalidValueError(
                f"The graph {self.name!r} has a node {chosen!r} already; give each its own name."
            )
        made: Node[Any, Any] = Node(chosen, function)
        self._nodes[chosen] = made
        if isinstance(function, Graph):
            self._graphs[chosen] = cast("Graph[Any, Any]", function)
        return made

    def edge(self, source: Node[Any, Any], target: Node[Any, Any], *steps: Step) -> None:
        """Add a way from one node to another. Earlier ones are tried first.

        Args:
            source: Where it begins.
            target: Where it ends.
            *steps: What it lets pass, and what it makes of that; see `graph_edges.py`. Without any it
                lets everything pass.

        Raises:
            InvalidValueError: A node is of another graph, or the way leads out of the finish or to
                the start.
        """
        for each in (source, target):
            if self._nodes.get(each.name) is not each:
                raise InvalidValueError(f"{each!r} is no node of the graph {self.name!r}.")
        if source is self.finish or target is self.start:
            raise InvalidValueError("No edge leads out of the finish, or to the start.")
        self._edges.append(Edge(source, target, steps))

    def subgraph(
        self, graph: Graph[I, T], *, name: str | None = None, tools: ToolSelection = "all"
    ) -> Node[I, T]:
        """Add another graph as a node. It shares the prompt.

        Args:
            graph: The other graph.
            name: The node's name; the graph's own by default.
            tools: What it offers the model; afterwards the tools are as before. `"auto"` asks the
                model first which of the tools offered then are relevant to the input, in a request
                of its own that leaves nothing in the prompt; without any tool nothing is asked.

        Raises:
            InvalidValueError: The name is taken, or `tools` is another text.
            StructuredOutputError: (When run) which tools the model has chosen cannot be read.
        """
        selection = checked_selection(tools)

        async def run(ctx: RunContext, value: I) -> T:
            task = graph.description or made.name
            async with offering(ctx, selection, task=task, given=value):
                return await graph(ctx, value)

        made = self.node(run, name=name if name is not None else graph.name)
        self._graphs[made.name] = graph
        return made

    def parallel(
        self,
        branches: Mapping[str, NodeFunction[Any, Any]],
        *,
        name: str,
        merge: Merge,
        concurrency: int = 16,
    ) -> Node[Any, Any]:
        """Add a node whose branches run at the same time on the same value.

        Each has a prompt and a storage of its own, which begin as they are now. When one fails the others
        are cancelled, and its error is raised.

        Args:
            branches: Functions or graphs, by name.
            name: The node's name.
            merge: Makes one of them. When it returns one of the outcomes, the run goes on with that
                branch's prompt and storage; the others' are let go. With any other value the run goes on
                as it was before.
            concurrency: How many run at once.

        Raises:
            InvalidValueError: There is no branch, or the name is taken.
        """
        if not branches or any(not branch or "/" in branch for branch in branches):
            raise InvalidValueError(
                f"The branches {[*branches]} need at least one, and names without a slash."
            )

        async def one(item: tuple[str, RunContext, object]) -> BranchOutcome[Any]:
            branch, own, value = item
            resumed = resumed_branch(own, "/".join(own.branch_path))
            if resumed is not None:
                return BranchOutcome(name=branch, output=resumed[1], ctx=own)
            work = partial(branches[branch], own, value)
            if isinstance(branches[branch], Graph):
                own.enterable = own.branch_path
            output = await own.execute_node(branch, value, work, counts=False)
            return BranchOutcome(name=branch, output=output, ctx=own)

        async def run(ctx: RunContext, value: object) -> object:
            items = [(branch, ctx.fork(branch), value) for branch in branches]
            outcomes = mapped(one, items, concurrency=concurrency, ordered=False)
            async with aclosing(outcomes):  # as they come, so that a failure is seen at once
                found = {outcome.name: outcome async for outcome in outcomes}
            merged = await awaited(merge([found[branch] for branch in branches]))
            if isinstance(merged, BranchOutcome):
                chosen = cast("BranchOutcome[Any]", merged)
                ctx.adopt(chosen.ctx)
                return chosen.output
            return merged

        return self.node(run, name=name)

    # --- running ---

    async def __call__(self, ctx: RunContext, value: I) -> O:
        """Run from the start to the finish.

        Raises:
            StuckInNodeError: No edge of a node matches what it returned.
            IterationLimitError: The run has executed too many nodes.
            UnknownNodeError: The run is resumed at a node that the graph has not.
            Exception: Whatever a node has raised.
        """
        around, was_opaque = ctx.node_path, ctx.is_opaque
        # What a node's function calls is a part of that node, as often as it calls it.
        ctx.is_opaque = was_opaque or around not in ((), ctx.enterable)
        ctx.enterable = ()
        ctx.node_path = around or (self.name,)  # inside of another graph the node has its name
        try:
            node, passed = await self._entered(ctx, value)
            while node is not self.finish:
                work = partial(node.function, ctx, passed)
                if node.name in self._graphs:
                    ctx.enterable = (*ctx.node_path, node.name)
                output = await ctx.execute_node(node.name, passed, work, counts=self.counts_nodes)
                node, passed = await self._next(ctx, node, output)
            return cast("O", passed)
        finally:
            ctx.node_path, ctx.is_opaque = around, was_opaque

    async def _entered(self, ctx: RunContext, value: object) -> tuple[Node[Any, Any], object]:
        """The first node to execute, and its input: behind the start, or where the run is resumed."""
        scope = "/".join(ctx.node_path)
        resumed = resumed_in(ctx, scope)
        if resumed is None:
            node, passed = await self._next(ctx, self.start, value)
        else:
            point, passed = resumed
            known = self._nodes.get(point.name)
            if known is None:
                names = ", ".join(repr(name) for name in self._nodes if name not in (START, FINISH))
                raise UnknownNodeError(
                    f"The run cannot be resumed: the graph has no node {point.path!r}; there are "
                    f"{names}. Give it its name back, or begin anew with resume='never'."
                )
            if point.is_input:
                node = known
            else:
                node, passed = await self._next(ctx, known, passed)
        return self._nodes[way_on(ctx, scope, node.name, self._graphs)], passed

    async def _next(
        self, ctx: RunContext, node: Node[Any, Any], value: object
    ) -> tuple[Node[Any, Any], object]:
        for edge in self._edges:
            if edge.source is node and (passed := await edge.passed(value)) is not NO_MATCH:
                return edge.target, passed
        path = "/".join((*ctx.node_path, node.name))
        raise StuckInNodeError(
            f"The strategy is stuck in node {path!r}: its output of type {type(value).__name__} matches "
            "no edge; add one for it, such as an edge without a condition behind the others."
        )

    def require(self, path: str) -> None:
        """Check that there is a node: the names of this graph and of the nodes from the outside in.

        Raises:
            UnknownNodeError: There is none, or the way to it leads through something else than subgraphs.
        """
        first, *names = path.split("/")
        graph: Graph[Any, Any] | None = self if first == self.name else None
        for depth, name in enumerate(names):
            if graph is None or name not in graph._nodes:
                break
            if depth == len(names) - 1:
                return
            graph = graph._graphs.get(name)
        raise UnknownNodeError(
            f"The graph {self.name!r} has no node {path!r}; a path begins with the graph's name, and "
            f"leads through subgraphs, as in '{self.name}/node'."
        )

    # --- drawing ---

    def mermaid(self) -> str:
        """Return the graph as a Mermaid flowchart, subgraphs included."""
        return "\n".join(["flowchart TD", *self._lines("", 1)]) + "\n"

    def _lines(self, prefix: str, depth: int) -> list[str]:
        pad, lines = "    " * depth, list[str]()
        ids = {name: f"{prefix}n{number}" for number, name in enumerate(self._nodes)}
        for name, node_id in ids.items():
            inner = self._graphs.get(name)
            if inner is not None:
                lines.append(f'{pad}subgraph {node_id}["{_quoted(name)}"]')
                lines += inner._lines(f"{node_id}_", depth + 1)
                lines.append(f"{pad}end")
            elif name in (START, FINISH):
                lines.append(f'{pad}{node_id}(["{name}"])')
            else:
                lines.append(f'{pad}{node_id}["{_quoted(name)}"]')
        for edge in self._edges:
            label = _quoted(", ".join(step.label for step in edge.steps))
            arrow = f'-->|"{label}"|' if label else "-->"
            lines.append(f"{pad}{ids[edge.source.name]} {arrow} {ids[edge.target.name]}")
        return lines


def select_by(key: Callable[[Any], Any]) -> Merge:
    """Return a merge that takes the branch whose output has the highest key, the first of equals."""
    return lambda outcomes: max(outcomes, key=lambda outcome: key(outcome.output))


def fold(initial: T, function: Callable[[T, Any], T]) -> Merge:
    """Return a merge that makes one value of all outputs, in the order of the branches."""

    def merge(outcomes: Sequence[BranchOutcome[Any]]) -> T:
        value = initial
        for outcome in outcomes:
            value = function(value, outcome.output)
        return value

    return merge


def _same(_: RunContext, value: T) -> T:
    return value


def _quoted(text: str) -> str:
    return text.replace('"', "#quot;")
