"""One run of an agent: its context, its result, the events it sends, and the hooks of features.

`agent.py` makes a `RunContext` for each run and hands it to the strategy and to every feature. All that a
run asks of a model or a tool goes through it: that is where hooks run, events are sent, usage is counted
and the iteration limit holds.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

from tenure.errors import IterationLimitError, ModelRequestError
from tenure.events import (
    Event,
    EventHandler,
    ModelCallCompleted,
    ModelCallStarted,
    NodeCompleted,
    NodeStarted,
    ToolCallCompleted,
    ToolCallStarted,
)
from tenure.feature import Feature
from tenure.llm import LLMContext
from tenure.marks import covered_ids
from tenure.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, Usage
from tenure.models import Model, ModelRequest, StreamEnd, StreamFrame
from tenure.prompt import Prompt
from tenure.signatures import awaited
from tenure.stores.records import Participant

if TYPE_CHECKING:
    from tenure.clock import Clock
    from tenure.memory import Owner
    from tenure.stores import Store
    from tenure.stores.leases import OnBusy
    from tenure.stores.records import Appended
    from tenure.structured import OutputSchema
    from tenure.tools import Tool, ToolOutcome, ToolRegistry
    from tenure.triggers import CompressionRule

T = TypeVar("T")


@dataclass(slots=True)
class _Spent:
    """What a run and its forks have used up together."""

    model_calls: int = 0
    nodes: int = 0
    usage: Usage = field(default_factory=Usage)


class RunContext:
    """What a strategy and the features of one run share.

    Attributes:
        run_id: Names this run.
        session_id: The conversation, or None.
        input: What the user said.
        llm: The prompt, the offered tools and the model; see `llm.py`.
        tools: The tools that can be run.
        on_busy: Whether to wait while another run uses the conversation.
        output_schema: The type that the run's output is to have; None for the reply's text.
        compression: When the default strategy compresses the history, or None for never.
        storage: For whoever needs to keep something until the run ends.
        owner: Whose run it is: the agent and perhaps its user.
        stored: What came of storing the run's messages; None before the end, or without a store.
        kept: The conversation as pre-processors have left it for a provider that is no store, with what
            windows hid of it; None before the end, or without one.
        node_path: The names of the graph and the nodes that are being executed, from the outside in.
    """

    def __init__(
        self,
        *,
        session_id: str | None,
        text: str,
        owner: Owner,
        model: Model,
        prompt: Prompt,
        system_prompt: SystemMessage | None,
        tools: ToolRegistry,
        features: Sequence[Feature],
        handlers: Sequence[EventHandler],
        max_iterations: int,
        is_streaming: bool,
        on_busy: OnBusy,
        output_schema: OutputSchema[object] | None,
        compression: CompressionRule | None,
        long_write_session_s: float | None,
        clock: Clock,
    ) -> None:
        self.run_id = clock.new_id()
        self.session_id = session_id
        self.input = text
        self.owner = owner
        self.stored: Appended | None = None
        self.kept: tuple[Message, ...] | None = None
        self.node_path: tuple[str, ...] = ()
        self.tools = tools
        self.on_busy: OnBusy = on_busy
        self.output_schema = output_schema
        self.compression = compression
        self.clock = clock
        self.storage: dict[object, object] = {}
        self._spent = _Spent()
        self.llm = LLMContext(
            prompt=prompt,
            model=model,
            outside=self,
            system_prompt=system_prompt,
            long_write_session_s=long_write_session_s,
            clock=clock,
        )
        self._system_prompt = system_prompt
        self._initial = tuple(m for m in prompt.messages if m is not system_prompt)
        self._history_ids: frozenset[str] = frozenset(m.id for m in prompt.messages)
        self._features = features
        self._handlers = handlers
        self._max_iterations = max_iterations
        self._is_streaming = is_streaming

    @property
    def usage(self) -> Usage:
        """The tokens of the run's requests so far."""
        return self._spent.usage

    @property
    def initial_messages(self) -> tuple[Message, ...]:
        """The messages of the agent's `prompt=`, which belong to a conversation's first run."""
        return self._initial

    def continue_from(self, history: Iterable[Message]) -> None:
        """Put a conversation's earlier messages into the prompt, in place of the initial ones.

        For a feature's `on_run_start`. The agent's own system prompt stays first; copies of it in
        `history` are left out.
        """
        own = self._system_prompt
        kept = [
            m
            for m in history
            if own is None
            or not isinstance(m, SystemMessage)
            or (m.id != own.id and m.parts != own.parts)
        ]
        self._history_ids = frozenset(m.id for m in kept) | {own.id if own is not None else ""}
        messages = kept if own is None else [own, *kept]
        self.llm.reset(self.llm.prompt.copy(messages=messages))

    @property
    def conversation(self) -> list[Message]:
        """The prompt's messages as they are now, without the agent's own system prompt."""
        own = self._system_prompt.id if self._system_prompt is not None else None
        return [m for m in self.llm.prompt.messages if m.id != own]

    @property
    def new_messages(self) -> tuple[Message, ...]:
        """The messages that this run has added so far, in order."""
        return tuple(m for m in self.conversation if m.id not in self._history_ids)

    @property
    def covered_messages(self) -> tuple[Message, ...]:
        """The messages of this run that summaries in its prompt stand for, in order."""
        dropped = {m.id: m for m in self.llm.dropped if m.id not in self._history_ids}
        covered: set[str] = set()
        summaries = self.conversation if dropped else []
        while summaries:
            found = {i for each in summaries for i in covered_ids(each)} - covered
            covered |= found
            summaries = [dropped[i] for i in found if i in dropped]  # that stood for others
        return tuple(message for i, message in dropped.items() if i in covered)

    async def participant(self, store: Store, messages: Sequence[Message]) -> Participant:
        """Who writes these messages of the run, and what features want to be remembered with them."""
        new = [await feature.to_remember(self, store, messages) for feature in self._features]
        return Participant(owner=self.owner, memories=[each for some in new for each in some])

    async def execute_tools(self, calls: Sequence[ToolCall]) -> ToolMessage:
        """Run what a model called, at the same time, and return the results in the order of calls.

        Whatever goes wrong in a tool is in its result. A hook that raises stops the other tools.
        """
        outcomes = await _all(self._execute_tool(call) for call in calls)
        results = tuple(o.result_of(c) for o, c in zip(outcomes, calls, strict=True))
        return ToolMessage(parts=results, id=self.clock.new_id(), created_at=self.clock.now())

    def fork(self) -> RunContext:
        """A context whose prompt and storage begin as these are; all the rest is shared."""
        other = copy(self)
        other.storage = dict(self.storage)
        other.llm = self.llm.fork(other)
        return other

    def adopt(self, other: RunContext) -> None:
        """Go on with the prompt and the storage of a fork. Only while no session is open."""
        self.storage = other.storage
        self.llm.adopt(other.llm)

    async def execute_node(
        self, name: str, value: object, work: Callable[[], object], *, counts: bool
    ) -> object:
        """Execute a node of a graph, with all that a run does around it: hooks, events, counting.

        Args:
            name: The node, in what `node_path` says is being executed.
            value: What it is given.
            work: Executes it; sync or async.
            counts: Whether it counts against the agent's `max_iterations`.

        Raises:
            IterationLimitError: The run has executed too many nodes.
        """
        if counts:
            if self._spent.nodes == self._max_iterations:
                raise IterationLimitError(
                    f"The agent did not finish within max_iterations={self._max_iterations} nodes; "
                    "raise max_iterations, or give the graph a shorter way to its finish."
                )
            self._spent.nodes += 1
        around = self.node_path
        self.node_path = (*around, name)
        path = "/".join(self.node_path)
        try:
            for feature in self._features:
                await feature.before_node(self, path, value)
            await self.send(NodeStarted(path=path, input=value))
            output = await awaited(work())
            for feature in self._features:
                await feature.after_node(self, path, output)
            await self.send(NodeCompleted(path=path, output=output))
            return output
        finally:
            self.node_path = around

    async def send(self, event: Event) -> None:
        """Give an event to every handler, in the order in which they were added."""
        for handler in self._handlers:
            await awaited(handler(event))

    async def call_tool(self, tool: Tool, args: Mapping[str, object]) -> ToolOutcome:
        """Run a tool that code, not a model, has chosen; hooks and events see a call without id."""
        call = ToolCall(name=tool.name, args=_described(args))
        return await self._watched(call, partial(tool.execute, args))

    async def ask(
        self, model: Model, request: ModelRequest, *, aside: bool = False
    ) -> AssistantMessage:
        """Have a model answer, with all that a run does around it: hooks, events, counting.

        In a run that streams the reply is streamed, unless the question is only an aside.
        """
        if self._is_streaming and not aside:
            return await self._last_of(self.stream(model, request))
        request = await self._before(request)
        reply = await model.respond(request)
        await self._after(request, reply)
        return reply

    async def stream(self, model: Model, request: ModelRequest) -> AsyncGenerator[StreamFrame]:
        """The same, frame by frame. Each frame is sent as an event before it is yielded."""
        request = await self._before(request)
        frames = model.stream(request)
        has_ended = False
        try:
            async for frame in frames:
                await self.send(frame)
                if isinstance(frame, StreamEnd):
                    has_ended = True
                    await self._after(request, frame.message)
                yield frame
        finally:
            if isinstance(frames, AsyncGenerator):
                await cast("AsyncGenerator[StreamFrame]", frames).aclose()
        if not has_ended:
            raise ModelRequestError("The model's stream ended without a StreamEnd; ask again.")

    async def _last_of(self, frames: AsyncGenerator[StreamFrame]) -> AssistantMessage:
        async with aclosing(frames):
            *_, last = [frame async for frame in frames]
        assert isinstance(last, StreamEnd)
        return last.message

    async def _execute_tool(self, call: ToolCall) -> ToolOutcome:
        return await self._watched(call, partial(self.tools.execute, call))

    async def _watched(
        self, call: ToolCall, execute: Callable[[], Awaitable[ToolOutcome]]
    ) -> ToolOutcome:
        for feature in self._features:
            await feature.before_tool_call(self, call)
        await self.send(ToolCallStarted(call=call))
        outcome = await execute()
        for feature in self._features:
            await feature.after_tool_call(self, call, outcome)
        await self.send(ToolCallCompleted(call=call, outcome=outcome))
        return outcome

    async def _before(self, request: ModelRequest) -> ModelRequest:
        if self._spent.model_calls == self._max_iterations:
            raise IterationLimitError(
                f"The agent did not finish within max_iterations={self._max_iterations} model "
                "calls; raise max_iterations, or give the model a way to finish."
            )
        self._spent.model_calls += 1
        for feature in self._features:
            request = await feature.before_model_call(self, request)
        await self.send(ModelCallStarted(request=request))
        return request

    async def _after(self, request: ModelRequest, reply: AssistantMessage) -> None:
        if reply.usage is not None:
            self._spent.usage += reply.usage
            if self.compression is not None:
                self.compression.learn(request, reply.usage)
        for feature in self._features:
            await feature.after_model_call(self, request, reply)
        await self.send(ModelCallCompleted(request=request, reply=reply))


def _described(args: Mapping[str, object]) -> str:
    """Arguments that code has chosen, as JSON for whoever watches; any object can be among them."""
    try:
        return json.dumps(dict(args), default=str, skipkeys=True)
    except (ValueError, RecursionError):  # a circle
        return json.dumps({str(name): f"<{type(value).__name__}>" for name, value in args.items()})


async def _all(coroutines: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """Run coroutines at the same time; when one raises, cancel the rest, wait for it, and raise that."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


Strategy: TypeAlias = Callable[[RunContext, str], Awaitable[object]]
"""What an agent does with an input: an async function of the run's context and the text."""
