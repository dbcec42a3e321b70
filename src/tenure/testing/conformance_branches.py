"""Conformance: starting branches, forking conversations, and reading across their borders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tenure.errors import (
    ConflictError,
    ConversationExistsError,
    InvalidValueError,
    UnknownConversationError,
)
from tenure.messages import Media, Usage
from tenure.saying import user
from tenure.stores.base import Appended, Branch, Store
from tenure.testing.conformance_suite import (
    StoreSuite,
    everything,
    history,
    known,
    log,
    names,
    reply,
    said,
    unstorable,
)


class BranchConformance(StoreSuite):
    """`start_branch`."""

    async def test_a_branch_replaces_the_end(self, store: Store) -> None:
        """The history becomes everything up to `after`, then the messages, in one commit."""
        await store.append("s", said("1", "2", "3"))
        made = await store.start_branch("s", said("a", "b"), after=1)
        assert made == Appended(session_id="s", revision=2, last_seq=3, written=2)
        assert await history(store, "s") == ["1", "a", "b"]
        found = await known(store, "s")
        assert (found.revision, found.last_seq, found.message_count) == (2, 3, 3)

    async def test_entries_of_a_branch_are_numbered_on(self, store: Store) -> None:
        """A branch's first entry has the number behind `after`, and there are no gaps."""
        await store.append("s", said("1", "2", "3"))
        await store.start_branch("s", said("a"), after=2)
        await store.append("s", said("b"))
        assert log(await store.entries("s")) == [(1, "1"), (2, "2"), (3, "a"), (4, "b")]

    async def test_a_branch_after_0_keeps_none(self, store: Store) -> None:
        """`after=0` keeps nothing of the history."""
        await store.append("s", said("1", "2"))
        await store.start_branch("s", said("a"), after=0)
        assert log(await store.entries("s")) == [(1, "a")]
        assert await history(store, "s", last=5) == ["a"]

    async def test_a_branch_without_messages_cuts(self, store: Store) -> None:
        """Without messages the history ends at `after`; and it may be emptied."""
        await store.append("s", said("1", "2", "3"))
        made = await store.start_branch("s", after=2)
        assert made == Appended(session_id="s", revision=2, last_seq=2, written=0)
        assert await history(store, "s") == ["1", "2"]
        made = await store.start_branch("s", after=0)
        assert made == Appended(session_id="s", revision=3, last_seq=0, written=0)
        assert await store.read("s") == []
        assert (await known(store, "s")).message_count == 0
        await store.append("s", said("new"))
        assert log(await store.entries("s")) == [(1, "new")]

    async def test_a_branch_at_the_end_keeps_all(self, store: Store) -> None:
        """`after` may be the last entry."""
        await store.append("s", said("1", "2"))
        await store.start_branch("s", said("a"), after=2)
        assert await history(store, "s") == ["1", "2", "a"]

    async def test_a_place_that_is_not_there_is_refused(self, store: Store) -> None:
        """An `after` that is negative or behind the end raises, and changes nothing."""
        await store.append("s", said("1", "2"))
        await store.start_branch("s", after=1)
        before = await everything(store, "s")
        for after in (-1, 2, 99):
            with pytest.raises(InvalidValueError):
                await store.start_branch("s", said("x"), after=after)
            with pytest.raises(InvalidValueError):
                await store.fork("s", "f", after=after)
        assert await everything(store, "s") == before
        assert names(await store.conversations()) == ["s"]

    async def test_the_old_branch_can_be_read(self, store: Store) -> None:
        """The branch that was the history stays as it is, and can be read by its number."""
        await store.append("s", said("1", "2", "3"))
        old = await store.entries("s")
        await store.start_branch("s", said("a"), after=1)
        await store.append("s", said("b"))
        branch = (await known(store, "s")).branch
        assert branch != 1
        assert await store.entries("s", branch=1) == old
        assert await store.entries("s", branch=branch) == await store.entries("s")
        await store.start_branch("s", said("z"), after=2)
        assert log(await store.entries("s", branch=branch)) == [(1, "1"), (2, "a"), (3, "b")]
        assert await store.entries("s", branch=1) == old

    async def test_branches_tell_their_parents(self, store: Store) -> None:
        """`branches` gives each branch's number, the one it continues, and what the two share."""
        await store.append("s", said("1", "2", "3"))
        assert await store.branches("s") == [
            Branch(branch=1, parent=None, parent_seq=0, run_id=None)
        ]
        await store.start_branch("s", said("a"), after=2)
        await store.start_branch("s", said("z"), after=1)
        assert await store.branches("s") == [
            Branch(branch=1, parent=None, parent_seq=0, run_id=None),
            Branch(branch=2, parent=1, parent_seq=2, run_id=None),
            Branch(branch=3, parent=2, parent_seq=1, run_id=None),
        ]
        assert (await known(store, "s")).branch == 3

    async def test_a_branch_that_is_not_there_is_empty(self, store: Store) -> None:
        """A branch that does not exist has no entries, not those of the history (C43)."""
        await store.append("s", said("1"))
        for branch in (0, 2, -1, 99):
            assert await store.entries("s", branch=branch) == []

    async def test_what_the_kept_part_has_is_skipped(self, store: Store) -> None:
        """An id that the kept part has already is skipped (C14)."""
        one, two, three = said("1", "2", "3")
        await store.append("s", [one, two])
        made = await store.start_branch("s", [one, three, three], after=1)
        assert (made.written, made.last_seq) == (1, 2)
        assert await history(store, "s") == ["1", "3"]

    async def test_what_was_cut_off_can_be_written_again(self, store: Store) -> None:
        """An id that only another branch has is written, by either way of writing."""
        one, two, three = said("1", "2", "3")
        await store.append("s", [one, two, three])
        made = await store.start_branch("s", [replace(two, metadata={"n": 2})], after=1)
        assert made.written == 1
        assert (await store.append("s", [three])).written == 1
        assert await history(store, "s") == ["1", "2", "3"]
        assert (await store.read("s"))[1].metadata == {"n": 2}
        assert (await store.entries("s", branch=1))[1].message.metadata == {}

    async def test_an_append_skips_what_the_branch_inherited(self, store: Store) -> None:
        """Appending is idempotent over the whole history, earlier branches included (C14)."""
        one, two, three = said("1", "2", "3")
        await store.append("s", [one, two])
        await store.start_branch("s", [three], after=1)
        await store.start_branch("s", after=2)
        before = await everything(store, "s")
        assert (await store.append("s", [one, three], expected_revision=0)).written == 0
        assert await everything(store, "s") == before

    async def test_a_branch_has_its_run(self, store: Store) -> None:
        """The messages of a branch are those of the run that started it."""
        await store.append("s", said("1"), run_id="r1")
        await store.start_branch("s", said("a"), after=1, run_id="r2")
        found = await store.entries("s")
        assert [(e.run_id, e.is_failed) for e in found] == [("r1", False), ("r2", False)]

    async def test_a_branch_needs_a_conversation(self, store: Store) -> None:
        """A branch of a conversation that does not exist is refused."""
        with pytest.raises(UnknownConversationError):
            await store.start_branch("none", said("x"), after=0)
        assert await store.conversations() == []

    async def test_a_branch_may_conflict(self, store: Store) -> None:
        """`expected_revision` is as for `append`; a conflict raises and changes nothing."""
        await store.append("s", said("1"))
        await store.append("s", said("2"))
        before = await everything(store, "s")
        for expected in (0, 1, 3):
            with pytest.raises(ConflictError) as caught:
                await store.start_branch("s", said("x"), after=1, expected_revision=expected)
            assert (caught.value.expected_revision, caught.value.revision) == (expected, 2)
        assert await everything(store, "s") == before
        await store.start_branch("s", said("a"), after=1, expected_revision=2)
        assert await history(store, "s") == ["1", "a"]

    async def test_a_refused_branch_leaves_the_history(self, store: Store) -> None:
        """When one message cannot be stored, nothing happens: no branch, no cut (C57, C64)."""
        await store.append("s", said("1", "2"))
        before = await everything(store, "s")
        with pytest.raises(InvalidValueError):
            await store.start_branch("s", [*said("a"), unstorable()], after=1)
        assert await everything(store, "s") == before

    async def test_the_end_is_read_across_branches(self, store: Store) -> None:
        """`last` gives the same as the end of all, however many branches the history lies on."""
        await many_branches(store, "s")
        whole = await history(store, "s")
        assert whole == ["1", "2", "a", "b", "y", "z"]
        for last in range(9):
            assert await history(store, "s", last) == whole[max(0, len(whole) - last) :]

    async def test_entries_are_paged_across_branches(self, store: Store) -> None:
        """`after` and `limit` page through the present history, and through old branches."""
        await many_branches(store, "s")
        for branch in (None, *(b.branch for b in await store.branches("s"))):
            whole = await store.entries("s", branch=branch)
            assert [entry.seq for entry in whole] == list(range(1, len(whole) + 1))
            for after in range(8):
                for limit in (None, 0, 1, 2, 3, 9):
                    page = await store.entries("s", after=after, limit=limit, branch=branch)
                    assert log(page) == log(whole[after:][:limit])


