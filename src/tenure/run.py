"""One run of an agent: its context.

`agent.py` makes a `RunContext` for each run and hands it to the strategy and to every feature. All that a
run asks of a model or a tool goes through it: `run_models.py`, `run_tools.py` and `run_nodes.py` have what
is done around that, and `run_life.py` the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from tenure.errors import InvalidValueError, IterationLimitError
from tenure.events import Event, EventHandler
from tenure.feature import Feature
from tenure.llm import LLMContext
from tenure.marks import covered_ids
from tenure.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, Usage
from tenure.models import Model, ModelRequest, StreamFrame
from tenure.prompt import Prompt
from tenure.run_models import asked, streamed
from tenure.run_nodes import executed
from tenure.run_tools import called_tool, executed_tools
from tenure.signatures import awaited
from tenure.stores.leases import Held, Holding
from tenure.stores.records import Participant

if TYPE_CHECKING:
    from tenure.clock import Clock
    from tenure.memory import Owner
    from tenure.resuming import Resumption
    from tenure.stores import Store
    from tenure.stores.leases import OnBusy
    from tenure.stores.records import Appended
    from tenure.stores.run_base import CheckpointStore
    from tenure.structured import OutputSchema
    from tenure.tools import Tool, ToolOutcome, ToolRegistry
    from tenure.triggers import CompressionRule


@dataclass(slots=True)
class _Shared:
    """What a run and its forks have in common."""

    model_calls: int = 0
    nodes: int = 0
    tool_calls: int = 0
    usage: Usage = field(default_factory=Usage)
    held: Holding = field(default_factory=Holding)
    resumption: Resumption | None = None
    rewind: Callable[[], Awaitable[Resumption | None]] | None = None  # as soon as a node returns


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
        system_prompt: The agent's own, or None.
        stored: What came of storing the run's messages; None before the end, or without a store.
        kept: The conversation as it was given to a provider that is no store, with what windows hid.
        features: The agent's features, in the order of their hooks.
        strategy: What works on the input.
        revision: That of the conversation whose history the run continues; None for the present one.
        as_stored: The history as it is in the store; pre-processors may show the run less, or other words.
        follow_up: What was said to a run that turned out to be an earlier one: it is answered after it.
        is_follow_up: Whether this is the run in which such an input is answered.
        ends_in: A store that has what the run needs to be resumed until it ends; None if none has.
        is_resumable: Whether the next run goes on with this one, should it fail.
        node_path: The names of the graph and the nodes that are being executed, from the outside in.
        branch_path: The same up to the parallel branch that this context is of; empty outside of those.
        position: The version of the last checkpoint of what led here; 0 for the beginning.
        calls_of_code: How often the node has made which tool call.
        enterable: The path of the graph that may be resumed when it is called next.
        is_opaque: Whether this is in a graph that a node's function has called: a part of that node.
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
        strategy: Strategy,
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
        self.strategy = strategy
        self.features = features
        self.revision: int | None = None
        self.as_stored: tuple[Message, ...] = ()
        self.follow_up: str | None = None
        self.is_follow_up = False
        self.ends_in: CheckpointStore | None = None
        self.is_resumable = False
        self.node_path: tuple[str, ...] = ()
        self.branch_path: tuple[str, ...] = ()
        self.enterable: tuple[str, ...] = ()
        self.position = 0
        self.calls_of_code: Counter[ToolCall] = Counter()
        self.is_opaque = False
        self.tools = tools
        self.on_busy: OnBusy = on_busy
        self.output_schema = output_schema
        self.compression = compression
        self.clock = clock
        self.storage: dict[object, object] = {}
        self._shared = _Shared()
        self.llm = LLMContext(
            prompt=prompt,
            model=model,
            outside=self,
            system_prompt=system_prompt,
            long_write_session_s=long_write_session_s,
            clock=clock,
        )
        self.system_prompt = system_prompt
        self._beginning: tuple[Prompt, tuple[Message, ...], dict[object, object]] = (prompt, (), {})
        self._initial = tuple(m for m in prompt.messages if m is not system_prompt)
        self._history_ids: frozenset[str] = frozenset(m.id for m in prompt.messages)
        self._handlers = handlers
        self._max_iterations = max_iterations
        self._is_streaming = is_streaming

    @property
    def usage(self) -> Usage:
        """The tokens of the run's requests so far."""
        return self._shared.usage

    @property
    def initial_messages(self) -> tuple[Message, ...]:
        """The messages of the agent's `prompt=`, which belong to a conversation's first run."""
        return self._initial

    def continue_from(self, history: Iterable[Message], *, stored: Iterable[Message] = ()) -> None:
        """Put a conversation's earlier messages into the prompt, in place of the initial ones.

        For a feature's `on_run_start`. The agent's own system prompt stays first; copies of it in
        `history` are left out.

        Args:
            history: The messages.
            stored: Messages as a store has them, if it can give them again at `revision`.
        """
        own = self.system_prompt
        kept = [
            m
            for m in history
            if own is None
            or not isinstance(m, SystemMessage)
            or (m.id != own.id and m.parts != own.parts)
        ]
        self._history_ids = frozenset(m.id for m in kept) | {own.id if own is not None else ""}
        self.as_stored = tuple(stored)
        messages = kept if own is None else [own, *kept]
        self.llm.reset(self.llm.prompt.copy(messages=messages))

    @property
    def conversation(self) -> list[Message]:
        """The prompt's messages as they are now, without the agent's own system prompt."""
        own = self.system_prompt.id if self.system_prompt is not None else None
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
        new = [await feature.to_remember(self, store, messages) for feature in self.features]
        return Participant(
            owner=self.owner,
            memories=[each for some in new for each in some],
            ends_run=self.ends_in is store,
        )

    # --- the conversation's lease ---

    async def hold(self, turns: Store) -> Held:
        """Take the lease of the run's conversation in a store; it is kept until the run is over.

        A second call gives the same one. See `leases.hold` for the rest.

        Raises:
            InvalidValueError: The run has no conversation.
        """
        if self.session_id is None:
            raise InvalidValueError("A run without a session id has no conversation to hold.")
        held = self._shared.held
        return await held.take(turns, self.session_id, holder=self.run_id, on_busy=self.on_busy)

    async def release(self) -> None:
        """Let the next run of the conversation in."""
        await self._shared.held.release()

    # --- going on where a run was ---

    @property
    def resumption(self) -> Resumption | None:
        """How far the run had come, if it was resumed or taken back; None where `is_opaque`."""
        return None if self.is_opaque else self._shared.resumption

    @property
    def is_rewound(self) -> bool:
        """Whether `rewind` was called and is to be heeded."""
        return self._shared.rewind is not None

    def resume(self, run_id: str, text: str, resumption: Resumption | None) -> None:
        """Become a run that had not ended. Only in a feature's `before_run`.

        `resumption` is how far it had come; None to begin again.
        """
        self.run_id, self.input = run_id, text
        self._shared.resumption = resumption

    def rewind(self, prepare: Callable[[], Awaitable[Resumption | None]]) -> None:
        """Have the run go on where `prepare` says (None: the beginning) as soon as a node returns.

        It is called when nothing of the strategy is at work any more.
        """
        self._shared.rewind = prepare

    def restore(
        self, *, messages: Sequence[Message], dropped: Sequence[Message], initial: Iterable[str]
    ) -> None:
        """Put the prompt to what it was at a checkpoint. Only while no session is open.

        Args:
            messages: What it has.
            dropped: What sessions have taken out of it.
            initial: The ids of those that were the conversation's initial messages.
        """
        self._history_ids |= frozenset(initial)
        self.llm.restore(messages, dropped)

    @property
    def beginning(self) -> Prompt:
        """The prompt as it was before the strategy worked."""
        return self._beginning[0]

    def begin(self) -> None:
        """Take down what there is before the strategy works."""
        self._beginning = (self.llm.prompt, self.llm.dropped, dict(self.storage))

    async def begin_again(self) -> None:
        """Go back to that, and from there to where the run is to go on."""
        if self._shared.rewind is not None:
            self._shared.resumption = await self._shared.rewind()
            self._shared.rewind = None
        prompt, dropped, storage = self._beginning
        self.llm.restore(prompt.messages, dropped)
        self.storage = dict(storage)
        self.node_path, self.branch_path, self.position = (), (), 0
        self.enterable, self.is_opaque = (), False

    # --- tools and nodes ---

    async def execute_tools(self, calls: Sequence[ToolCall]) -> ToolMessage:
        """Run what a model called, at the same time, and return the results in the order of calls.

        Whatever goes wrong in a tool is in its result. A hook that raises stops the other tools.
        """
        return await executed_tools(self, calls)

    async def call_tool(self, tool: Tool, args: Mapping[str, object]) -> ToolOutcome:
        """Run a tool that code, not a model, has chosen; hooks and events see a call without id."""
        return await called_tool(self, tool, args)

    def next_call_key(self) -> str:
        """Return a text for a tool call that no other has."""
        self._shared.tool_calls += 1
        return f"{self.run_id}.{self._shared.tool_calls}"

    def fork(self, branch: str = "") -> RunContext:
        """A context whose prompt and storage begin as these are; all the rest is shared.

        Args:
            branch: The parallel branch that it is for.
        """
        other = copy(self)
        other.branch_path = (*self.node_path, branch) if branch else self.branch_path
        other.storage = dict(self.storage)
        other.llm = self.llm.fork(other)
        return other

    def adopt(self, other: RunContext) -> None:
        """Go on with the prompt and the storage of a fork. Only while no session is open."""
        self.storage = other.storage
        self.position = max(self.position, other.position)
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
        return await executed(self, name, value, work, counts=counts)

    def count_node(self) -> None:
        """Count one more node.

        Raises:
            IterationLimitError: The run has executed too many nodes.
        """
        if self._shared.nodes == self._max_iterations:
            raise IterationLimitError(
                f"The agent did not finish within max_iterations={self._max_iterations} nodes; "
                "raise max_iterations, or give the graph a shorter way to its finish."
            )
        self._shared.nodes += 1

    async def send(self, event: Event) -> None:
        """Give an event to every handler, in the order in which they were added."""
        for handler in self._handlers:
            await awaited(handler(event))

    async def ask(
        self, model: Model, request: ModelRequest, *, aside: bool = False
    ) -> AssistantMessage:
        """Have a model answer, with all that a run does around it: hooks, events, counting.

        In a run that streams the reply is streamed, unless the question is only an aside.
        """
        return await asked(self, model, request, in_frames=self._is_streaming and not aside)

    def stream(self, model: Model, request: ModelRequest) -> AsyncGenerator[StreamFrame]:
        """The same, frame by frame. Each frame is sent as an event before it is yielded."""
        return streamed(self, model, request)

    def count_model_call(self) -> None:
        """Count one more request.

        Raises:
            IterationLimitError: The run has made too many.
        """
        if self._shared.model_calls == self._max_iterations:
            raise IterationLimitError(
                f"The agent did not finish within max_iterations={self._max_iterations} model "
                "calls; raise max_iterations, or give the model a way to finish."
            )
        self._shared.model_calls += 1

    def count_usage(self, usage: Usage) -> None:
        """Count the tokens of a request."""
        self._shared.usage += usage


Strategy: TypeAlias = Callable[[RunContext, str], Awaitable[object]]
"""What an agent does with an input: an async function of the run's context and the text."""
