"""The conformance suites catch what they are for: stores and providers that are wrong on purpose.

Each wrong store is a right one with a single fault, and the tests named with it must fail. The same
tests pass for the store that it is made of, as `test_conformance.py` shows.
"""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from tenure import ChatHistoryProvider, Memory, Message, Owner, Store, Text, ToolMessage, user
from tenure.stores.base import Appended, Conversation, Entry, Forgotten, Lease, Redaction
from tenure.stores.inmemory import InMemoryStore
from tenure.stores.run_records import CallRecord, CheckpointRecord, NewCheckpoint
from tenure.testing import ManualClock
from tenure.testing.conformance import ChatHistoryProviderConformance, StoreConformance

pytest_plugins = ["pytester"]


class LosesTheLast(InMemoryStore):
    """Forgets the last of three messages or more."""

    async def append(self, session_id: str, messages: Sequence[Message], **options: Any) -> Any:
        return await super().append(session_id, messages[: max(2, len(messages) - 1)], **options)


class SortsByTime(InMemoryStore):
    """Orders messages by their times."""

    async def read(self, session_id: str, *, last: int | None = None) -> list[Message]:
        messages = await super().read(session_id)
        messages.sort(key=lambda message: message.created_at)
        return messages if last is None else messages[max(0, len(messages) - last) :]


class ReadsTheBeginning(InMemoryStore):
    """Gives the first messages for the last."""

    async def read(self, session_id: str, *, last: int | None = None) -> list[Message]:
        return (await super().read(session_id))[:last]


class SharesObjects(InMemoryStore):
    """Gives back the very objects that it was given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.given: dict[str, Message] = {}

    async def append(self, session_id: str, messages: Sequence[Message], **options: Any) -> Any:
        self.given.update((message.id, message) for message in messages)
        return await super().append(session_id, messages, **options)

    async def read(self, session_id: str, *, last: int | None = None) -> list[Message]:
        return [self.given.get(m.id, m) for m in await super().read(session_id, last=last)]


class CountsMessages(InMemoryStore):
    """Has a revision for each message instead of each commit."""

    async def append(self, session_id: str, messages: Sequence[Message], **options: Any) -> Any:
        appended = await super().append(session_id, [], **options)
        for message in messages:
            appended = await super().append(session_id, [message], **options)
        return appended


class Overwrites(InMemoryStore):
    """Puts what is appended last in place of all that was there."""

    async def append(self, session_id: str, messages: Sequence[Message], **options: Any) -> Any:
        if messages and await self.conversation(session_id) is not None:
            return await super().start_branch(session_id, messages, after=0)
        return await super().append(session_id, messages, **options)


class NeverConflicts(InMemoryStore):
    """Reloads and goes on when somebody else was first."""

    async def append(self, session_id: str, messages: Sequence[Message], **options: Any) -> Any:
        return await super().append(session_id, messages, **{**options, "on_conflict": "rebase"})


class WritesTwice(InMemoryStore):
    """Gives known messages a new id."""

    async def append(self, session_id: str, messages: Sequence[Message], **options: Any) -> Any:
        known = {message.id for message in await self.read(session_id)}
        fresh = [replace(m, id=user("x").id) if m.id in known else m for m in messages]
        return await super().append(session_id, fresh, **options)


class CleansTexts(InMemoryStore):
    """Drops what it takes for garbage."""

    async def append(self, session_id: str, messages: Sequence[Message], **options: Any) -> Any:
        return await super().append(session_id, [_cleaned(m) for m in messages], **options)


class ForgetsErrors(InMemoryStore):
    """Turns failed tools into successful ones."""

    async def append(self, session_id: str, messages: Sequence[Message], **options: Any) -> Any:
        return await super().append(session_id, [_pardoned(m) for m in messages], **options)


class ForksAll(InMemoryStore):
    """Takes over the whole history into a fork, wherever it was to end."""

    async def fork(self, session_id: str, new_session_id: str, **options: Any) -> Appended:
        return await super().fork(session_id, new_session_id)


class DeletesForks(InMemoryStore):
    """Deletes the forks of a conversation with it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.forks: list[tuple[str, str]] = []

    async def fork(self, session_id: str, new_session_id: str, **options: Any) -> Appended:
        self.forks.append((session_id, new_session_id))
        return await super().fork(session_id, new_session_id, **options)

    async def delete(self, session_id: str) -> bool:
        for parent, fork in self.forks:
            if parent == session_id:
                await super().delete(fork)
        return await super().delete(session_id)


