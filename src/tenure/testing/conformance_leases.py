"""Conformance: leases, and the line of those who wait for one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tenure.errors import LeaseLostError
from tenure.stores.base import Lease, Store
from tenure.testing.conformance_suite import StoreSuite, everything, history, known, said


class LeaseConformance(StoreSuite):
    """`request_lease`, `renew_lease`, `release_lease`, and writing under a lease."""

    async def test_a_lease_is_exclusive(self, store: Store) -> None:
        """While one holds the lease, nobody else gets it; each conversation has its own."""
        lease = await take(store, "s", "a")
        assert (lease.session_id, lease.holder) == ("s", "a")
        assert await store.request_lease("s", holder="b", wait=False) is None
        assert await store.request_lease("s", holder="b", wait=True) is None
        assert (await take(store, "other", "b")).holder == "b"

    async def test_a_lease_needs_no_conversation(self, store: Store) -> None:
        """The lease of a conversation that does not exist may be taken; that creates nothing."""
        lease = await take(store, "s", "a")
        assert await store.conversation("s") is None
        assert await store.conversations() == []
        await store.append("s", said("1"), expected_revision=0, lease=lease)
        assert await history(store, "s") == ["1"]

    async def test_asking_again_gives_the_same_lease(self, store: Store) -> None:
        """Its holder gets the lease that it has, and holds it for another `lease_ttl_s`."""
        lease = await take(store, "s", "a")
        for wait in (False, True):
            await self.let_time_pass(store, store.lease_ttl_s * 0.6)
            assert await store.request_lease("s", holder="a", wait=wait) == lease
        await self.let_time_pass(store, store.lease_ttl_s * 0.6)
        assert await store.request_lease("s", holder="b", wait=False) is None

    async def test_a_released_lease_is_free(self, store: Store) -> None:
        """Who releases the lease gives it to the next, whose token is higher."""
        first = await take(store, "s", "a")
        await store.release_lease("s", holder="a")
        second = await take(store, "s", "b")
        assert second.token > first.token
        await store.release_lease("s", holder="b")
        third = await take(store, "s", "a")
        assert third.token > second.token

    async def test_releasing_what_one_has_not_does_nothing(self, store: Store) -> None:
        """Releasing is a no-op for who has neither the lease nor a place in line."""
        await store.release_lease("none", holder="a")
        lease = await take(store, "s", "a")
        await store.release_lease("s", holder="b")
        assert await store.request_lease("s", holder="b", wait=False) is None
        await store.append("s", said("1"), lease=lease)

    async def test_an_expired_lease_is_taken_over(self, store: Store) -> None:
        """A lease that was not renewed for `lease_ttl_s` is free; the next token is higher."""
        first = await take(store, "s", "a")
        await self.let_time_pass(store, store.lease_ttl_s * 0.6)
        assert await store.request_lease("s", holder="b", wait=False) is None
        await self.let_time_pass(store, store.lease_ttl_s * 0.6)
        second = await take(store, "s", "b")
        assert second.token > first.token
        assert await store.request_lease("s", holder="a", wait=False) is None

    async def test_a_renewed_lease_is_kept(self, store: Store) -> None:
        """Renewing holds a lease for another `lease_ttl_s`, counted from then."""
        lease = await take(store, "s", "a")
        for _ in range(3):
            await self.let_time_pass(store, store.lease_ttl_s * 0.6)
            assert await renewed(store, lease) is True
            assert await store.request_lease("s", holder="b", wait=False) is None
        await self.let_time_pass(store, store.lease_ttl_s * 0.6)
        await store.append("s", said("1"), lease=lease)
        assert await store.request_lease("s", holder="b", wait=False) is None
        await self.let_leases_expire(store)
        await take(store, "s", "b")

    async def test_a_lost_lease_cannot_be_renewed(self, store: Store) -> None:
        """Renewing a lease that was taken over, released or never given returns False."""
        first = await take(store, "s", "a")
        await self.let_leases_expire(store)
        second = await take(store, "s", "b")
        assert await renewed(store, first) is False
        assert await renewed(store, second) is True
        await store.release_lease("s", holder="b")
        assert await renewed(store, second) is False
        assert await renewed(store, Lease(session_id="none", holder="a", token=1)) is False
        await take(store, "s", "c")

    # --- writing ---

    async def test_the_holder_writes(self, store: Store) -> None:
        """Every write that takes a lease happens while it is held."""
        lease = await take(store, "s", "a")
        await store.append("s", said("1", "2"), lease=lease)
        await store.start_branch("s", said("a"), after=1, lease=lease)
        await store.append_to_run("s", "r", said("3"), lease=lease)
        await store.commit_run("s", "r", lease=lease)
        assert await history(store, "s") == ["1", "a", "3"]

    async def test_a_lease_keeps_nobody_else_from_writing(self, store: Store) -> None:
        """Writes without a lease are not held up by anybody's."""
        await take(store, "s", "a")
        await store.append("s", said("1", "2"))
        await store.start_branch("s", said("a"), after=1)
        await store.append_to_run("s", "r", said("3"))
        await store.commit_run("s", "r")
        await store.redact("s", lambda m: None if m.text == "1" else m)
        assert await history(store, "s") == ["a", "3"]
        assert await store.delete("s") is True

    async def test_writes_under_a_lost_lease_are_refused(self, store: Store) -> None:
        """Once the lease is somebody else's, no write of the earlier holder happens."""
        await store.append("s", said("1"))
        lost = await take(store, "s", "a")
        await store.append_to_run("s", "r", said("pending"), lease=lost)
        await self.let_leases_expire(store)
        await take(store, "s", "b")
        await self.check_refused(store, lost)
        await store.release_lease("s", holder="b")
        await self.check_refused(store, lost)
        await take(store, "s", "a")  # the same name, but another lease
        await self.check_refused(store, lost)

    async def test_writes_after_a_release_are_refused(self, store: Store) -> None:
        """A lease that was given up is not held any more, though nobody else has taken it."""
        await store.append("s", said("1"))
        lost = await take(store, "s", "a")
        await store.append_to_run("s", "r", said("pending"), lease=lost)
        await store.release_lease("s", holder="a")
        await self.check_refused(store, lost)

    async def test_writes_under_an_invented_lease_are_refused(self, store: Store) -> None:
        """A lease counts as held only with its holder and token."""
        await store.append("s", said("1"))
        await store.append_to_run("s", "r", said("pending"))
        await self.check_refused(store, Lease(session_id="s", holder="a", token=1))
        lease = await take(store, "s", "a")
        for holder, token in (("b", lease.token), ("a", lease.token + 1), ("a", lease.token - 1)):
            await self.check_refused(store, Lease(session_id="s", holder=holder, token=token))

    async def test_a_lost_lease_says_nothing_of_the_others(self, store: Store) -> None:
        """After a refused write the new holder writes as before."""
        lost = await take(store, "s", "a")
        await self.let_leases_expire(store)
        held = await take(store, "s", "b")
        with pytest.raises(LeaseLostError):
            await store.append("s", said("late"), lease=lost)
        assert await store.conversation("s") is None
        await store.append("s", said("1"), lease=held)
        assert await history(store, "s") == ["1"]

    async def test_deleting_ends_the_lease(self, store: Store) -> None:
        """Who holds the lease of a deleted conversation loses it, and cannot bring it back (C75)."""
        await store.append("s", said("1"))
        lost = await take(store, "s", "a")
        await store.delete("s")
        assert await renewed(store, lost) is False
        with pytest.raises(LeaseLostError):
            await store.append("s", said("late"), lease=lost)
        with pytest.raises(LeaseLostError):
            await store.append_to_run("s", "r", said("late"), lease=lost)
        assert await store.conversation("s") is None
        assert (await take(store, "s", "b")).holder == "b"

    async def test_tokens_rise_past_a_deletion(self, store: Store) -> None:
        """The lease of a conversation made anew is told apart from those of the deleted one."""
        lost = await take(store, "s", "a")
        await store.append("s", said("1"), lease=lost)
        await store.delete("s")
        held = await take(store, "s", "a")
        assert held.token > lost.token
        await store.append("s", said("2"), lease=held)
        with pytest.raises(LeaseLostError):
            await store.append("s", said("late"), lease=lost)
        assert await history(store, "s") == ["2"]

    # --- the line ---

    async def test_first_come_first_served(self, store: Store) -> None:
        """The lease goes to those who stand in line in the order in which they came."""
        await take(store, "s", "a")
        for holder in "bcd":
            assert await store.request_lease("s", holder=holder, wait=True) is None
        holding = "a"
        for following in "bcd":
            await store.release_lease("s", holder=holding)
            for other in "dcb":
                if other > following:
                    assert await store.request_lease("s", holder=other, wait=True) is None
            await take(store, "s", following, wait=True)
            holding = following

    async def test_asking_again_keeps_the_place(self, store: Store) -> None:
        """The same name is the same place in line, which asking again keeps."""
        lease = await take(store, "s", "a")
        for _ in range(4):
            for holder in "bc":
                assert await store.request_lease("s", holder=holder, wait=True) is None
            await self.let_time_pass(store, store.lease_ttl_s * 0.6)
            assert await renewed(store, lease) is True
        await store.release_lease("s", holder="a")
        assert await store.request_lease("s", holder="c", wait=True) is None
        await take(store, "s", "b", wait=True)

    async def test_an_expired_lease_goes_down_the_line(self, store: Store) -> None:
        """When the holder dies the first in line is next, and not whoever asks first."""
        await take(store, "s", "a")
        await self.let_time_pass(store, store.lease_ttl_s * 0.6)
        for holder in "bc":
            assert await store.request_lease("s", holder=holder, wait=True) is None
        await self.let_time_pass(store, store.lease_ttl_s * 0.6)
        assert await store.request_lease("s", holder="c", wait=True) is None
        assert await store.request_lease("s", holder="d", wait=True) is None
        await take(store, "s", "b", wait=True)

    async def test_a_dead_waiter_is_skipped(self, store: Store) -> None:
        """A place that is not asked for again for `lease_ttl_s` is lost."""
        lease = await take(store, "s", "a")
        for holder in "bc":
            assert await store.request_lease("s", holder=holder, wait=True) is None
        for _ in range(2):
            await self.let_time_pass(store, store.lease_ttl_s * 0.6)
            assert await renewed(store, lease) is True
            assert await store.request_lease("s", holder="c", wait=True) is None
        await store.release_lease("s", holder="a")
        await take(store, "s", "c", wait=True)

    async def test_a_lost_place_is_at_the_end_again(self, store: Store) -> None:
        """Who comes back after losing a place stands behind those who stayed."""
        lease = await take(store, "s", "a")
        for holder in "bc":
            assert await store.request_lease("s", holder=holder, wait=True) is None
        for _ in range(2):
            await self.let_time_pass(store, store.lease_ttl_s * 0.6)
            assert await renewed(store, lease) is True
            assert await store.request_lease("s", holder="c", wait=True) is None
        assert await store.request_lease("s", holder="b", wait=True) is None
        await store.release_lease("s", holder="a")
        assert await store.request_lease("s", holder="b", wait=True) is None
        await take(store, "s", "c", wait=True)
        await store.release_lease("s", holder="c")
        await take(store, "s", "b", wait=True)

    async def test_a_waiter_may_withdraw(self, store: Store) -> None:
        """`release_lease` gives up a place in line, too; the holder keeps the lease."""
        lease = await take(store, "s", "a")
        for holder in "bc":
            assert await store.request_lease("s", holder=holder, wait=True) is None
        await store.release_lease("s", holder="b")
        assert await renewed(store, lease) is True
        await store.release_lease("s", holder="a")
        await take(store, "s", "c", wait=True)

    async def test_a_cancelled_release_is_done(self, store: Store) -> None:
        """Who is cancelled while releasing, in however early a moment, has released all the same."""
        for ticks in range(4):
            await take(store, "s", "a")
            task = asyncio.create_task(store.release_lease("s", holder="a"))
            await asyncio.sleep(0)
            for _ in range(ticks):
                task.cancel()
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            await take(store, "s", "b")
            await store.release_lease("s", holder="b")

    async def test_without_waiting_there_is_no_place(self, store: Store) -> None:
        """`wait=False` keeps no place in line."""
        await take(store, "s", "a")
        assert await store.request_lease("s", holder="b", wait=False) is None
        await store.release_lease("s", holder="a")
        await take(store, "s", "c", wait=False)
        await store.release_lease("s", holder="c")
        assert await store.request_lease("s", holder="d", wait=True) is not None

    async def test_without_waiting_nobody_is_overtaken(self, store: Store) -> None:
        """`wait=False` does not get a free lease that somebody stands in line for."""
        await take(store, "s", "a")
        assert await store.request_lease("s", holder="b", wait=True) is None
        await store.release_lease("s", holder="a")
        assert await store.request_lease("s", holder="c", wait=False) is None
        await take(store, "s", "b", wait=True)

    async def test_a_served_waiter_leaves_the_line(self, store: Store) -> None:
        """Who got the lease and released it stands in line no more."""
        await take(store, "s", "a")
        assert await store.request_lease("s", holder="b", wait=True) is None
        await store.release_lease("s", holder="a")
        await take(store, "s", "b", wait=True)
        await store.release_lease("s", holder="b")
        await take(store, "s", "c", wait=False)

    async def test_one_of_many_gets_the_lease(self, store: Store) -> None:
        """Of many that ask at once one gets the lease, and all get it in turn (C08)."""
        holders = [f"h{n}" for n in range(10)]
        served: list[Lease] = []
        while len(served) < len(holders):
            waiting = [h for h in holders if h not in {lease.holder for lease in served}]
            leases = await asyncio.gather(
                *(store.request_lease("s", holder=holder, wait=True) for holder in waiting)
            )
            (lease,) = [lease for lease in leases if lease is not None]
            served.append(lease)
            await store.release_lease("s", holder=lease.holder)
        tokens = [lease.token for lease in served]
        assert tokens == sorted(set(tokens))

    async def check_refused(self, store: Store, lost: Lease) -> None:
        """Check that no write under this lease happens."""
        before = await everything(store, "s")
        writes: list[Callable[[], Awaitable[object]]] = [
            lambda: store.append("s", said("late"), lease=lost),
            lambda: store.append("s", said("late"), on_conflict="rebase", lease=lost),
            lambda: store.start_branch("s", said("late"), after=0, lease=lost),
            lambda: store.append_to_run("s", "r", said("late"), lease=lost),
            lambda: store.append_to_run("s", "new", said("late"), lease=lost),
            lambda: store.commit_run("s", "r", lease=lost),
        ]
        for write in writes:
            with pytest.raises(LeaseLostError):
                await write()
        assert await everything(store, "s") == before
        assert (await known(store, "s")).message_count == 1


async def take(store: Store, session_id: str, holder: str, *, wait: bool = False) -> Lease:
    """Take a lease that must be to be had."""
    lease = await store.request_lease(session_id, holder=holder, wait=wait)
    assert lease is not None, f"{holder!r} should get the lease of {session_id!r}"
    return lease


async def renewed(store: Store, lease: Lease) -> bool:
    """Renew a lease, as a heartbeat does: from another thread."""
    return await asyncio.to_thread(store.renew_lease, lease)
