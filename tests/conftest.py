"""What every test has: no network but loopback, no file outside its own folder, asyncio."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai_server as wire
import pytest

from tenure import InMemoryStore, Store
from tenure.stores.sqlite import SQLiteStore

_connect = socket.socket.connect
_KEPT_OUT = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "TENURE_STORE")


def _is_loopback(address: object) -> bool:
    if not isinstance(address, tuple):
        return True  # a Unix socket
    host = str(address[0])
    return host == "localhost" or ipaddress.ip_address(host.split("%")[0]).is_loopback


@pytest.fixture
def kill_rounds() -> int:
    """How often a process is killed at a random moment; far more often in `make soak`."""
    return 500 if "TENURE_SOAK" in os.environ else 20


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket opened to anything but loopback fails the test."""

    def connect(self: socket.socket, address: object) -> None:
        if not _is_loopback(address):
            raise AssertionError(f"a test tried to reach {address!r}")
        _connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A test that writes to the user's data directory writes to one of its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
    for name in _KEPT_OUT:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio."""
    return "asyncio"


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A new store of each driver."""
    made: Store = (
        InMemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "chat.db")
    )
    yield made
    await made.close()


@pytest.fixture
def server() -> Iterator[wire.OpenAIServer]:
    """A server of OpenAI's protocol on loopback."""
    with wire.running_server() as running:
        yield running


@pytest.fixture
def named(server: wire.OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a model that the loopback server answers for."""
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-of-mine")
    return "openai-chat:scripted-1"
