"""Stores by their URLs. What every store does is in the shipped conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tenure import (
    InMemoryStore,
    InvalidValueError,
    Lease,
    LeaseLostError,
    Store,
    open_store,
    user,
)
from tenure.memory import NewMemory, Owner
from tenure.stores.memory_base import MemoryQuery
from tenure.stores.sqlite import SQLiteStore
from tenure.testing import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A new store of each driver, with a clock that stands still."""
    made: Store
    if request.param == "memory":
        made = InMemoryStore(clock=ManualClock())
    else:
        made = SQLiteStore(tmp_path / "chat.db", clock=ManualClock())
    await made.append("s", [user("x")])
    yield made
    await made.close()


async def test_a_limit_larger_than_any_history_is_none(store: Store) -> None:
    """A number that no database knows, such as 2**64, limits nothing."""
    assert [m.text for m in await store.read("s", last=2**64)] == ["x"]
    assert [e.message.text for e in await store.entries("s", limit=2**64)] == ["x"]
    assert [c.session_id for c in await store.conversations(limit=2**64)] == ["s"]
    memories = store.memories(Owner(agent_id="a"))
    await memories.add([NewMemory(content="x")])
    assert [m.content for m in await memories.list(limit=2**64)] == ["x"]
    assert await memories.list(offset=2**64) == []
    assert len((await memories.search(MemoryQuery(text="x", limit=2**64))).memories) == 1
    assert (await memories.search(MemoryQuery(text="x", offset=2**64))).memories == []
    assert len(await memories.unembedded("e", limit=2**64)) == 1


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda s: s.read("s", last=-1), "last=-1 must not be negative"),
        (lambda s: s.entries("s", limit=-1), "limit=-1 must not be negative"),
        (lambda s: s.conversations(limit=-1), "limit=-1 must not be negative"),
        (lambda s: s.append("s", [user("y")], on_conflict="ask"), "on_conflict='ask' must be"),
        (lambda s: s.append("s", [user("y")], lease=Lease(session_id="t", holder="h", token=1)),
         "for conversation 't'"),
        (lambda s: s.redact("s", lambda m: "text"), "returned an object of type str"),
    ],
)  # fmt: skip
async def test_a_wrong_argument_is_refused(
    store: Store, call: Callable[[Store], Awaitable[object]], says: str
) -> None:
    """An argument that makes no sense is refused by name on every driver, and changes nothing."""
    with pytest.raises(InvalidValueError, match=says):
        await call(store)
    assert await texts(store, "s") == ["x"]
    found = await store.conversation("s")
    assert found is not None
    assert found.revision == 1


async def test_a_renamed_conversation_is_out_of_reach_of_an_old_lease(store: Store) -> None:
    """A holder whose lease had run out before the renaming cannot write under the old name."""
    store.lease_ttl_s = 0
    lease = await store.request_lease("s", holder="h", wait=False)
    await store.rename("s", "t")
    with pytest.raises(LeaseLostError):
        await store.append("s", [user("late")], lease=lease)
    assert await store.conversation("s") is None


async def texts(store: Store, session_id: str) -> list[str]:
    return [message.text for message in await store.read(session_id)]


async def test_equal_urls_share_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal URLs give one store, relative and absolute ones too; a closed one is not given again."""
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///chat.db")
    assert open_store("sqlite:///chat.db") is store
    assert open_store(f"sqlite:///{tmp_path}/chat.db") is store
    assert open_store("sqlite:///other.db") is not store
    assert open_store("sqlite:///chat.db?durable=true") is not store
    await store.append("s", [user("x")])
    await store.close()
    again = open_store("sqlite:///chat.db")
    assert again is not store
    assert await texts(again, "s") == ["x"]
    await again.close()


@pytest.mark.parametrize(
    "url",
    ["", "chat.db", "sqlite://", "sqlite:///", "sqlite://chat.db", "mysql://x/y",
     "sqlite:///a.db?fast=1", "sqlite:///a.db?durable=maybe", "memory://?x=1"],
)  # fmt: skip
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    """A URL of another form, or with an unknown option, is refused with the right form."""
    with pytest.raises(InvalidValueError, match=r"sqlite:///|durable=true"):
        open_store(url)


async def test_the_store_in_ram_keeps_nothing_of_what_was_released() -> None:
    """A lease that was given back takes no memory, or a process that never ends would grow (C68)."""
    store = InMemoryStore()
    for n in range(50):
        assert await store.request_lease(f"s{n}", holder="a", wait=True) is not None
        assert await store.request_lease(f"s{n}", holder="b", wait=True) is None
        await store.release_lease(f"s{n}", holder="a")
        await store.release_lease(f"s{n}", holder="b")
    assert store._shelf.turns == {}
