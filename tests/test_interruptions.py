"""Runs that are cancelled, interrupted or left alone: nothing is half done, and nobody waits for them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import tenure.sync
from tenure import Agent, ChatMemory, InMemoryStore, ModelRequest, Store
from tenure.stores.sqlite import SQLiteStore
from tenure.testing import ScriptedModel

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A new store of each driver."""
    made: Store = (
        InMemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "chat.db")
    )
    yield made
    await made.close()


async def texts(store: Store, session_id: str = "s") -> list[str]:
    return [message.text for message in await store.read(session_id)]


# --- streams that are left ---


@pytest.mark.parametrize("is_text", [False, True])
async def test_a_stream_that_is_left_while_it_is_kept(store: Store, is_text: bool) -> None:
    """Leaving the loop over a stream ends its run, though the stream itself is still at hand (C59)."""
    agent = Agent(model=ScriptedModel([lambda _: "ok"] * 2), features=[ChatMemory(store)])
    stream = agent.run_stream("is left", "s")
    async for _ in stream.text() if is_text else stream:
        break
    assert str(await asyncio.wait_for(agent.run("next", "s"), 5)) == "ok"
    assert await texts(store) == ["next", "ok"]
    assert [event async for event in stream] == []
    assert stream.result is None


@pytest.mark.parametrize("is_text", [False, True])
def test_a_sync_stream_that_is_left_while_it_is_kept(is_text: bool) -> None:
    """Leaving the loop over a sync stream has ended its run, though the stream is still at hand."""
    store = InMemoryStore()
    model = ScriptedModel([lambda _: "ok"] * 2)
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
