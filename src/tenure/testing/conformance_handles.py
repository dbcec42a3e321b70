"""Conformance: tenants, closing, cancellation, and use by many tasks, threads and event loops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from tenure.errors import (
    InvalidValueError,
    StoreClosedError,
    UnknownConversationError,
)
from tenure.messages import Media
from tenure.saying import user
from tenure.stores.base import Lease, Store
from tenure.testing.conformance_suite import (
    StoreSuite,
    everything,
    history,
    known,
    log,
    names,
    said,
    texts,
    unstorable,
)

_TENANTS = ("acme", "acme-corp", "ACME", "acm_", "%", "acme ", "日本", "")
"""Names of which one contains, matches or resembles another."""


class TenantConformance(StoreSuite):
    """`for_tenant`."""

    async def test_a_handle_has_its_tenant(self, store: Store) -> None:
        """A store's own tenant is the empty one; a handle's is the one that it was made for."""
        assert store.tenant == ""
        assert store.for_tenant("acme").tenant == "acme"
        assert store.for_tenant("acme").for_tenant("other").tenant == "other"
        assert store.for_tenant("acme").lease_ttl_s == store.lease_ttl_s

    async def test_two_handles_of_a_tenant_see_the_same(self, store: Store) -> None:
        """Handles of one tenant read and write the same conversations."""
        await store.for_tenant("acme").append("s", said("1"))
        await store.for_tenant("other").for_tenant("acme").append("s", said("2"))
        assert await history(store.for_tenant("acme"), "s") == ["1", "2"]

    async def test_tenants_do_not_read_each_other(self, store: Store) -> None:
        """The same names in two tenants are two conversations (C70, C71)."""
        for tenant in _TENANTS:
            handle = store.for_tenant(tenant)
            assert await handle.conversations() == []
            await handle.append("s", said(f"in {tenant}"))
            await handle.append_to_run("s", "r", said(f"run in {tenant}"))
            await handle.append(f"of {tenant}", said("x"))
        for tenant in _TENANTS:
            handle = store.for_tenant(tenant)
            assert await history(handle, "s") == await history(handle, "s", 3) == [f"in {tenant}"]
            assert log(await handle.entries("s")) == [(1, f"in {tenant}")]
            pending = texts(entry.message for entry in await handle.run_entries("s", "r"))
            assert pending == [f"run in {tenant}"]
            assert len(await handle.branches("s")) == 2
            found = await handle.conversations()
            assert sorted(names(found)) == sorted(["s", f"of {tenant}"])
            assert names(await handle.conversations(after=found[0])) == names(found)[1:]

    async def test_a_tenant_has_nothing_of_anothers(self, store: Store) -> None:
        """What only another tenant has is not there, for reading and for every write (C70)."""
        theirs, mine = store.for_tenant("acme"), store.for_tenant("acme-corp")
        await theirs.append("s", said("1", "2"))
        await theirs.append_to_run("s", "r", said("pending"))
        before = await everything(theirs, "s")
        assert await mine.read("s") == await mine.read("s", last=1) == []
        assert await mine.entries("s") == await mine.entries("s", branch=1) == []
        assert await mine.branches("s") == await mine.run_entries("s", "r") == []
        assert await mine.conversation("s") is None
        assert await mine.conversations() == []
        writes: list[Callable[[], Awaitable[object]]] = [
            lambda: mine.start_branch("s", said("x"), after=1),
            lambda: mine.fork("s", "f"),
            lambda: mine.rename("s", "t"),
            lambda: mine.set_metadata("s", {"x": 1}),
            lambda: mine.redact("s", lambda _: None),
        ]
        for write in writes:
            with pytest.raises(UnknownConversationError):
                await write()
        assert (await mine.commit_run("s", "r")).written == 0
        assert await mine.discard_run("s", "r") is False
        assert await mine.delete("s") is False
        assert await everything(theirs, "s") == before
        assert await mine.conversations() == []

    async def test_a_tenants_writes_stay_its_own(self, store: Store) -> None:
        """No write of one tenant changes a conversation of the same name of another's (C71)."""
        theirs, mine = store.for_tenant("acme"), store.for_tenant("acme-corp")
        messages = said("1", "2", "3")
        for handle in (theirs, mine):
            assert (await handle.append("s", messages, expected_revision=0)).written == 3
            await handle.append_to_run("s", "r", said("pending"))
        before = await everything(theirs, "s")
        await mine.append("s", said("4"), expected_revision=1)
        await mine.start_branch("s", said("a"), after=1)
        await mine.append_to_run("s", "r", said("more"))
        await mine.redact("s", lambda m: None if m.text == "1" else m)
        await mine.set_metadata("s", {"x": 1})
        await mine.commit_run("s", "r")
        await mine.append_to_run("s", "r", said("more"))
        await mine.discard_run("s", "r")
        assert await everything(theirs, "s") == before
        await mine.rename("s", "t")
        await mine.fork("t", "s")
        await mine.delete("s")
        await mine.delete("t")
        assert await everything(theirs, "s") == before
        assert names(await theirs.conversations()) == ["s"]

    async def test_a_name_taken_by_another_tenant_is_free(self, store: Store) -> None:
        """Forking and renaming look for the new name among the tenant's own."""
        theirs, mine = store.for_tenant("acme"), store.for_tenant("acme-corp")
        await theirs.append("f", said("theirs"))
        await theirs.append("t", said("theirs"))
        await mine.append("s", said("mine"))
        await mine.fork("s", "f")
        await mine.rename("s", "t")
        assert await history(mine, "f") == await history(mine, "t") == ["mine"]
        assert await history(theirs, "f") == await history(theirs, "t") == ["theirs"]

    async def test_leases_are_each_tenants_own(self, store: Store) -> None:
        """A lease holds up nobody of another tenant, and is worth nothing there."""
        theirs, mine = store.for_tenant("acme"), store.for_tenant("acme-corp")
        lease = await theirs.request_lease("s", holder="a", wait=False)
        assert lease is not None
        assert await asyncio.to_thread(mine.renew_lease, lease) is False
        await mine.release_lease("s", holder="a")
        assert await theirs.request_lease("s", holder="b", wait=True) is None
        assert await mine.request_lease("s", holder="c", wait=True) is not None
        await theirs.append("s", said("1"), lease=lease)

    async def test_big_media_are_each_tenants_own(self, store: Store) -> None:
        """The same bytes in two tenants stay with one when the other's are deleted."""
        theirs, mine = store.for_tenant("acme"), store.for_tenant("acme-corp")
        message = user("look", Media(media_type="image/png", data=b"\xff\0" * 50_000))
        await theirs.append("s", [message])
        await mine.append("s", [message])
        await mine.delete("s")
        assert await theirs.read("s") == [message]

    async def test_closing_one_handle_closes_all(self, store: Store) -> None:
        """Closing either closes both."""
        handle = store.for_tenant("acme")
        await handle.append("s", said("1"))
        await handle.close()
        assert store.is_closed
        assert handle.is_closed
        for closed in (store, handle):
            with pytest.raises(StoreClosedError):
                await closed.read("s")


