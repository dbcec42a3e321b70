"""Runs that are cancelled, interrupted or left alone: nothing is half done, and nobody waits for them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

import tenure.sync
from tenure import Agent, ChatMemory, Feature, InMemoryStore, ModelRequest, Store, StoreError
from tenure.run import RunContext
from tenure.stores.base import Lease
from tenure.stores.leases import hold
from tenure.stores.sqlite import SQLiteStore
from tenure.testing import ScriptedModel

pytestmark = pytest.mark.anyio


async def texts(store: Store, session_id: str = "s") -> list[str]:
    return [message.text for message in await store.read(session_id)]


def ok(_: ModelRequest) -> str:
    return "ok"


class Never:
    """A model that never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def __call__(self, _: ModelRequest) -> str:
        self.asked.set()
        await asyncio.Event().wait()
        return "never"


# --- streams that are left ---


@pytest.mark.parametrize("is_text", [False, True])
async def test_a_stream_that_is_left_while_it_is_kept(store: Store, is_text: bool) -> None:
    """Leaving the loop over a stream ends its run, though the stream itself is still at hand (C59)."""
    agent = Agent(model=ScriptedModel([ok, ok]), features=[ChatMemory(store)])
    stream = agent.run_stream("is left", "s")
    async for _ in stream.text() if is_text else stream:
        break
    assert str(await asyncio.wait_for(agent.run("next", "s"), 30)) == "ok"
    assert await texts(store) == ["next", "ok"]
    assert [event async for event in stream] == []
    assert stream.result is None


@pytest.mark.parametrize("is_text", [False, True])
def test_a_sync_stream_that_is_left_while_it_is_kept(is_text: bool) -> None:
    """Leaving the loop over a sync stream has ended its run, though the stream is still at hand."""
    store = InMemoryStore()
    model = ScriptedModel([ok, ok])
    agent = tenure.sync.Agent(model=model, features=[ChatMemory(store)], on_busy="reject")
    stream = agent.run_stream("is left", "s")
    for _ in stream.text() if is_text else stream:
        break
    assert str(agent.run("next", "s")) == "ok"
    assert asyncio.run(texts(store)) == ["next", "ok"]
    assert list(stream) == []


@pytest.mark.parametrize("is_stream", [False, True])
def test_ctrl_c_ends_a_sync_run(is_stream: bool) -> None:
    """Ctrl-C in a waiting call is raised as it is, once the run has ended and the next one may start."""
    store = InMemoryStore()

    async def interrupted(_: ModelRequest) -> str:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel([interrupted, "ok"])
    agent = tenure.sync.Agent(model=model, features=[ChatMemory(store)], on_busy="reject")
    with pytest.raises(KeyboardInterrupt):
        _ = list(agent.run_stream("Q", "s")) if is_stream else agent.run("Q", "s")
    assert str(agent.run("next", "s")) == "ok"
    assert asyncio.run(texts(store)) == ["next", "ok"]


ENDING = """
    import sys, threading
    from tenure import ChatMemory
    from tenure.sync import Agent
    from tenure.testing import ScriptedModel

    is_asked = threading.Event()

    async def never(request):
        import asyncio
        is_asked.set()
        await asyncio.Event().wait()

    def run():
        try:
            agent.run("Q", "s")
        except BaseException as error:
            print(type(error).__name__, flush=True)

    agent = Agent(model=ScriptedModel([never]), features=[ChatMemory(sys.argv[1])])
    threading.Thread(target=run, daemon=True).start()
    is_asked.wait()
"""