class RedactsThePresent(InMemoryStore):
    """Leaves the old text in the branches that are not the history."""

    async def redact(self, session_id: str, redaction: Any) -> int:
        here = {entry.message.id for entry in await self.entries(session_id)}
        return await super().redact(session_id, lambda m: redaction(m) if m.id in here else m)


class KeepsDeleted(InMemoryStore):
    """Empties a deleted conversation, and keeps its branches."""

    async def delete(self, session_id: str) -> bool:
        if await self.conversation(session_id) is None:
            return False
        await self.start_branch(session_id, after=0)
        return True


class ListsPagesTwice(InMemoryStore):
    """Starts each page with the end of the one before."""

    async def conversations(
        self, *, limit: int | None = None, after: Conversation | None = None, **options: Any
    ) -> list[Conversation]:
        found = await super().conversations(**options)
        if after is not None:
            found = [c for c in found if c.updated_at <= after.updated_at]
        return found[:limit]


class AlwaysPagesFromTheStart(InMemoryStore):
    """Does not look at `after`."""

    async def entries(self, session_id: str, **options: Any) -> list[Entry]:
        return (await super().entries(session_id, **{**options, "after": 0}))[:50]


class ShowsRuns(InMemoryStore):
    """Writes what a run logs into the history at once."""

    async def append_to_run(
        self, session_id: str, run_id: str, messages: Sequence[Message], **options: Any
    ) -> int:
        await self.append(session_id, messages, run_id=run_id)
        return await super().append_to_run(session_id, run_id, messages, **options)


class DoesNotFence(InMemoryStore):
    """Lets anybody write, with whatever lease."""

    async def append(self, session_id: str, messages: Sequence[Message], **options: Any) -> Any:
        return await super().append(session_id, messages, **{**options, "lease": None})


class ServesWhoAsks(InMemoryStore):
    """Keeps no line: a free lease goes to whoever asks first."""

    async def request_lease(self, session_id: str, *, holder: str, wait: bool) -> Lease | None:
        return await super().request_lease(session_id, holder=holder, wait=False)


