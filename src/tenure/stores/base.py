"""The written contract of a store: what every driver does, word for word.

A store keeps conversations. A conversation is a log under a session id: entries in the order in which they
were appended, each with a sequence number. What a conversation *is* at a moment is one of its branches up
to some entry. Only `redact` and `delete` ever change or remove what was logged.

What holds for every operation, in every driver:

- **Order.** Messages come back in the order in which they were appended, whatever their times say.
  Appends of several callers are each whole: no caller's messages stand between another's.
- **Atomicity.** An operation happens completely or not at all, also when the process is killed in it.
- **Durability.** When a write has returned, it survives the death of the process. Whether it survives a
  power loss too is the driver's to say (SQLite: with `durable=true`).
- **Revisions.** Every commit that changes a conversation's history raises its revision by exactly one.
- **Second calls.** Appending is idempotent by message id, deleting by absence; `commit_run` and
  `discard_run` of a run that is not there do nothing. So a caller who does not know whether one of these
  was done may repeat it.
- **Cancellation.** A cancelled write is either done or not done, and the next read tells which; except
  that a lease is released all the same.
- **Missing ids.** Reading a conversation that does not exist gives an empty list or None; appending to it
  or to a run of it creates it; the other writes say what they do, most raise `UnknownConversationError`.
- **Owners.** A store handle belongs to one tenant; nothing of another tenant is ever read or written.
- **Copies.** What is read shares nothing that can be changed with what was appended or read before.
- **Leases.** A write that is given a lease happens only while that lease is held (`LeaseLostError`);
  writes without one are not held up by anybody's lease.
- **Where.** A store may be used from any thread and any event loop, at once or in turn, and blocks none.

Errors are `StoreError`s, and `InvalidValueError` for what cannot be stored; either way nothing was written.
After `close()` every operation raises `StoreClosedError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from tenure.marks import covered_ids
from tenure.memory import Owner
from tenure.messages import Json, Message
from tenure.stores.memory_base import MemoryStore
from tenure.stores.records import (
    Appended,
    Branch,
    Conversation,
    Entry,
    Forgotten,
    Lease,
    Participant,
)
from tenure.stores.run_base import RunStore

DEFAULT_TENANT = ""
"""The tenant of everything that was given no other one."""

LEASE_TTL_S = 30.0
"""How long a dead holder blocks a conversation; guess: longer than any pause of a live process."""

OnConflict: TypeAlias = Literal["raise", "rebase", "fork"]
"""What to do when somebody else has appended first: see `Store.append`."""

Redaction: TypeAlias = Callable[[Message], Message | None]
"""Returns the message to keep in place of one: itself, a changed one, or None to remove it."""


class Store(RunStore, ABC):
    """Keeps conversations; see the module for what holds for every operation."""

    tenant: str
    """Whose conversations this handle reads and writes; `""` unless made by `for_tenant`."""

    lease_ttl_s: float
    """For how long a lease, and a place in the queue for it, is good without being renewed."""

    # --- writing -----------------------------------------------------------------------------

    @abstractmethod
    async def append(
        self,
        session_id: str,
        messages: Sequence[Message],
        *,
        run_id: str | None = None,
        is_failed: bool = False,
        expected_revision: int | None = None,
        on_conflict: OnConflict = "raise",
        archive: Sequence[Message] = (),
        by: Participant | None = None,
        lease: Lease | None = None,
    ) -> Appended:
        """Append messages to a conversation's history, creating the conversation when there is none.

        A message whose id the history has already is skipped; when none is left to write, nothing
        happens to the conversation: no conflict, no commit, no conversation.

        Args:
            session_id: The conversation.
            messages: In order.
            run_id: The run that they come from.
            is_failed: Whether that run failed.
            expected_revision: The revision that the caller has read; 0 for "there is none". If the
                conversation is at another one, `on_conflict` decides.
            on_conflict: `"raise"` raises `ConflictError`; `"rebase"` appends behind what the others
                wrote; `"fork"` leaves the conversation alone and appends to a new one, which shares
                its history as it was at `expected_revision` (if it ever was; else it raises).
            archive: What summaries of the run stand for and no history has; `covered` finds it.
            by: Who writes this in the run, what they remember of it, and whether the run ends by it.
            lease: Write only while this is held.

        Raises:
            InvalidValueError: Something cannot be stored, or there is a participant without a run.
            ConflictError: The conversation is not at `expected_revision`.
            LeaseLostError: The lease is not held any more.
        """

    @abstractmethod
    async def start_branch(
        self,
        session_id: str,
        messages: Sequence[Message] = (),
        *,
        after: int,
        run_id: str | None = None,
        expected_revision: int | None = None,
        archive: Sequence[Message] = (),
        by: Participant | None = None,
        lease: Lease | None = None,
    ) -> Appended:
        """Make the history "everything up to entry `after`, then these messages".

        The branch that was the history stays as it is, and can be read by its number.

        Args:
            session_id: The conversation.
            messages: In order; an id that the kept part has already is skipped.
            after: The last entry of the present history to keep; 0 keeps none.
            run_id: The run that they come from; those that the history had keep theirs, as it was.
            expected_revision: As for `append`; a conflict raises.
            archive: As for `append`.
            by: As for `append`.
            lease: Write only while this is held.

        Raises:
            UnknownConversationError: There is no such conversation.
            InvalidValueError: `after` is negative or behind the end.
            ConflictError: The conversation is not at `expected_revision`.
            LeaseLostError: The lease is not held any more.
        """

    @abstractmethod
    async def fork(
        self, session_id: str, new_session_id: str, *, after: int | None = None
    ) -> Appended:
        """Start a new conversation from the history of another, without copying it.

        From then on the two are independent: whatever is done to one, deleting included, the other
        stays what it is. The new one has neither usage nor metadata.

        Args:
            session_id: The conversation to start from.
            new_session_id: The new one's name.
            after: The last entry to take over; all when None.

        Raises:
            UnknownConversationError: There is no such conversation.
            InvalidValueError: `after` is negative or behind the end.
            ConversationExistsError: There is one of the new name.
        """

    @abstractmethod
    async def rename(self, session_id: str, new_session_id: str) -> None:
        """Give a conversation another session id; history, revision and times stay.

        A lease that has run out ends, so that its holder cannot write under the old name any more.
        Renaming to the same name does nothing.

        Raises:
            UnknownConversationError: There is no such conversation.
            ConversationExistsError: There is one of the new name.
            ConversationBusyError: Somebody holds its lease, and would write under the old name.
        """

    @abstractmethod
    async def set_metadata(self, session_id: str, metadata: Mapping[str, Json]) -> None:
        """Replace a conversation's metadata; its history and revision stay.

        Raises:
            UnknownConversationError: There is no such conversation.
            InvalidValueError: The metadata is not JSON, or not what JSON gives back.
        """

    @abstractmethod
    async def redact(self, session_id: str, redaction: Redaction) -> int:
        """Change or remove logged messages, for good: on every branch, run branches included.

        The old text is gone from the file when this returns (in SQLite: overwritten in the database
        and its journal). Forks made earlier keep what they had; redact them too if need be. The
        function runs in the store's thread, once per entry; when it raises, nothing is changed. A
        changed message keeps its id. Its own exception is raised as it is. If anything is changed,
        checkpoints and recorded calls of runs that have not ended, which may hold the old text, are
        removed, and so are their inputs: such a run cannot be resumed any more.

        Returns:
            How many entries were changed or removed; the revision rises if any was.

        Raises:
            UnknownConversationError: There is no such conversation.
        """

    @abstractmethod
    async def delete(self, session_id: str) -> bool:
        """Remove a conversation with all its branches, for good, as `redact` does.

        Whoever holds its lease loses it, so that a run that is going on cannot bring it back.

        Returns:
            Whether there was one.
        """

    @abstractmethod
    async def forget(self, owner: Owner) -> Forgotten:
        """Remove an owner for good, in one transaction, as `delete` does; a second call finds nothing.

        That is all their memories, and every conversation in which nobody else took part, with what
        runs were logging there. Where others took part, too, the messages of this owner's runs are
        removed from every branch, and so are the summaries that stand for one of them; their runs go
        with all that was recorded of them, and if a message goes, others lose what `redact` takes from
        runs that have not ended. Who takes part is told by `by=`; messages that were appended without
        it are nobody's.

        Raises:
            UsageError: All users of an agent are no owner.
        """

    # --- reading -----------------------------------------------------------------------------

    @abstractmethod
    async def read(
        self, session_id: str, *, last: int | None = None, revision: int | None = None
    ) -> list[Message]:
        """Return a conversation's messages in order; empty when there is none.

        Args:
            session_id: The conversation.
            last: Only the last so many (the calls of their results may be before them); all when
                None. Costs as much as it returns, whatever the conversation's length.
            revision: As the history was at this revision, but for what was redacted since; 0 for
                before the first. As it is now when None.

        Raises:
            InvalidValueError: The conversation has never been at this revision.
        """

    @abstractmethod
    async def entries(
        self,
        session_id: str,
        *,
        after: int = 0,
        limit: int | None = None,
        branch: int | None = None,
    ) -> list[Entry]:
        """Return a history's entries in order; empty when there is no conversation or branch.

        Args:
            session_id: The conversation.
            after: Only entries behind this number; the last one of a page gives the next.
            limit: At most so many.
            branch: Another branch than the one that is the history now.
        """

    async def covered(self, session_id: str, summary_id: str) -> list[Message]:
        """Return the messages that a summary stands for, in their order.

        The summary and the messages may be on any branch, so that one can go on from a summary to the
        one that it covers. Empty when there is no such message, or it is no summary. What was redacted
        meanwhile is as the redaction left it, or missing. Costs as much as the branches are long.
        """
        logged: dict[str, Message] = {}
        for branch in await self.branches(session_id):
            if branch.run_id is None:
                entries = await self.entries(session_id, branch=branch.branch)
                logged |= {entry.message.id: entry.message for entry in entries}
        if summary_id not in logged:
            return []
        return [logged[i] for i in covered_ids(logged[summary_id]) if i in logged]

    @abstractmethod
    async def branches(self, session_id: str) -> list[Branch]:
        """Return a conversation's branches by number, those that runs are writing included."""

    @abstractmethod
    async def conversation(self, session_id: str) -> Conversation | None:
        """Return what is known of one conversation, or None when there is none."""

    @abstractmethod
    async def conversations(
        self,
        *,
        limit: int | None = None,
        after: Conversation | None = None,
        owner: Owner | None = None,
    ) -> list[Conversation]:
        """Return the conversations, the last updated first, equal ones by session id.

        Args:
            owner: Only those in which this one took part.
            limit: At most so many.
            after: Only those behind this one: the last of the page before. A conversation that
                changes between two pages moves to the front, and so is on no later page.
        """

    # --- leases ------------------------------------------------------------------------------

    @abstractmethod
    async def request_lease(self, session_id: str, *, holder: str, wait: bool) -> Lease | None:
        """Take the lease of a conversation (there need be none yet), or stand in line for it.

        The lease is free when nobody holds it, or its holder has not renewed it for `lease_ttl_s`.
        It goes to whoever stood in line first; a place that is not asked for again for
        `lease_ttl_s` is lost, so a dead waiter holds up nobody.

        Args:
            session_id: The conversation.
            holder: Names the asker; the same name is the same place in line.
            wait: Whether to keep a place in line until the lease is free.

        Returns:
            The lease, or None when it is somebody else's (turn).
        """

    @abstractmethod
    def renew_lease(self, lease: Lease) -> bool:
        """Hold a lease for another `lease_ttl_s`; returns False when it is lost.

        Not async: the heartbeat calls it from a thread of its own, and it blocks that thread.
        """

    @abstractmethod
    async def release_lease(self, session_id: str, *, holder: str) -> None:
        """Give up the lease and the place in line that a holder has; a no-op when it has none."""

    # --- long-term memories ------------------------------------------------------------------

    @abstractmethod
    def memories(self, owner: Owner) -> MemoryStore:
        """Return a handle on the memories of one owner of this tenant; `memory_base.py` is its contract.

        Raises:
            InvalidValueError: The owner has an empty name, or one that cannot be kept.
        """

    # --- the handle --------------------------------------------------------------------------

    @abstractmethod
    def for_tenant(self, tenant: str) -> Store:
        """Return a handle on the same store for another tenant. Closing either closes both."""

    @property
    @abstractmethod
    def is_closed(self) -> bool:
        """Whether `close()` was called."""

    @abstractmethod
    async def close(self) -> None:
        """Release files and threads, after the writes under way are done. A second call is a no-op."""
