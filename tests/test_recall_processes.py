"""Runs with memory in processes that die, and in several at once: a real file, and SIGKILL."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tenure import Memories
from tenure.stores.sqlite import SQLiteStore

AGENT = """
    import asyncio, os, sys
    from tenure import Agent, ModelCallCompleted
    from tenure.testing import ScriptedModel

    def agent(name, **options):
        model = ScriptedModel([lambda request: "answer to " + request.messages[-1].text[-40:]] * 500)
        return Agent(
            model=model, name="A", store=f"sqlite:///{name}", memory=True, embedder=None, **options
        )
"""

DYING = """
    async def main():
        made = agent(sys.argv[1])

        @made.on_event
        def die(event):
            if isinstance(event, ModelCallCompleted):
                print("answered", flush=True)
                os.kill(os.getpid(), 9)

        await made.run("I like tea", "s")

    asyncio.run(main())
"""

TALKING = """
    async def main():
        made = agent(sys.argv[1])
        print("ready", flush=True)
        for number in range(int(sys.argv[3])):
            await made.run(f"text {sys.argv[2]} {number}", f"s{number % 3}")
        print("done", flush=True)

    asyncio.run(main())
"""


def start(program: str, *args: object) -> subprocess.Popen[str]:
    code = textwrap.dedent(AGENT) + textwrap.dedent(program)
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE, text=True
    )


async def kept(path: Path) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """By run: the texts in the conversations, and those of the memories."""
    store = SQLiteStore(path)
    messages: dict[str, set[str]] = {}
    for conversation in await store.conversations():
        for entry in await store.entries(conversation.session_id):
            messages.setdefault(str(entry.run_id), set()).add(entry.message.text)
    memories: dict[str, set[str]] = {}
    opened = Memories.open(store, agent_id="A", embedder=None)
    for memory in await opened.list(limit=None):
        memories.setdefault(str(memory.provenance.run_id), set()).add(memory.content)
    await store.close()
    return messages, memories


def test_a_crash_before_the_commit_leaves_nothing(tmp_path: Path) -> None:
    """A process that is killed when the model has answered leaves neither message nor memory."""
    path = tmp_path / "a.db"
    process = start(DYING, path)
    assert process.communicate(timeout=60)[0] == "answered\n"
    assert process.returncode == -signal.SIGKILL
    assert asyncio.run(kept(path)) == ({}, {})


def test_a_kill_at_any_moment_keeps_both_or_none(tmp_path: Path, kill_rounds: int) -> None:
    """Whenever a process is killed, each run has all of its messages and memories, or none of either."""
    path, chance = tmp_path / "a.db", random.Random(7)
    for number in range(max(4, kill_rounds // 3)):
        process = start(TALKING, path, number, 500)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0.01, 0.4))
        process.kill()
        process.communicate(timeout=60)
        messages, memories = asyncio.run(kept(path))
        assert messages == memories
        assert all(len(texts) == 2 for texts in messages.values())
    assert messages


def test_processes_remember_at_the_same_time(tmp_path: Path) -> None:
    """Four processes of one agent lose no message and no memory."""
    path = tmp_path / "a.db"
    processes = [start(TALKING, path, number, 15) for number in range(4)]
    for process in processes:
        assert process.communicate(timeout=120)[0] == "ready\ndone\n"
    messages, memories = asyncio.run(kept(path))
    assert messages == memories
    assert len(messages) == 60


@pytest.mark.anyio
async def test_another_process_recalls_at_once(tmp_path: Path) -> None:
    """What one process has remembered, the next run of another one recalls."""
    from tenure import Agent
    from tenure.testing import ScriptedModel

    path = tmp_path / "a.db"
    model = ScriptedModel(["ok", "ok"])
    here = Agent(model=model, name="A", store=f"sqlite:///{path}", memory=True, embedder=None)
    await here.run("Which text is it?", "mine")
    process = start(TALKING, path, "of-another", 1)
    assert (await asyncio.to_thread(process.communicate, timeout=60))[0] == "ready\ndone\n"
    await here.run("Which text of-another is it?", "yours")
    assert "text of-another 0</memory>" in model.requests[1].messages[-1].text
    await here.store.close()
