"""What a run gives, and what it tells while it goes on: events, in the order in which things happen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tenure.models import StreamFrame

if TYPE_CHECKING:
    from tenure.errors import EmbeddingError
    from tenure.memory import Memory
    from tenure.messages import AssistantMessage, Message, ToolCall, Usage
    from tenure.models import ModelRequest
    from tenure.tools import ToolOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run gave.

    Args:
        output: What the strategy returned; the reply's text with the default one.
        new_messages: The messages that this run added, in order: the user's, the model's, the
            tools', and summaries. Neither the history nor the system prompt.
        session_id: The conversation, or None when the run was not part of one.
        run_id: Names this run.
        usage: The tokens of all its requests together.
    """

    output: object
    new_messages: tuple[Message, ...]
    session_id: str | None
    run_id: str
    usage: Usage

    def __str__(self) -> str:
        return str(self.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The features are ready; the strategy starts."""

    run_id: str
    session_id: str | None
    input: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed:
    """A run that had not ended goes on; before its `RunStarted`.

    Args:
        run_id: The run, as it was called before.
        session_id: The conversation.
        input: What the run was given when it began.
        path: The node behind which it goes on: see `NodeStarted`; empty for the beginning.
    """

    run_id: str
    session_id: str | None
    input: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoriesRecalled:
    """Long-term memory was searched for what may help to answer; before `RunStarted`.

    Args:
        query: What was searched for.
        memories: Those that the model is shown, the best first, with `.score` and `.signals`.
        block: How it is shown them; empty when there are none.
        by_words_only_because: Why the search went by words alone, if the embedder failed.
    """

    query: str
    memories: tuple[Memory, ...]
    block: str
    by_words_only_because: EmbeddingError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoriesStored:
    """What a run has made its owner remember; before `RunCompleted`.

    Args:
        memories: As they are in the store; those that said the same before, too.
    """

    memories: tuple[Memory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallStarted:
    """The model is asked."""

    request: ModelRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallCompleted:
    """The model has answered."""

    request: ModelRequest
    reply: AssistantMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStarted:
    """A tool that the model called is run."""

    call: ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallCompleted:
    """A tool call has come to something, be it an error that the model reads."""

    call: ToolCall
    outcome: ToolOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallReused:
    """A tool call of a run that was resumed has its outcome already, so the tool is not run again."""

    call: ToolCall
    outcome: ToolOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStarted:
    """A node of a graph is executed.

    Args:
        path: The names of the graph, of the nodes around it, and its own, with slashes between them.
        input: What it is given.
    """

    path: str
    input: object


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCompleted:
    """A node of a graph has returned.

    Args:
        path: See `NodeStarted`.
        output: What it returned.
    """

    path: str
    output: object


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """How far the run has come is stored; before the node's `NodeCompleted`.

    Args:
        checkpoint_id: The checkpoint.
        version: Its place among those of its run, from 1.
        path: The node that has returned: see `NodeStarted`.
    """

    checkpoint_id: str
    version: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCompleted:
    """The run succeeded, and what there was to store is stored."""

    result: RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed:
    """The run raised; what was to be stored is not."""

    run_id: str
    session_id: str | None
    error: Exception


Event: TypeAlias = (
    RunResumed
    | RunStarted
    | MemoriesRecalled
    | MemoriesStored
    | ModelCallStarted
    | StreamFrame
    | ModelCallCompleted
    | ToolCallStarted
    | ToolCallCompleted
    | ToolCallReused
    | NodeStarted
    | CheckpointSaved
    | NodeCompleted
    | RunCompleted
    | RunFailed
)
EventHandler: TypeAlias = Callable[[Event], object]
"""Is sent every event of a run; may be async. What it raises fails the run."""
