"""Features: what can be added to an agent, and the hooks by which it takes part in runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from tenure.events import RunResult
    from tenure.memory import NewMemory, Owner
    from tenure.messages import AssistantMessage, Message, ToolCall
    from tenure.models import ModelRequest
    from tenure.run import RunContext
    from tenure.run_tools import PlacedCall, ToolExecution
    from tenure.stores import Store
    from tenure.tools import Tool, ToolOutcome


class Feature:
    """A part that can be added to an agent: a class with some of these hooks.

    One object serves all runs of its agent, several at once; what belongs to a run goes into
    `ctx.storage`. A hook that raises fails the run. Start hooks run in the order of `runs_after`, and
    among equals in the order of installation; end hooks likewise.
    """

    runs_after: ClassVar[tuple[type[Feature], ...]] = ()
    """Features whose hooks run before this one's, wherever they were installed."""

    tools: Sequence[Tool] = ()
    """What the feature gives its agent's model to call, known when it is installed."""

    def on_install(self, store: Store | None, owner: Owner) -> None:
        """The feature was given to an agent, whose store this is, and who owns its memories."""

    def beside(self, features: Sequence[Feature]) -> None:
        """A feature was added to the agent, this one or another; these are all of them."""

    async def before_run(self, ctx: RunContext) -> None:
        """A run is about to begin; no feature has done anything for it yet.

        Here a run can still become another one: `ctx.resume` has it go on with one that had not ended.
        """

    async def on_run_start(self, ctx: RunContext) -> None:
        """A run begins; nothing was asked yet."""

    async def on_run_end(self, ctx: RunContext, result: RunResult) -> None:
        """The strategy has succeeded. What this raises, the caller of the run gets."""

    async def to_remember(
        self, ctx: RunContext, store: Store, messages: Sequence[Message]
    ) -> Sequence[NewMemory]:
        """A run that succeeded is about to be stored; return what its owner is to remember of it.

        It is written to the same store in the same transaction, and is in `ctx.stored` afterwards.

        Args:
            ctx: The run.
            store: Where its conversation is.
            messages: What is stored of it, as pre-processors have left it.
        """
        return ()

    async def on_run_error(self, ctx: RunContext, error: BaseException) -> None:
        """The run has failed or was cancelled; `error` is raised on afterwards."""

    async def before_model_call(self, ctx: RunContext, request: ModelRequest) -> ModelRequest:
        """Return the request to send: this one, or another in its place. History stays as it is."""
        return request

    async def after_model_call(
        self, ctx: RunContext, request: ModelRequest, reply: AssistantMessage
    ) -> None:
        """The model has answered."""

    async def before_node(self, ctx: RunContext, path: str, value: object) -> None:
        """A node of a graph is about to be executed."""

    async def after_node(self, ctx: RunContext, path: str, output: object) -> None:
        """A node of a graph has returned."""

    async def known_outcome(self, ctx: RunContext, placed: PlacedCall) -> ToolOutcome | None:
        """Return what has come of a tool call already, so that the tool is not run; else None.

        The first feature that knows it is believed. Hooks and events of the call are left out.
        """

    async def execute_tool(
        self, ctx: RunContext, placed: PlacedCall, execute: ToolExecution
    ) -> ToolOutcome:
        """Run a tool, by calling `execute`, and return what came of it. The last feature is innermost."""
        return await execute()

    async def before_tool_call(self, ctx: RunContext, call: ToolCall) -> None:
        """A tool is about to run."""

    async def after_tool_call(self, ctx: RunContext, call: ToolCall, outcome: ToolOutcome) -> None:
        """A tool call has come to something."""


def in_order(features: Iterable[Feature]) -> list[Feature]:
    """Return features so that each comes after those it `runs_after`; otherwise as they are."""
    left = list(features)
    ordered: list[Feature] = []
    while left:
        free = next(
            (
                feature
                for feature in left
                if not any(isinstance(o, feature.runs_after) for o in left if o is not feature)
            ),
            left[0],  # a circle: the order of installation decides
        )
        left.remove(free)
        ordered.append(free)
    return ordered