class LifecycleConformance(StoreSuite):
    """Closing, cancellation, many callers at once."""

    async def test_a_closed_store_says_so(self, store: Store) -> None:
        """After `close()` every operation raises, also one that has nothing to do (C81)."""
        await store.append("s", said("1"))
        assert store.is_closed is False
        await store.close()
        assert store.is_closed is True
        lease = Lease(session_id="s", holder="a", token=1)
        operations: list[Callable[[], Awaitable[object]]] = [
            lambda: store.append("s", said("x")),
            lambda: store.append("s", []),
            lambda: store.start_branch("s", after=0),
            lambda: store.fork("s", "f"),
            lambda: store.rename("s", "t"),
            lambda: store.set_metadata("s", {}),
            lambda: store.redact("s", lambda message: message),
            lambda: store.delete("s"),
            lambda: store.delete("none"),
            lambda: store.read("s"),
            lambda: store.read("s", last=0),
            lambda: store.entries("s"),
            lambda: store.branches("s"),
            lambda: store.conversation("s"),
            lambda: store.conversations(),
            lambda: store.append_to_run("s", "r", said("x")),
            lambda: store.append_to_run("s", "r", []),
            lambda: store.run_entries("s", "r"),
            lambda: store.commit_run("s", "r"),
            lambda: store.discard_run("s", "r"),
            lambda: store.request_lease("s", holder="a", wait=False),
            lambda: store.release_lease("s", holder="a"),
            lambda: asyncio.to_thread(store.renew_lease, lease),
        ]
        for operation in operations:
            with pytest.raises(StoreClosedError):
                await operation()

    async def test_closing_again_does_nothing(self, store: Store) -> None:
        """A second `close()` is a no-op, also of a store that was never used (C81)."""
        await store.close()
        await store.close()
        assert store.is_closed

    async def test_closing_waits_for_writes_under_way(self, store: Store) -> None:
        """Writes that were begun before `close()` are done, and say so."""
        writes = [asyncio.ensure_future(store.append("s", said(str(n)))) for n in range(20)]
        await asyncio.sleep(0)
        await store.close()
        results = await asyncio.gather(*writes)
        assert sorted(result.revision for result in results) == list(range(1, 21))

    async def test_concurrent_appends_lose_nothing(self, store: Store) -> None:
        """Appends of many tasks are all there once, each whole and in its order (C08, C10)."""
        batches = [said(*(f"{task}.{n}" for n in range(3))) for task in range(50)]
        results = await asyncio.gather(*(store.append("s", batch) for batch in batches))
        assert sorted(result.revision for result in results) == list(range(1, 51))
        assert sorted(result.last_seq for result in results) == list(range(3, 151, 3))
        found = await history(store, "s")
        assert sorted(found) == sorted(text for batch in batches for text in texts(batch))
        for start in range(0, 150, 3):
            task = found[start].split(".")[0]
            assert found[start : start + 3] == [f"{task}.{n}" for n in range(3)]
        assert (await known(store, "s")).message_count == 150

    async def test_concurrent_first_writes_make_one_conversation(self, store: Store) -> None:
        """When many create the same conversation at once there is one, with all of it (C10)."""
        await asyncio.gather(
            *(store.append("s", said(f"a{n}")) for n in range(10)),
            *(store.append_to_run("s", f"r{n}", said(f"r{n}")) for n in range(10)),
        )
        await asyncio.gather(*(store.commit_run("s", f"r{n}") for n in range(10)))
        assert names(await store.conversations()) == ["s"]
        assert sorted(await history(store, "s")) == sorted(
            [*(f"a{n}" for n in range(10)), *(f"r{n}" for n in range(10))]
        )
        assert (await known(store, "s")).revision == 20

    async def test_concurrent_repeats_write_once(self, store: Store) -> None:
        """The same append by many tasks at once is written once (C14)."""
        messages = said("1", "2")
        results = await asyncio.gather(*(store.append("s", messages) for _ in range(20)))
        assert sorted(result.written for result in results) == [0] * 19 + [2]
        assert {result.revision for result in results} == {1}
        assert await history(store, "s") == ["1", "2"]

    async def test_one_failing_write_fails_alone(self, store: Store) -> None:
        """Among writes at the same time, one that fails undoes only itself."""
        results = await asyncio.gather(
            store.append("s", said("0")),
            store.append("s", [*said("bad"), unstorable()]),
            store.append("s", said("1")),
            store.append("s", said("bad"), expected_revision=99),
            store.fork("none", "f"),
            store.append("s", said("2")),
            return_exceptions=True,
        )
        assert [type(result).__name__ for result in results] == [
            "Appended", "InvalidValueError", "Appended", "ConflictError",
            "UnknownConversationError", "Appended",
        ]  # fmt: skip
        assert await history(store, "s") == ["0", "1", "2"]
        assert (await known(store, "s")).revision == 3

    async def test_a_reader_sees_whole_commits(self, store: Store) -> None:
        """A read beside writes sees each of them whole or not at all."""
        seen: list[int] = []

        async def read() -> None:
            while not seen or seen[-1] < 60:
                seen.append(len(await store.read("s")))
                await asyncio.sleep(0)

        reader = asyncio.create_task(read())
        for n in range(20):
            await store.append("s", said(f"{n}a", f"{n}b", f"{n}c"))
            await asyncio.sleep(0)
        await asyncio.wait_for(reader, 30)
        assert {count % 3 for count in seen} == {0}
        assert seen == sorted(seen)

    async def test_a_write_is_read_at_once(self, store: Store) -> None:
        """When a write has returned, the next read has it."""
        for n in range(20):
            appended = await store.append("s", said(str(n)))
            assert await history(store, "s", last=1) == [str(n)]
            assert (await known(store, "s")).revision == appended.revision

    async def test_a_cancelled_append_is_done_or_not(self, store: Store) -> None:
        """After a cancelled append the next read tells whether it was done (C59)."""
        done: list[str] = []
        for n in range(20):
            task = asyncio.create_task(store.append("s", said(f"{n}a", f"{n}b")))
            await asyncio.sleep(0 if n % 2 else 0.001)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            found = await history(store, "s")
            assert found in (done, [*done, f"{n}a", f"{n}b"])
            done = found
        appended = await store.append("s", said("after"))
        assert await history(store, "s") == [*done, "after"]
        assert appended.revision == len(done) // 2 + 1

    async def test_any_cancelled_write_is_done_or_not(self, store: Store) -> None:
        """After any cancelled write the store is as before it or as after it, and stays so (C59)."""
        await store.append("s", said("1", "2", "3"))
        await store.append_to_run("s", "r", said("4", "5"))
        later = said("x", "y")
        writes: dict[str, Callable[[Store], Awaitable[object]]] = {
            "start_branch": lambda s: s.start_branch("s", later, after=1),
            "fork": lambda s: s.fork("s", "f"),
            "commit_run": lambda s: s.commit_run("s", "r"),
            "redact": lambda s: s.redact("s", lambda m: None if m.text == "1" else m),
            "rename": lambda s: s.rename("s", "t"),
            "delete": lambda s: s.delete("t"),
        }
        states = {
            "start_branch": (["1", "2", "3"], ["1", "x", "y"]),
            "fork": (None, ["1", "x", "y"]),
            "commit_run": (["1", "x", "y"], ["1", "x", "y", "4", "5"]),
            "redact": (["1", "x", "y", "4", "5"], ["x", "y", "4", "5"]),
            "rename": (None, ["x", "y", "4", "5"]),
            "delete": (["x", "y", "4", "5"], None),
        }
        for name, write in writes.items():
            target = {"fork": "f", "rename": "t", "delete": "t"}.get(name, "s")
            task = asyncio.ensure_future(write(store))
            await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            found = await store.conversation(target)
            state = None if found is None else await history(store, target)
            assert state in states[name], f"{name} is half done: {state}"
            await asyncio.sleep(0.005)
            assert await store.conversation(target) == found, f"{name} was done later"
            if state != states[name][1]:
                await write(store)
                found = await store.conversation(target)
                state = None if found is None else await history(store, target)
                assert state == states[name][1]

    async def test_a_cancelled_wait_takes_no_lease(self, store: Store) -> None:
        """Who was cancelled while asking can withdraw, and then holds up nobody (C59)."""
        task = asyncio.create_task(store.request_lease("s", holder="a", wait=True))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await store.release_lease("s", holder="a")
        assert await store.request_lease("s", holder="b", wait=False) is not None

    async def test_a_store_is_used_from_loops_in_turn(self, store: Store) -> None:
        """One store serves one event loop after another."""

        def say(text: str) -> None:
            asyncio.run(says(store, text))

        for text in ("one", "two", "three"):
            await asyncio.to_thread(say, text)
        await store.append("s", said("four"))
        assert await history(store, "s") == ["one", "two", "three", "four"]

    async def test_a_store_is_used_from_threads_at_once(self, store: Store) -> None:
        """Threads with event loops of their own use one store at the same time (C08)."""

        def say(thread: int) -> None:
            for n in range(5):
                asyncio.run(says(store, f"{thread}.{n}"))

        await asyncio.gather(*(asyncio.to_thread(say, thread) for thread in range(8)))
        found = await history(store, "s")
        assert sorted(found) == sorted(f"{t}.{n}" for t in range(8) for n in range(5))
        for thread in range(8):
            own = [text for text in found if text.startswith(f"{thread}.")]
            assert own == [f"{thread}.{n}" for n in range(5)]
        assert (await known(store, "s")).revision == 40

    async def test_an_error_leaves_the_store_usable(self, store: Store) -> None:
        """After an error of any kind the next calls work."""
        for _ in range(3):
            with pytest.raises(InvalidValueError):
                await store.append("s", [unstorable()])
            with pytest.raises(UnknownConversationError):
                await store.redact("s", lambda message: message)
        await store.append("s", said("1"))
        assert await history(store, "s") == ["1"]


async def says(store: Store, text: str) -> None:
    """Append a message, and read it back."""
    await store.append("s", said(text))
    assert text in await history(store, "s")