class NeverExpires(InMemoryStore):
    """Waits for the dead."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ttl_s = self.lease_ttl_s
        self.lease_ttl_s = 1e9


class MixesTenants(InMemoryStore):
    """Has one room for all tenants."""

    def for_tenant(self, tenant: str) -> InMemoryStore:
        return self


class Reopens(InMemoryStore):
    """Works on after it was closed."""

    async def read(self, session_id: str, **options: Any) -> list[Message]:
        was_closed, self._shelf.is_closed = self._shelf.is_closed, False
        try:
            return await super().read(session_id, **options)
        finally:
            self._shelf.is_closed = was_closed


class RemembersFirst(InMemoryStore):
    """Adds what is to be remembered before it knows whether the messages can be written."""

    async def append(self, session_id: str, messages: Sequence[Message], **options: Any) -> Any:
        by = options.pop("by", None)
        added: list[Memory] = []
        if by is not None:
            added = await self.memories(by.owner).add(by.memories)
        written = await super().append(session_id, messages, **options)
        return replace(written, memories=tuple(added))


class ForgetsMemoriesOnly(InMemoryStore):
    """Leaves the conversations of whom it forgets."""

    async def forget(self, owner: Owner) -> Forgotten:
        return Forgotten(memories=await self.memories(owner).clear())


class ForgetsSharedConversations(InMemoryStore):
    """Deletes a conversation whoever else took part in it."""

    async def forget(self, owner: Owner) -> Forgotten:
        for found in await self.conversations(owner=owner):
            await self.delete(found.session_id)
        return await super().forget(owner)


class ForgetsAllUsers(InMemoryStore):
    """Takes every user of an agent for the one that it forgets."""

    async def forget(self, owner: Owner) -> Forgotten:
        everybody = Owner(agent_id=owner.agent_id, all_users=True)
        for found in await self.conversations(owner=everybody):
            await self.delete(found.session_id)
        return await super().forget(owner)


class ReusesVersions(InMemoryStore):
    """Counts from the last checkpoint that is there."""

    async def roll_back(self, session_id: str, run_id: str, **options: Any) -> None:
        await super().roll_back(session_id, run_id, **options)
        notes = self._notes(session_id, run_id)
        notes.last_version = notes.checkpoints[-1].version if notes.checkpoints else 0


class CountsBeforeItSaves(InMemoryStore):
    """Draws a version, and lets others in before it is used."""

    async def save_checkpoint(
        self, session_id: str, run_id: str, checkpoint: NewCheckpoint, **options: Any
    ) -> CheckpointRecord:
        last = self._notes(session_id, run_id).last_version
        await asyncio.sleep(0)
        saved = await super().save_checkpoint(session_id, run_id, checkpoint, **options)
        return replace(saved, version=last + 1)


class PrunesScopes(InMemoryStore):
    """Keeps the last checkpoints, whatever their scopes are."""

    async def save_checkpoint(
        self, session_id: str, run_id: str, checkpoint: NewCheckpoint, **options: Any
    ) -> CheckpointRecord:
        saved = await super().save_checkpoint(session_id, run_id, checkpoint, **options)
        if (keep_last := options.get("keep_last")) is not None:
            del self._notes(session_id, run_id).checkpoints[:-keep_last]
        return saved


class LogsBeforeItChecks(InMemoryStore):
    """Logs the messages of a checkpoint in a write of their own."""

    async def save_checkpoint(
        self, session_id: str, run_id: str, checkpoint: NewCheckpoint, **options: Any
    ) -> CheckpointRecord:
        await self.append_to_run(session_id, run_id, options.get("messages", ()))
        return await super().save_checkpoint(session_id, run_id, checkpoint, **options)


class DoesNotEndRuns(InMemoryStore):
    """Does not look at `ends_run`."""

    async def append(self, session_id: str, messages: Sequence[Message], **options: Any) -> Any:
        if options.get("by") is not None:
            options["by"] = replace(options["by"], ends_run=False)
        return await super().append(session_id, messages, **options)


class EndsRunsThatWrite(InMemoryStore):
    """Ends a run only when there is a message to write."""

    async def append(self, session_id: str, messages: Sequence[Message], **options: Any) -> Any:
        if not messages and options.get("by") is not None:
            options["by"] = replace(options["by"], ends_run=False)
        return await super().append(session_id, messages, **options)


class KeepsCheckpointsOfRedacted(InMemoryStore):
    """Redacts the log, and not what runs can be resumed from."""

    async def redact(self, session_id: str, redaction: Redaction) -> int:
        log = self._known(session_id)
        before = {run_id: replace(notes) for run_id, notes in log.notes.items()}
        kept = {run_id: list(notes.checkpoints) for run_id, notes in log.notes.items()}
        count = await super().redact(session_id, redaction)
        for run_id, notes in before.items():
            log.notes[run_id] = replace(notes, checkpoints=kept[run_id])
        return count


class ForgetsCalls(InMemoryStore):
    """Removes the calls that were rolled back."""

    async def calls(self, session_id: str, run_id: str) -> list[CallRecord]:
        found = await super().calls(session_id, run_id)
        return [call for call in found if not call.is_rolled_back]


class ReadsThePresent(InMemoryStore):
    """Does not look at `revision`."""

    async def read(self, session_id: str, **options: Any) -> list[Message]:
        return await super().read(session_id, last=options.get("last"))


WRONG_STORES: Mapping[type[InMemoryStore], str] = {
    LosesTheLast: "test_every_kind_of_message_comes_back test_last_reads_the_end "
    "test_concurrent_appends_lose_nothing",
    SortsByTime: "test_order_is_that_of_appending",
    ReadsTheBeginning: "test_last_reads_the_end test_the_end_is_read_across_branches "
    "test_the_end_is_read_across_forks test_order_is_that_of_appending",
    SharesObjects: "test_what_is_read_is_a_copy",
    CountsMessages: "test_appended_says_what_came_of_it test_a_commit_raises_the_revision_by_one "
    "test_a_batch_with_one_bad_message_leaves_nothing test_concurrent_appends_lose_nothing",
    Overwrites: "test_order_is_that_of_appending test_entries_are_numbered_without_gaps "
    "test_rebase_appends_behind_the_others test_concurrent_appends_lose_nothing",
    NeverConflicts: "test_another_revision_is_a_conflict test_one_of_two_racers_wins "
    "test_a_missing_conversation_is_at_revision_0 test_fork_leaves_the_conversation_alone",
    WritesTwice: "test_an_append_is_idempotent test_a_repeated_append_is_no_conflict "
    "test_an_append_skips_what_a_fork_inherited test_an_append_skips_what_the_branch_inherited",
    CleansTexts: "test_odd_texts_come_back",
    ForgetsErrors: "test_every_kind_of_message_comes_back",
    ForksAll: "test_a_fork_at_an_entry test_an_append_skips_what_a_fork_inherited",
    DeletesForks: "test_a_fork_goes_on_when_its_parent_is_gone test_a_fork_of_a_fork "
    "test_a_fork_keeps_big_media",
    RedactsThePresent: "test_redacting_reaches_every_branch test_removing_reaches_every_branch",
    KeepsDeleted: "test_deleting_removes_everything test_deleting_again_finds_nothing "
    "test_a_deleted_conversation_can_be_made_anew",
    ListsPagesTwice: "test_the_list_is_paged",
    AlwaysPagesFromTheStart: "test_entries_are_paged_across_branches",
    ShowsRuns: "test_a_run_is_invisible_until_it_is_committed "
    "test_a_commit_moves_a_run_to_the_history test_discarding_removes_a_run",
    DoesNotFence: "test_writes_under_a_lost_lease_are_refused test_deleting_ends_the_lease "
    "test_writes_after_a_release_are_refused",
    ServesWhoAsks: "test_first_come_first_served test_without_waiting_nobody_is_overtaken",
    MixesTenants: "test_tenants_do_not_read_each_other test_a_tenants_writes_stay_its_own "
    "test_leases_are_each_tenants_own",
    Reopens: "test_a_closed_store_says_so",
    RemembersFirst: "test_a_failed_write_remembers_nothing test_conversations_of_an_owner "
    "test_a_run_cannot_bring_an_owner_back",
    ForgetsMemoriesOnly: "test_an_owner_is_forgotten_whole test_a_fork_is_forgotten_too "
    "test_a_run_cannot_bring_an_owner_back",
    ForgetsSharedConversations: "test_a_shared_conversation_goes_on_without_the_owner",
    ForgetsAllUsers: "test_others_are_not_forgotten",
    ReusesVersions: "test_a_version_is_never_given_twice",
    CountsBeforeItSaves: "test_versions_are_unique_when_saved_at_once",
    PrunesScopes: "test_the_last_checkpoint_of_a_scope_is_kept",
    LogsBeforeItChecks: "test_messages_and_checkpoint_are_saved_together "
    "test_a_checkpoint_of_the_same_id_is_refused "
    "test_writes_of_runs_under_a_lost_lease_are_refused",
    DoesNotEndRuns: "test_an_append_ends_its_run test_a_run_ends_without_a_message "
    "test_a_run_whose_write_makes_a_fork_ends_where_it_began",
    EndsRunsThatWrite: "test_a_run_ends_without_a_message",
    KeepsCheckpointsOfRedacted: "test_a_redaction_takes_what_runs_resume_from",
    ForgetsCalls: "test_rolling_back_marks_later_calls",
    ReadsThePresent: "test_an_earlier_revision_is_read test_an_unknown_revision_is_refused",
}


class Suite(StoreConformance):
    """The suite, with the clock of the store under test."""

    def __init__(self) -> None:
        self.clock = ManualClock()

    async def let_time_pass(self, store: Store, seconds: float) -> None:
        self.clock.advance(seconds)


def is_passed(make: type[InMemoryStore], name: str) -> bool:
    """Run one test of the suite on a store of this class."""
    suite = Suite()
    store = make(clock=suite.clock)
    return _is_passed(getattr(suite, name)(store))


def _is_passed(test: Any) -> bool:
    """Run a test to its end; `pytest.raises` fails with an exception that is not an `Exception`."""
    try:
        with closing(asyncio.new_event_loop()) as loop:
            loop.run_until_complete(test)
    except (Exception, pytest.fail.Exception):
        return False
    return True


@pytest.mark.parametrize("wrong", WRONG_STORES, ids=lambda wrong: wrong.__name__)
def test_a_wrong_store_is_caught(wrong: type[InMemoryStore]) -> None:
    """A store with a fault fails the tests of what it breaks; without the fault they pass."""
    for name in WRONG_STORES[wrong].split():
        assert is_passed(InMemoryStore, name), f"{name} fails for the right store, too"
        assert not is_passed(wrong, name), f"{name} does not catch {wrong.__name__}"


def test_a_lease_that_never_expires_is_caught() -> None:
    """A store whose dead holders are waited for fails, though it says how long it takes."""
    for name in ("test_an_expired_lease_is_taken_over", "test_a_dead_waiter_is_skipped"):
        suite = Suite()
        store = NeverExpires(clock=suite.clock)

        async def let_time_pass(_: Store, seconds: float, suite: Suite = suite) -> None:
            suite.clock.advance(seconds / 1e9 * 30)

        suite.let_time_pass = let_time_pass  # type: ignore[method-assign]
        assert is_passed(InMemoryStore, name)
        assert not _is_passed(getattr(suite, name)(store))


class Appends:
    """Keeps what it had when it is given the whole conversation."""

    def __init__(self) -> None:
        self.kept: dict[str, list[Message]] = {}

    def load(self, session_id: str) -> list[Message]:
        return list(self.kept.get(session_id, []))

    def store(self, session_id: str, messages: list[Message]) -> None:
        self.kept.setdefault(session_id, []).extend(messages)


class KeepsTheList(Appends):
    """Keeps the caller's own list."""

    def store(self, session_id: str, messages: list[Message]) -> None:
        self.kept[session_id] = messages


