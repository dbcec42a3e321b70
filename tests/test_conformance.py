"""The shipped conformance suites, on everything in the tree that they are for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import anyio
import pytest

from tenure import ChatHistoryProvider, Message, Store
from tenure.codec import from_json, to_json
from tenure.stores.inmemory import InMemoryStore
from tenure.stores.sqlite import SQLiteStore
from tenure.testing import ManualClock
from tenure.testing.conformance import ChatHistoryProviderConformance, StoreConformance


class DriverConformance(StoreConformance):
    """Drivers are given their clock, so that nothing waits."""

    clock: ManualClock

    async def let_time_pass(self, store: Store, seconds: float) -> None:
        self.clock.advance(seconds)


class TestInMemoryStore(DriverConformance):
    @pytest.fixture
    async def store(self) -> AsyncIterator[Store]:
        self.clock = ManualClock()
        store = InMemoryStore(clock=self.clock)
        yield store
        await store.close()


class TestSQLiteStore(DriverConformance):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        self.clock = ManualClock()
        store = SQLiteStore(tmp_path / "chat.db", clock=self.clock)
        yield store
        await store.close()


class MemoryProvider:
    """The shortest provider that there is: sync, in a dictionary."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Message, ...]] = {}

    def load(self, session_id: str) -> tuple[Message, ...] | None:
        return self._kept.get(session_id)

    def store(self, session_id: str, messages: list[Message]) -> None:
        self._kept[session_id] = tuple(messages)


class JSONFileProvider:
    """A JSON file for each conversation, read and written off the event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = anyio.Path(folder)

    async def load(self, session_id: str) -> list[Message]:
        path = self._path(session_id)
        if not await path.exists():
            return []
        rows: list[str] = json.loads(await path.read_text("utf-8"))
        return [from_json(row) for row in rows]

    async def store(self, session_id: str, messages: list[Message]) -> None:
        text = json.dumps([to_json(message) for message in messages])
        await self._path(session_id).write_text(text, "utf-8")

    def _path(self, session_id: str) -> anyio.Path:
        digest = hashlib.sha256(session_id.encode()).hexdigest()  # names have an end, ids have not
        return self._folder / f"{quote(session_id, safe='')[:40]}-{digest}.json"


class TestMemoryProvider(ChatHistoryProviderConformance):
    @pytest.fixture
    def provider(self) -> ChatHistoryProvider:
        return MemoryProvider()


class TestJSONFileProvider(ChatHistoryProviderConformance):
    @pytest.fixture
    def provider(self, tmp_path: Path) -> ChatHistoryProvider:
        return JSONFileProvider(tmp_path)