class ForkConformance(StoreSuite):
    """`fork`, and what the two conversations have to do with each other: nothing."""

    async def test_a_fork_has_the_same_entries(self, store: Store) -> None:
        """A fork starts with the other's history: messages, numbers, runs."""
        await store.append("s", said("1", "2"), run_id="r")
        await store.start_branch("s", said("a"), after=1)
        made = await store.fork("s", "f")
        assert made == Appended(session_id="f", revision=1, last_seq=2, written=0)
        assert await store.entries("f") == await store.entries("s")
        found = await known(store, "f")
        assert (found.revision, found.last_seq, found.message_count) == (1, 2, 2)
        assert found.branch in [branch.branch for branch in await store.branches("f")]
        assert [branch.parent for branch in await store.branches("f")] == [None]

    async def test_a_fork_at_an_entry(self, store: Store) -> None:
        """`after` is the last entry to take over; 0 takes over none."""
        await store.append("s", said("1", "2", "3"))
        for after in range(4):
            await store.fork("s", f"f{after}", after=after)
            assert await history(store, f"f{after}") == ["1", "2", "3"][:after]
            await store.append(f"f{after}", said("x"))
            assert log(await store.entries(f"f{after}"))[-1] == (after + 1, "x")
            assert await history(store, f"f{after}", last=1) == ["x"]

    async def test_a_fork_needs_a_conversation(self, store: Store) -> None:
        """Forking a conversation that does not exist is refused."""
        with pytest.raises(UnknownConversationError):
            await store.fork("none", "f")
        assert await store.conversations() == []

    async def test_a_fork_needs_a_new_name(self, store: Store) -> None:
        """Forking to a name that is taken is refused, the own one included."""
        await store.append("s", said("1"))
        await store.append("other", said("o"))
        for name in ("s", "other"):
            with pytest.raises(ConversationExistsError):
                await store.fork("s", name)
        assert await history(store, "s") == ["1"]
        assert await history(store, "other") == ["o"]

    async def test_a_fork_does_not_raise_the_parents_revision(self, store: Store) -> None:
        """Being forked changes nothing."""
        await store.append("s", said("1"))
        before = await everything(store, "s")
        await store.fork("s", "f")
        assert await everything(store, "s") == before

    async def test_nothing_done_to_the_parent_shows_in_a_fork(self, store: Store) -> None:
        """Whatever is done to the parent, deleting included, the fork stays what it is."""
        await store.append("s", said("1", "2", "3"))
        await store.fork("s", "f")
        before = await everything(store, "f")
        await store.append("s", said("more"))
        assert await everything(store, "f") == before
        await store.start_branch("s", said("a"), after=1)
        assert await everything(store, "f") == before
        await store.redact("s", lambda message: replace(message, parts=user("***").parts))
        assert await everything(store, "f") == before
        await store.redact("s", lambda _: None)
        assert await everything(store, "f") == before
        await store.rename("s", "t")
        assert await everything(store, "f") == before
        await store.delete("t")
        assert await everything(store, "f") == before
        await store.append("s", said("another"))
        await store.append("t", said("another"))
        assert await everything(store, "f") == before
        assert await history(store, "f", last=2) == ["2", "3"]

    async def test_nothing_done_to_a_fork_shows_in_the_parent(self, store: Store) -> None:
        """Whatever is done to a fork, deleting included, the parent stays what it is."""
        await store.append("s", said("1", "2", "3"))
        before = await everything(store, "s")
        await store.fork("s", "f")
        await store.append("f", said("more"))
        await store.start_branch("f", said("a"), after=2)
        await store.redact("f", lambda m: None if m.text == "1" else m)
        assert await history(store, "f") == ["2", "a"]
        assert await everything(store, "s") == before
        await store.rename("f", "g")
        await store.delete("g")
        assert await everything(store, "s") == before

    async def test_a_fork_goes_on_when_its_parent_is_gone(self, store: Store) -> None:
        """A fork can be read, appended to, branched and redacted after its parent's deletion."""
        await store.append("s", said("1", "2", "3"))
        await store.fork("s", "f")
        await store.delete("s")
        await store.append("f", said("4"))
        await store.start_branch("f", said("a"), after=2)
        await store.redact("f", lambda m: None if m.text == "1" else m)
        assert log(await store.entries("f")) == [(2, "2"), (3, "a")]
        assert log(await store.entries("f", branch=1)) == [(2, "2"), (3, "3"), (4, "4")]

    async def test_a_fork_of_a_fork(self, store: Store) -> None:
        """Forks can be forked, and the last lives on without all before it."""
        await store.append("s", said("1", "2"))
        await store.fork("s", "f")
        await store.append("f", said("3"))
        await store.fork("f", "g", after=3)
        await store.append("g", said("4"))
        await store.fork("g", "h", after=1)
        for name in ("f", "s"):
            await store.delete(name)
            assert log(await store.entries("g")) == [(1, "1"), (2, "2"), (3, "3"), (4, "4")]
            for last in range(6):
                assert await history(store, "g", last) == list("1234")[max(0, 4 - last) :]
            assert await history(store, "h") == ["1"]

    async def test_a_sibling_lives_on_without_its_sibling(self, store: Store) -> None:
        """Deleting one fork leaves the others of the same parent."""
        await store.append("s", said("1", "2"))
        await store.fork("s", "f")
        await store.fork("s", "g")
        await store.delete("s")
        await store.delete("f")
        assert await history(store, "g") == ["1", "2"]

    async def test_an_append_skips_what_a_fork_inherited(self, store: Store) -> None:
        """Appending to a fork is idempotent over what it inherited, and over that only (C14)."""
        one, two, three = said("1", "2", "3")
        await store.append("s", [one, two, three])
        await store.fork("s", "f", after=2)
        before = await everything(store, "f")
        assert (await store.append("f", [two, one], expected_revision=0)).written == 0
        assert await everything(store, "f") == before
        assert (await store.append("f", [one, three])).written == 1
        assert await history(store, "f") == ["1", "2", "3"]

    async def test_a_fork_can_be_branched_in_what_it_inherited(self, store: Store) -> None:
        """A branch of a fork may start before the fork did."""
        await store.append("s", said("1", "2", "3"))
        await store.fork("s", "f")
        await store.append("f", said("4"))
        await store.start_branch("f", said("a"), after=1)
        assert log(await store.entries("f")) == [(1, "1"), (2, "a")]
        assert await history(store, "f", last=2) == ["1", "a"]
        assert log(await store.entries("f", branch=1)) == list(enumerate("1234", 1))

    async def test_the_end_is_read_across_forks(self, store: Store) -> None:
        """`last` and pages are right across the borders of forks and branches."""
        await many_branches(store, "s")
        await store.fork("s", "f", after=5)
        await many_branches(store, "f", start=5)
        whole = ["1", "2", "a", "b", "y", "1", "2", "a", "b", "y", "z"]
        assert await history(store, "f") == whole
        for last in range(13):
            assert await history(store, "f", last) == whole[max(0, 11 - last) :]
        for after in range(12):
            page = await store.entries("f", after=after, limit=3)
            assert log(page) == list(enumerate(whole, 1))[after : after + 3]

    async def test_a_fork_counts_its_own_usage(self, store: Store) -> None:
        """A fork's usage is that of the replies appended to it, not of those it inherited."""
        await store.append("s", [reply("1", tokens=10)])
        await store.fork("s", "f")
        await store.append("f", [reply("2", tokens=200)])
        assert (await known(store, "f")).usage == Usage(
            input_tokens=200, output_tokens=1, requests=1
        )

    async def test_a_fork_has_no_runs_and_no_other_branches(self, store: Store) -> None:
        """A fork takes over the history, not what runs are writing, nor old branches."""
        await store.append("s", said("1", "2"))
        await store.start_branch("s", said("a"), after=1)
        await store.append_to_run("s", "r", said("pending"))
        await store.fork("s", "f")
        assert await store.run_entries("f", "r") == []
        assert len(await store.branches("f")) == 1
        assert (await store.commit_run("f", "r")).written == 0
        assert await history(store, "f") == ["1", "a"]

    async def test_a_fork_keeps_big_media(self, store: Store) -> None:
        """Big media stay with a fork when the parent redacts them or is deleted."""
        picture = Media(media_type="image/png", data=b"\xff\0" * 50_000)
        await store.append("s", messages := [user("look", picture), user("and", picture)])
        for name, after in (("f", None), ("g", 1)):
            await store.fork("s", name, after=after)
        await store.redact("s", lambda message: None if message.text == "look" else message)
        assert await store.read("f") == messages
        await store.delete("s")
        assert await store.read("f") == messages
        await store.delete("f")
        assert await store.read("g") == messages[:1]


async def many_branches(store: Store, session_id: str, *, start: int = 0) -> None:
    """Make a history of six entries behind `start` that lies on four branches."""
    await store.append(session_id, said("1", "2", "3"))
    await store.start_branch(session_id, said("a", "b", "c"), after=start + 2)
    await store.start_branch(session_id, after=start + 4)
    await store.start_branch(session_id, said("y"), after=start + 4)
    await store.append(session_id, said("z"))