class GivesTheList(Appends):
    """Gives the list that it keeps."""

    def load(self, session_id: str) -> list[Message]:
        return self.kept.setdefault(session_id, [])

    def store(self, session_id: str, messages: list[Message]) -> None:
        self.kept[session_id] = list(messages)


class FoldsNames(Appends):
    """Takes names that differ in case or blanks for one."""

    def load(self, session_id: str) -> list[Message]:
        return super().load(session_id.strip().lower())

    def store(self, session_id: str, messages: list[Message]) -> None:
        self.kept[session_id.strip().lower()] = list(messages)


class KeepsTexts(Appends):
    """Keeps the texts and nothing else."""

    def store(self, session_id: str, messages: list[Message]) -> None:
        self.kept[session_id] = [user(message.text) for message in messages]


class MissesUnknown(Appends):
    """Raises when there is nothing yet."""

    def load(self, session_id: str) -> list[Message]:
        return list(self.kept[session_id])


WRONG_PROVIDERS: Mapping[type[Appends], str] = {
    Appends: "test_storing_overwrites test_storing_nothing_empties test_conversations_do_not_share",
    KeepsTheList: "test_what_was_stored_is_copied",
    GivesTheList: "test_what_is_loaded_is_a_copy",
    FoldsNames: "test_session_ids_are_taken_verbatim",
    KeepsTexts: "test_every_kind_of_message_comes_back test_ids_and_times_come_back",
    MissesUnknown: "test_an_unknown_conversation_is_nothing",
}


