"""Idempotency keys: what a tool finds in the block that a run puts around its call."""

from __future__ import annotations

import asyncio

import pytest

from tenure import Agent, ToolCall, ToolRegistry, UsageError, idempotency_key
from tenure.idempotency import calling
from tenure.testing import ScriptedModel

pytestmark = pytest.mark.anyio


async def look() -> str:
    """Look at the key."""
    return idempotency_key()


def look_from_thread() -> str:
    """Look at the key from a worker thread."""
    return idempotency_key()


async def called(name: str, key: str) -> str:
    """What comes of a tool in a block with this key."""
    registry = ToolRegistry([look, look_from_thread])
    with calling(key):
        return (await registry.execute(ToolCall(id="c", name=name))).text


@pytest.mark.parametrize("name", ["look", "look_from_thread"])
async def test_a_tool_sees_the_key_of_its_call(name: str) -> None:
    """An async tool sees the key, and a plain one in its thread; every time the same."""
    assert await called(name, "a") == await called(name, "a") == "a"


@pytest.mark.parametrize("name", ["look", "look_from_thread"])
async def test_parallel_calls_see_their_own_keys(name: str) -> None:
    """Of calls that run at the same time each sees its own key, also when others begin and end."""
    barrier = asyncio.Barrier(3)

    async def slow(key: str) -> list[str]:
        with calling(key):
            before = await called(name, f"inner {key}")
            await barrier.wait()
            return [before, idempotency_key()]

    found = await asyncio.gather(slow("a"), slow("b"), slow("c"))
    assert found == [["inner a", "a"], ["inner b", "b"], ["inner c", "c"]]


async def test_a_run_inside_a_tool_has_keys_of_its_own() -> None:
    """A tool of an inner run sees the inner call's key; the outer tool has its own before and after."""

    async def answer(ctx: object, text: str) -> str:
        return await called(text, "inner")

    agent = Agent(model=ScriptedModel([]), strategy=answer)

    async def outer() -> list[str]:
        before = idempotency_key()
        inner = [str((await agent.run(name)).output) for name in ("look", "look_from_thread")]
        return [before, *inner, idempotency_key()]

    with calling("outer"):
        outcome = await ToolRegistry([outer]).execute(ToolCall(id="c", name="outer"))
    assert outcome.value == ["outer", "inner", "inner", "outer"]


async def test_there_is_no_key_outside_of_a_call() -> None:
    """Outside of a call of a tool, before one, after one and after one that failed, asking is an error."""
    for _ in range(2):
        with pytest.raises(UsageError, match="no idempotency key outside of a tool"):
            idempotency_key()
        with pytest.raises(RuntimeError, match="broken"), calling("a"):
            raise RuntimeError("broken")
        assert await called("look", "a") == "a"


async def test_what_a_tool_has_started_keeps_its_key() -> None:
    """A task that outlives the call which started it still acts for that call."""
    over = asyncio.Event()

    async def later() -> str:
        await over.wait()
        return idempotency_key()

    with calling("a"):
        task = asyncio.create_task(later())
    over.set()
    assert await task == "a"
