"""Memories and several processes, deaths of processes, and what is left in the file of what was erased."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tenure import Memories
from tenure.terms import terms
from tenure.testing import HashEmbedder

pytestmark = pytest.mark.anyio

WORKER = """
    import asyncio, sys
    from tenure import Memories
    from tenure.testing import HashEmbedder

    async def main():
        async with Memories.open(sys.argv[1], agent_id="a", embedder=HashEmbedder()) as memories:
            print("ready", flush=True)
            for line in sys.stdin:
                print(await ACTION(memories, line.strip()), flush=True)

    asyncio.run(main())
"""

REMOTE = """
    async def ACTION(memories, line):
        verb, _, text = line.partition(" ")
        if verb == "add":
            return (await memories.add(text)).id
        if verb == "update":
            memory_id, _, text = text.partition(" ")
            return (await memories.update(memory_id, content=text)).version
        return await memories.delete(text)
"""

ADDING = """
    async def ACTION(memories, line):
        for number in range(100):
            await memories.add(f"note {line} {number}")
        return "done"
"""

DYING = """
    from tenure import EmbeddingError

    class Stuck(HashEmbedder):
        async def embed(self, texts, *, kind):
            print("embedding", flush=True)
            await asyncio.sleep(60)

    async def main():
        async with Memories.open(sys.argv[1], agent_id="a", embedder=Stuck()) as memories:
            await memories.add("apple pie")
"""


def started(url: str, action: str) -> subprocess.Popen[str]:
    script = textwrap.dedent(WORKER).replace(
        "async def main():", textwrap.dedent(action) + "\nasync def main():"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def told(process: subprocess.Popen[str], line: str | None = None) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    if line is not None:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    return process.stdout.readline().strip()


async def texts(memories: Memories, query: str) -> list[str]:
    return [memory.content for memory in await memories.search(query)]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/m.db"


async def test_another_process_is_seen_at_once(url: str) -> None:
    """A search finds what another process has just added, changed or deleted."""
    other = started(url, REMOTE)
    try:
        assert told(other) == "ready"
        async with Memories.open(url, agent_id="a", embedder=HashEmbedder()) as memories:
            await memories.add("the weather")
            assert await texts(memories, "apple") != ["apple pie"]
            memory_id = told(other, "add apple pie")
            assert (await texts(memories, "apple"))[0] == "apple pie"
            assert told(other, f"update {memory_id} pear tart") == "2"
            assert (await texts(memories, "pear"))[0] == "pear tart"
            assert "apple pie" not in await texts(memories, "apple")
            [similar] = await memories.search_by_similarity("pear tart")
            assert similar.id == memory_id
            assert told(other, f"delete {memory_id}") == "True"
            assert "pear tart" not in await texts(memories, "pear")
    finally:
        other.communicate(timeout=30)


async def test_processes_that_add_at_once(url: str) -> None:
    """Four processes that add a hundred memories each lose none, and no lock reaches a caller."""
    workers = [started(url, ADDING) for _ in range(4)]
    try:
        for worker in workers:
            assert told(worker) == "ready"
        for number, worker in enumerate(workers):
            assert worker.stdin is not None
            worker.stdin.write(f"{number}\n")
            worker.stdin.flush()
        assert [told(worker) for worker in workers] == ["done"] * 4
    finally:
        for worker in workers:
            worker.communicate(timeout=60)
    memories = Memories.open(url, agent_id="a", embedder=None)
    found = {memory.content for memory in await memories.list(limit=None)}
    assert found == {f"note {a} {b}" for a in range(4) for b in range(100)}


async def test_a_death_before_embedding_loses_nothing(url: str) -> None:
    """After SIGKILL between storing and embedding the memory is there, and gets its vector later (C49)."""
    script = textwrap.dedent(WORKER).split("async def main():")[0] + textwrap.dedent(DYING)
    script += "\nasyncio.run(main())\n"
    child = subprocess.Popen([sys.executable, "-c", script, url], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "embedding\n"
    os.kill(child.pid, signal.SIGKILL)
    child.communicate(timeout=30)
    async with Memories.open(url, agent_id="a", embedder=HashEmbedder()) as memories:
        assert await texts(memories, "pie") == ["apple pie"]
        async with asyncio.timeout(10):
            while (await memories.list())[0].embedding is None:
                await asyncio.sleep(0.01)


async def test_deleted_text_is_nowhere_in_the_files(tmp_path: Path, url: str) -> None:
    """After `delete` and `clear` no row, term, version or vector is left, and no byte of the text (C75)."""
    words = "zanzibar marmalade"
    async with Memories.open(url, agent_id="a", embedder=HashEmbedder()) as memories:
        kept = await memories.add("the weather")
        for erase in ("delete", "clear"):
            memory = await memories.add(words, {"secret": "quetzalcoatl"})
            await memories.update(memory.id, content=words + " again")
            assert await texts(memories, "zanzibar")
            if erase == "delete":
                await memories.delete(memory.id)
            else:
                await memories.clear(where={"secret": "quetzalcoatl"})
            files = b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))
            for word in (*terms(words), "zanzibar", "marmalade", "quetzalcoatl"):
                assert word.encode() not in files, (erase, word)
            assert memory.embedding is None or memory.embedding.tobytes() not in files
        with sqlite3.connect(tmp_path / "m.db") as connection:
            counts = {
                table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("memories", "memory_versions", "memory_vectors")
            }
        connection.close()
        assert counts == {"memories": 1, "memory_versions": 0, "memory_vectors": 1}
        assert [memory.id for memory in await memories.list()] == [kept.id]


async def test_terms_of_another_version_are_made_anew(tmp_path: Path, url: str) -> None:
    """Memories that an earlier version has cut into terms are cut anew before the first search."""
    embedder = HashEmbedder()
    async with Memories.open(url, agent_id="a", embedder=embedder) as memories:
        await memories.add_many(["apple pie", "the weather"])
        assert (await texts(memories, "apple"))[0] == "apple pie"
        with sqlite3.connect(tmp_path / "m.db") as connection:
            connection.execute("UPDATE memory_owners SET terms_version = 0")
            connection.execute("UPDATE memory_postings SET term = 'old-' || term")
            connection.execute(
                "UPDATE memories SET terms = replace(replace(terms, '{\"', '{\"old-'), ', \"', ', \"old-')"
            )
        connection.close()
        asked = len(embedder.texts)
        assert (await texts(memories, "weather"))[0] == "the weather"
        assert len(embedder.texts) == asked + 1  # the query only: the vectors are as they were
        with sqlite3.connect(tmp_path / "m.db") as connection:
            old = connection.execute("SELECT count(*) FROM memory_postings WHERE term LIKE 'old-%'")
            assert old.fetchone() == (0,)
        connection.close()