@pytest.mark.parametrize("wrong", WRONG_PROVIDERS, ids=lambda wrong: wrong.__name__)
def test_a_wrong_provider_is_caught(wrong: type[Appends]) -> None:
    """A provider with a fault fails just the tests of what it breaks."""
    names = [name for name in dir(ChatHistoryProviderConformance) if name.startswith("test_")]
    suite = ChatHistoryProviderConformance()
    provider: ChatHistoryProvider
    failed: list[str] = []
    for name in names:
        provider = wrong()
        if not _is_passed(getattr(suite, name)(provider)):
            failed.append(name)
    assert set(WRONG_PROVIDERS[wrong].split()) <= set(failed)
    assert len(failed) < len(names)


def test_each_test_says_its_rule() -> None:
    """Every test of the suites has a docstring of one sentence or two, which is its rule."""
    for suite in (StoreConformance, ChatHistoryProviderConformance):
        for name, test in inspect.getmembers(suite, inspect.isfunction):
            if name.startswith("test_"):
                assert (test.__doc__ or "").rstrip().endswith("."), name


def test_every_operation_is_tested() -> None:
    """There is no operation of a store that the suite does not use."""
    operations = {name for name in Store.__abstractmethods__ if name != "is_closed"}
    used = {
        name
        for _, test in inspect.getmembers(StoreConformance, inspect.isfunction)
        for name in test.__code__.co_names
    }
    nested = {"renew_lease"}  # handed to a thread by a function beside the tests
    assert operations - nested <= used