async def test_a_sync_run_ends_with_its_process(tmp_path: Path) -> None:
    """A process that ends while a thread of it waits for a run cancels the run, which gives its
    conversation back, and says nothing.
    """
    path = tmp_path / "chat.db"
    command = [sys.executable, "-c", textwrap.dedent(ENDING), f"sqlite:///{path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    store = SQLiteStore(path)
    assert await store.request_lease("s", holder="next", wait=False) is not None
    assert await texts(store) == []
    await store.close()


# --- runs that are cancelled ---


@pytest.mark.parametrize("times", [1, 2, 3, 5])
async def test_a_run_that_is_cancelled_again(store: Store, times: int) -> None:
    """A run that is cancelled again while it cleans up has given its conversation back all the same."""
    never = Never()
    agent = Agent(model=ScriptedModel([never, "ok"]), features=[ChatMemory(store)])
    task = asyncio.create_task(agent.run("Q", "s"))
    await never.asked.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait({task})
    assert task.cancelled()
    assert str(await asyncio.wait_for(agent.run("next", "s"), 30)) == "ok"
    assert await texts(store) == ["next", "ok"]


async def test_a_run_that_is_cancelled_in_a_feature(store: Store) -> None:
    """When one feature is cancelled in cleaning up, the others clean up, and the run is cancelled."""
    is_cleaning = asyncio.Event()

    class Slow(Feature):
        async def on_run_error(self, ctx: RunContext, error: BaseException) -> None:
            if ctx.input == "Q":
                is_cleaning.set()
                await asyncio.Event().wait()

    model = ScriptedModel([StoreError("down"), "ok"])
    agent = Agent(model=model, features=[Slow(), ChatMemory(store)], on_busy="reject")
    task = asyncio.create_task(agent.run("Q", "s"))
    await is_cleaning.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert str(await agent.run("next", "s")) == "ok"


async def test_a_cancelled_waiter_is_cancelled_whatever_fails() -> None:
    """A waiter whose timeout comes hears of that, though its place in line cannot be given up."""

    class Failing(InMemoryStore):
        async def release_lease(self, session_id: str, *, holder: str) -> None:
            raise StoreError("down")

    store = Failing()
    await store.request_lease("s", holder="outside", wait=False)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await hold(store, "s", holder="waiter", on_busy="queue")


async def test_a_waiter_that_fails_leaves_the_line() -> None:
    """A run whose database fails while it waits holds up nobody behind it."""

    class Failing(InMemoryStore):
        asked = 0

        async def request_lease(self, session_id: str, *, holder: str, wait: bool) -> Lease | None:
            self.asked += 1
            if self.asked == 3:
                raise StoreError("locked")
            return await super().request_lease(session_id, holder=holder, wait=wait)

    store = Failing()
    await store.request_lease("s", holder="outside", wait=False)
    with pytest.raises(StoreError, match="locked"):
        await hold(store, "s", holder="waiter", on_busy="queue")
    await store.release_lease("s", holder="outside")
    assert await store.request_lease("s", holder="next", wait=False) is not None


# --- leases that are renewed, or not ---


class Watched(InMemoryStore):
    """Tells when a lease was renewed twice."""

    def __init__(self) -> None:
        super().__init__()
        self.lease_ttl_s = 0.1
        self.renewals = 0
        self.is_renewed = threading.Event()

    def renew_lease(self, lease: Lease) -> bool:
        self.renewals += 1
        if self.renewals > 1:
            self.is_renewed.set()
        return super().renew_lease(lease)


async def test_a_stuck_store_delays_no_other_ones_leases() -> None:
    """While one store's renewal is stuck in a locked database, the leases of others are renewed."""
    is_stuck, go_on = threading.Event(), threading.Event()

    class Stuck(Watched):
        def renew_lease(self, lease: Lease) -> bool:
            is_stuck.set()
            go_on.wait(10)
            return super().renew_lease(lease)

    stuck, other = Stuck(), Watched()
    first = await hold(stuck, "s", holder="a", on_busy="queue")
    assert await asyncio.to_thread(is_stuck.wait, 30)
    second = await hold(other, "s", holder="b", on_busy="queue")
    assert await asyncio.to_thread(other.is_renewed.wait, 30)
    go_on.set()
    assert await asyncio.to_thread(stuck.is_renewed.wait, 30)
    await first.release()
    await second.release()


async def test_a_failing_renewal_ends_no_heartbeat() -> None:
    """Whatever a renewal raises, later ones happen, of this lease and of others."""

    class Failing(Watched):
        def renew_lease(self, lease: Lease) -> bool:
            super().renew_lease(lease)
            raise KeyError("a fault of the store's")

    failing, other = Failing(), Watched()
    first = await hold(failing, "s", holder="a", on_busy="queue")
    assert await asyncio.to_thread(failing.is_renewed.wait, 30)
    second = await hold(other, "s", holder="b", on_busy="queue")
    assert await asyncio.to_thread(other.is_renewed.wait, 30)
    await first.release()
    await second.release()


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_run_whose_loop_was_closed_is_replaced(is_kept: bool) -> None:
    """A run whose event loop was closed under it does not hold its conversation for ever, be it that
    somebody still has its task or not.
    """
    store = Watched()
    agent = Agent(model=ScriptedModel([Never(), "ok"]), features=[ChatMemory(store)])
    loop = asyncio.new_event_loop()
    task = loop.create_task(agent.run("Q", "s"))
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    tasks = [task] if is_kept else []
    del task
    assert str(asyncio.run(asyncio.wait_for(agent.run("next", "s"), 30))) == "ok"
    del tasks
