"""What stores know of runs that have not ended: the run, its checkpoints, its tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tenure.memory import Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run that was recorded.

    Args:
        run_id: Names it.
        owner: Whose run it is.
        input: What it was given; None when it has ended, or was redacted.
        revision: That of the conversation when it began.
        started_at: When it began.
        ended_at: When it ended, or None.
    """

    run_id: str
    owner: Owner
    input: str | None
    revision: int
    started_at: datetime
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCheckpoint:
    """A checkpoint that is to be saved.

    Args:
        checkpoint_id: Names it.
        node_path: The node that has returned: names with slashes between them.
        scope: Whatever later checkpoint has the same scope makes this one superfluous.
        state: What the run needs to go on from here; any text.
    """

    checkpoint_id: str
    node_path: str
    scope: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A checkpoint in a store.

    Args:
        checkpoint_id: See `NewCheckpoint`.
        version: Its place among those of its run, from 1.
        node_path: See `NewCheckpoint`.
        scope: See `NewCheckpoint`.
        state: See `NewCheckpoint`.
        logged: How many messages the run's log had then.
        created_at: When it was saved.
    """

    checkpoint_id: str
    version: int
    node_path: str
    scope: str
    state: str
    logged: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCall:
    """A tool call that is about to begin.

    Args:
        node_path: The node that makes it.
        position: The version of the checkpoint from which that node has begun; 0 for the beginning.
        origin: What it answers: the assistant message that called the tool; empty when code did.
        place: Its place among the calls of that message, or of the node, from 0.
        tool: The tool's name.
        args: Its arguments: any text.
    """

    node_path: str
    position: int
    origin: str
    place: int
    tool: str
    args: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """A tool call in the ledger.

    Args:
        number: Its place among those of its run, from 1.
        call: What was recorded before it began.
        after: The highest version of a checkpoint that the run had when it began; 0 for none.
        outcome: What came of it; None while that is not known.
        is_rolled_back: Whether the run went back to a checkpoint before it.
        is_undone: Whether it was undone after that.
        started_at: When it began.
        finished_at: When its outcome was recorded, or None.
    """

    number: int
    call: NewCall
    after: int
    outcome: str | None
    is_rolled_back: bool
    is_undone: bool
    started_at: datetime
    finished_at: datetime | None
