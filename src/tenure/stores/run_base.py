"""The written contract of a store, on runs that have not ended: their log, checkpoints and tool calls.

What a run logs here is in no history. It is there so that somebody can go on with the run when its process
has died; `base.py` says what else holds for every operation. A run's *log* is a branch of its own, on
which messages are numbered. A *checkpoint* says how far the run has come; its state is a text that means
nothing to the store. The *ledger* has a row for each tool call, written before the tool runs and again
after it.

When a run has ended, all of that is removed in the transaction that ends it: `append` or `start_branch`
with a participant whose `ends_run` is true, `commit_run`, or `discard_run`. What stays is its record,
without the input. Runs are removed with their conversation, and a fork takes none of them along.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tenure.memory import Owner
from tenure.messages import Message
from tenure.stores.records import Appended, Entry, Lease
from tenure.stores.run_records import (
    CallRecord,
    CheckpointRecord,
    NewCall,
    NewCheckpoint,
    RunRecord,
)


class CheckpointStore(ABC):
    """Keeps runs, their checkpoints and their tool calls, until they end."""

    # --- the run ---

    @abstractmethod
    async def begin_run(
        self,
        session_id: str,
        run_id: str,
        *,
        owner: Owner,
        input: str,  # noqa: A002 # what it is called everywhere
        lease: Lease | None = None,
    ) -> RunRecord:
        """Record that a run has begun; creates the conversation (with an empty history) if need be.

        A run that has begun already stays as it is, and its record is returned.

        Args:
            session_id: The conversation.
            run_id: The run.
            owner: Whose run it is; `Store.forget` removes it with them.
            input: What it was given; any text.
            lease: Write only while this is held.
        """

    @abstractmethod
    async def runs(self, session_id: str, *, unfinished: bool = False) -> list[RunRecord]:
        """Return the runs of a conversation that have begun by `begin_run`, in that order.

        Args:
            session_id: The conversation.
            unfinished: Only those that have not ended and can be resumed: their input is there. Costs
                nothing for those that have ended.
        """

    @abstractmethod
    async def discard_run(
        self, session_id: str, run_id: str, *, lease: Lease | None = None
    ) -> bool:
        """Remove what a run has logged, for good; the run has ended.

        Returns:
            Whether there was something: a branch, a checkpoint, a call, or a run that had not ended.
        """

    # --- checkpoints ---

    @abstractmethod
    async def save_checkpoint(
        self,
        session_id: str,
        run_id: str,
        checkpoint: NewCheckpoint,
        *,
        messages: Sequence[Message] = (),
        keep_last: int | None = None,
        lease: Lease | None = None,
    ) -> CheckpointRecord:
        """Log messages as `append_to_run` does, and a checkpoint behind them, in one transaction.

        The checkpoint gets the run's next version: 1, 2, 3, ... whoever saves at the same time. No
        version is given twice, not even after `roll_back`. Costs the same however long the history is
        and however many checkpoints there are. The conversation is created if need be. Of a run that has
        begun and cannot be resumed any more, since it has ended or was redacted, nothing is kept: the
        checkpoint is returned as if it were.

        Args:
            session_id: The conversation.
            run_id: The run.
            checkpoint: How far it has come.
            messages: What it has said since.
            keep_last: Remove the run's older checkpoints, except the last so many (at least 1) and
                those that are the last one of their scope.
            lease: Write only while this is held.

        Raises:
            InvalidValueError: The run has a checkpoint of this id already.
        """

    @abstractmethod
    async def checkpoints(self, session_id: str, run_id: str) -> list[CheckpointRecord]:
        """Return a run's checkpoints by version; empty when there are none."""

    @abstractmethod
    async def roll_back(
        self, session_id: str, run_id: str, *, version: int, lease: Lease | None = None
    ) -> None:
        """Take a run back to one of its checkpoints, or with version 0 to its beginning.

        Later checkpoints are removed. Calls that began after it are marked as rolled back. Messages that
        the run has logged stay in its log.

        Raises:
            InvalidValueError: The run has no checkpoint of this version.
        """

    # --- the ledger ---

    @abstractmethod
    async def begin_call(
        self, session_id: str, run_id: str, call: NewCall, *, lease: Lease | None = None
    ) -> CallRecord:
        """Record that a tool is about to be called; it gets the run's next number: 1, 2, 3, ...

        When this has returned, the record survives the death of the process. The conversation is created
        if need be. Of a run that cannot be resumed any more nothing is kept, as in `save_checkpoint`.
        """

    @abstractmethod
    async def end_call(
        self,
        session_id: str,
        run_id: str,
        number: int,
        *,
        outcome: str,
        lease: Lease | None = None,
    ) -> None:
        """Record what came of a call; nothing happens when there is no such call.

        Args:
            session_id: The conversation.
            run_id: The run.
            number: The call's.
            outcome: Any text.
            lease: Write only while this is held.
        """

    @abstractmethod
    async def mark_undone(
        self, session_id: str, run_id: str, number: int, *, lease: Lease | None = None
    ) -> None:
        """Record that a call that was rolled back has been undone, or needs no undoing.

        Nothing happens when there is no such call, or it was not rolled back.
        """

    @abstractmethod
    async def calls(self, session_id: str, run_id: str) -> list[CallRecord]:
        """Return the calls of a run by number, those that were rolled back included."""


class RunStore(CheckpointStore):
    """The part of a `Store` that keeps what runs need until they end, their messages included."""

    @abstractmethod
    async def append_to_run(
        self,
        session_id: str,
        run_id: str,
        messages: Sequence[Message],
        *,
        owner: Owner | None = None,
        lease: Lease | None = None,
    ) -> int:
        """Log messages of a run that has not ended: on a branch of its own, in no history yet.

        Creates the conversation (with an empty history) and the branch when they are not there. A message
        whose id the run's own log has already is skipped; one that only the history has is logged.

        Returns:
            How many messages the run's branch has of its own.
        """

    @abstractmethod
    async def run_entries(self, session_id: str, run_id: str) -> list[Entry]:
        """Return what a run has logged on its branch, in order; empty when there is nothing."""

    @abstractmethod
    async def commit_run(
        self,
        session_id: str,
        run_id: str,
        *,
        is_failed: bool = False,
        lease: Lease | None = None,
    ) -> Appended:
        """Move what a run has logged to the end of the history, in one commit; the run has ended.

        Args:
            session_id: The conversation.
            run_id: The run.
            is_failed: Mark the messages as those of a failed run.
            lease: Write only while this is held.
        """
