"""The example of docs/persistence.md, killed in the middle and started again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runs import parts_of

from tenure.messages import Message
from tenure.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.anyio

PAGE = Path(__file__).parent.parent / "docs" / "persistence.md"

RUNNER = """
import asyncio, os, signal, sys
import tenure.stores
from tenure import NodeCompleted
from tenure.run import RunContext

page, death = sys.argv[1:]
source = open(page, encoding="utf-8").read()
block = source.split("```python\\n")[1].split("```")[0]
assert "ChatMemory().window_size(50)" in block and "Persistence()" in block
place = tenure.stores.open_store("sqlite:///journeys.db")  # is the one of the agent as long as it is kept
place.lease_ttl_s = 0.5
send = RunContext.send

async def sending(self, event):
    await send(self, event)
    if isinstance(event, NodeCompleted) and event.path == death:
        os.kill(os.getpid(), signal.SIGKILL)

RunContext.send = sending
code = compile(block, page, "exec", flags=__import__("ast").PyCF_ALLOW_TOP_LEVEL_AWAIT)

async def main():
    await eval(code, {"__name__": "__main__"})

asyncio.run(main())
"""

WHOLE = "Train and hotel are booked.\nbooked the train\nbooked the hotel\n"


def run(folder: Path, death: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUNNER, str(PAGE), death],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def stored(folder: Path) -> list[Message]:
    store = SQLiteStore(folder / "journeys.db")
    try:
        return await store.read("ada")
    finally:
        await store.close()


async def test_the_example_is_killed_and_resumed(tmp_path: Path) -> None:
    """Killed behind each of its nodes, its conversation and bookings are those of a whole run."""
    whole = tmp_path / "whole"
    whole.mkdir()
    assert run(whole).stdout == WHOLE
    expected = parts_of(await stored(whole))
    for node in ("ask", "book_all", "tell", "shorten"):
        folder = tmp_path / node
        folder.mkdir()
        assert run(folder, f"journey/{node}").returncode == -signal.SIGKILL
        assert await stored(folder) == []
        again = run(folder)
        assert again.stdout == WHOLE, again.stderr
        assert parts_of(await stored(folder)) == expected
