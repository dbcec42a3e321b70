"""The nodes of a run: what is done around each, and how a run goes on where it was.

`graph.py` says which node comes next; `run.py` has the context.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Container
from typing import TYPE_CHECKING

from tenure.errors import UnknownNodeError, UsageError
from tenure.events import NodeCompleted, NodeStarted
from tenure.resuming import Point, Rewound
from tenure.signatures import awaited

if TYPE_CHECKING:
    from tenure.run import RunContext, Strategy


async def carried_out(ctx: RunContext, strategy: Strategy) -> object:
    """Have a strategy work on a run's input, from the beginning or from where the run is resumed.

    When the run is taken to another place, the strategy starts again and goes there.

    Raises:
        UsageError: The strategy is no async function.
        UnknownNodeError: The run is to be resumed at a node that the graph has not.
    """
    ctx.begin()
    while True:
        try:
            working = strategy(ctx, ctx.input)
            if not inspect.isawaitable(working):
                raise UsageError(
                    f"The strategy {strategy!r} is no async function; write it with async def, or "
                    "use tenure.sync.Agent."
                )
            output = await working
            if not ctx.is_rewound:
                return output
        except Rewound:
            pass
        await ctx.begin_again()  # nothing of the strategy is at work any more


async def executed(
    ctx: RunContext, name: str, value: object, work: Callable[[], object], *, counts: bool
) -> object:
    """See `RunContext.execute_node`."""
    if counts:
        ctx.count_node()
    around, calls = ctx.node_path, ctx.calls_of_code
    ctx.node_path, ctx.calls_of_code = (*around, name), Counter()
    path = "/".join(ctx.node_path)
    try:
        for feature in ctx.features:
            await feature.before_node(ctx, path, value)
        await ctx.send(NodeStarted(path=path, input=value))
        output = await awaited(work())
        if ctx.is_rewound:
            raise Rewound
        for feature in ctx.features:
            await feature.after_node(ctx, path, output)
        await ctx.send(NodeCompleted(path=path, output=output))
        return output
    finally:
        ctx.node_path, ctx.calls_of_code = around, calls


def resumed_in(ctx: RunContext, scope: str) -> tuple[Point, object] | None:
    """Where a graph goes on, with the output or the input of that node; None for its beginning.

    Raises:
        UnknownNodeError: The run was in a graph of another name.
    """
    if ctx.resumption is None:
        return None
    known = None if "/" in scope else ctx.resumption.name_within("", ctx.position)
    if known not in (None, scope):
        raise UnknownNodeError(
            f"The run cannot be resumed: it was in the graph {known!r}, and the strategy is the graph "
            f"{scope!r} now; give it its name back, or begin anew with resume='never'."
        )
    return _restored(ctx, ctx.resumption.last_in(scope, ctx.position))


def resumed_branch(ctx: RunContext, path: str) -> tuple[Point, object] | None:
    """The output of a parallel branch that had returned already; None if it had not."""
    if ctx.resumption is None:
        return None
    return _restored(ctx, ctx.resumption.last_at(path, ctx.position))


def way_on(ctx: RunContext, scope: str, name: str, subgraphs: Container[str]) -> str:
    """The node with which a graph goes on: this one, or the subgraph in which the run was.

    The two differ when no checkpoint says that the run had come to the subgraph.

    Raises:
        UnknownNodeError: The run was in a node that is no subgraph.
    """
    if ctx.resumption is None:
        return name
    known = ctx.resumption.name_within(scope, ctx.position)
    if known is None or known == name or known in subgraphs:
        return known or name
    raise UnknownNodeError(
        f"The run cannot be resumed: it was in the node '{scope}/{known}', and the graph goes on with "
        f"'{scope}/{name}' now. Was the graph changed, or does an edge depend on something that is not "
        "saved? Change it back, or begin anew with resume='never'."
    )


def _restored(ctx: RunContext, point: Point | None) -> tuple[Point, object] | None:
    if point is None:
        return None
    value = point.restore(ctx)
    if not point.is_forced:
        ctx.position = point.version
    return point, value