def test_a_suite_of_ones_own(pytester: pytest.Pytester) -> None:
    """A subclass with a fixture is all it takes; what fails shows its values."""
    pytester.makepyfile(
        """
        import pytest

        from tenure.stores.inmemory import InMemoryStore
        from tenure.testing.conformance import AppendConformance

        class Reverses(InMemoryStore):
            async def read(self, session_id, **options):
                return (await super().read(session_id, **options))[::-1]

        class TestReverses(AppendConformance):
            @pytest.fixture
            async def store(self):
                store = Reverses()
                store.lease_ttl_s = 0.5
                yield store
                await store.close()

        class TestForgotten(AppendConformance):
            pass
        """
    )
    names = "test_order_is_that_of_appending or test_appending_nothing_does_nothing"
    result = pytester.runpytest_subprocess("-p", "anyio", "-k", names)
    result.assert_outcomes(passed=1, failed=1, errors=2)
    result.stdout.fnmatch_lines(
        [
            "*AssertionError: assert ?'third', 'early', 'late'? == ?'late', 'early', 'third'?",
            "*conformance_append.py:*",
        ]
    )
    result.stdout.fnmatch_lines(["*TestForgotten must override the fixture `store`.*"])


def test_the_doubles_need_no_pytest() -> None:
    """`tenure.testing` neither imports pytest nor needs it installed."""
    code = (
        "import sys; import tenure.testing; assert 'pytest' not in sys.modules;"
        "sys.modules['pytest'] = None; import importlib; importlib.reload(tenure.testing)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def _cleaned(message: Message) -> Message:
    if not isinstance(message, type(user("x"))):
        return message
    parts = [
        replace(part, text=part.text.replace("\0", "")) if isinstance(part, Text) else part
        for part in message.parts
    ]
    return replace(message, parts=tuple(parts))


def _pardoned(message: Message) -> Message:
    if not isinstance(message, ToolMessage):
        return message
    parts = [
        replace(part, is_error=False) if hasattr(part, "is_error") else part
        for part in message.parts
    ]
    return replace(message, parts=tuple(parts))
