"""What every test has: no network but loopback, no file outside its own folder, asyncio."""

from __future__ import annotations

import ipaddress
import os
import socket

import pytest

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
