"""How the threads of the SQLite driver answer those who wait: coroutines of any loop, and threads."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tenure import user
from tenure.stores.sqlite import SQLiteStore
from tenure.stores.sqlite_calls import Call, answer_all

pytestmark = pytest.mark.anyio


class Gate:
    """An operation that holds its thread until it is let go."""

    def __init__(self) -> None:
        self._is_held, self._is_open = threading.Event(), threading.Event()

    def __call__(self, _: sqlite3.Connection) -> None:
        self._is_held.set()
        self._is_open.wait(30)

    async def held(self) -> None:
        await asyncio.to_thread(self._is_held.wait)

    def open(self) -> None:
        self._is_open.set()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "chat.db")
    await store.append("s", [user("x")])
    await store.read("s")
    yield store
    await store.close()


async def test_a_batch_wakes_each_loop_once(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All callers of one loop whose writes were one transaction are told with one wake-up."""
    gate = Gate()
    holding = asyncio.create_task(store._engine.write(gate))
    await gate.held()
    waiting = [asyncio.create_task(store.append(f"s{n}", [user("y")])) for n in range(10)]
    await asyncio.sleep(0)  # they are queued
    loop = asyncio.get_running_loop()
    wake, woken = loop.call_soon_threadsafe, threading.Semaphore(0)

    def counted(*args: object) -> object:
        woken.release()
        return wake(*args)  # pyright: ignore

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    gate.open()
    await asyncio.gather(holding, *waiting)
    assert woken.acquire(blocking=False)  # for the gate
    assert woken.acquire(blocking=False)  # for the batch
    assert not woken.acquire(blocking=False)


async def test_a_batch_answers_several_loops(store: SQLiteStore) -> None:
    """Writes of different loops and of a thread without one may be in one transaction."""
    gate = Gate()
    holding = asyncio.create_task(store._engine.write(gate))
    await gate.held()
    in_threads = [
        asyncio.create_task(
            asyncio.to_thread(asyncio.run, store.append(f"s{n}", [user("y")]))  # pyright: ignore
        )
        for n in range(3)
    ]
    blocking = asyncio.create_task(
        asyncio.to_thread(lambda: store._engine.begin_write(lambda _: 7).result())
    )
    here = asyncio.create_task(store.append("here", [user("y")]))
    while store._engine._writes.qsize() < 5:
        await asyncio.sleep(0.001)
    gate.open()
    made = await asyncio.wait_for(asyncio.gather(here, *in_threads), 10)
    assert [each.revision for each in made] == [1, 1, 1, 1]
    assert await asyncio.wait_for(blocking, 10) == 7
    await holding


async def test_a_loop_that_is_gone_ends_no_thread(store: SQLiteStore) -> None:
    """An answer that nobody waits for any more, since its loop was closed, is dropped."""
    gone = asyncio.new_event_loop()
    answer = gone.create_future()
    gone.close()
    store._engine._queue_write(Call(lambda _: None, answer))
    assert (await asyncio.wait_for(store.append("s", [user("y")]), 10)).revision == 2


async def test_a_withdrawn_call_never_begins() -> None:
    """Of the thread that begins a call and the caller who withdraws it, exactly one is first."""
    withdrawn: Call[None] = Call(lambda _: None, Future())
    assert withdrawn.withdraw()
    assert not withdrawn.begins()
    begun: Call[None] = Call(lambda _: None, Future())
    assert begun.begins()
    assert not begun.withdraw()


async def test_a_cancelled_read_that_has_begun_is_waited_for(store: SQLiteStore) -> None:
    """Who cancels a read gets back control when its thread is done with it, and others their answers."""
    gate = Gate()
    reading = asyncio.create_task(store._engine.read(gate))
    await gate.held()
    reading.cancel()
    done, _ = await asyncio.wait({reading}, timeout=0.05)
    assert not done
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert len(await store.read("s")) == 1


async def test_readers_share_what_waits(store: SQLiteStore) -> None:
    """A read that takes long does not keep the next one waiting while another thread is free."""
    gate = Gate()
    reading = asyncio.create_task(store._engine.read(gate))
    waiting = asyncio.create_task(store.read("s"))
    assert len(await asyncio.wait_for(waiting, 10)) == 1
    gate.open()
    await reading


async def test_a_caller_cancelled_when_the_answer_is_there(store: SQLiteStore) -> None:
    """Who is cancelled between the end of the operation and being told of it keeps nobody waiting."""
    gate = Gate()
    holding = asyncio.create_task(store._engine.write(gate))
    await gate.held()
    cancelled, beside = (asyncio.create_task(store.append(s, [user("y")])) for s in "ab")
    await asyncio.sleep(0)  # they are queued
    gate.open()
    store._engine.begin_write(lambda _: None).result()  # the loop stands still until they are done
    assert cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(cancelled, 10)
    assert (await asyncio.wait_for(beside, 10)).revision == 1
    assert len(await store.read("a")) == 1
    await holding


async def test_a_failed_read_is_its_callers_alone(store: SQLiteStore) -> None:
    """Reads that a thread does in a row each get their own answer or error."""
    gates = [Gate(), Gate()]
    holding = [asyncio.create_task(store._engine.read(gate)) for gate in gates]
    for gate in gates:
        await gate.held()

    def broken(_: sqlite3.Connection) -> None:
        raise KeyError("bug")

    waiting = [
        asyncio.create_task(store._engine.read(operation))
        for operation in (lambda _: 1, broken, lambda _: 2)
    ]
    await asyncio.sleep(0)  # they are queued
    gates[0].open()  # one thread does all of them
    first, failed, last = await asyncio.gather(*waiting, return_exceptions=True)
    gates[1].open()
    await asyncio.gather(*holding)
    assert (first, type(failed), last) == (1, KeyError, 2)


async def test_errors_reach_threads_too() -> None:
    """A thread that waits is given the operation's error."""
    call: Call[None] = Call(lambda _: None, Future())
    call.error = KeyError("bug")
    answer_all([call])
    assert isinstance(call.answer, Future)
    assert isinstance(call.answer.exception(), KeyError)
