"""Runs whose process is killed and that another process resumes: a real file, and SIGKILL."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from journey import TEN_NODES, happened
from runs import parts_of

from tenure.messages import Message
from tenure.stores.sqlite import SQLiteStore

pytestmark = pytest.mark.anyio

PROGRAM = Path(__file__).with_name("journey.py")


class Place:
    """A file that several processes use one after the other, and what they did."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.db = folder / "chat.db"
        self.log = folder / "log"

    def run(
        self, death: str = "", *, policy: str = "fail", text: str = "go"
    ) -> subprocess.CompletedProcess[str]:
        store = f"sqlite:///{self.db}"
        return subprocess.run(
            [sys.executable, str(PROGRAM), store, str(self.log), text, death, policy],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def killed(self, death: str, *, policy: str = "fail") -> None:
        ended = self.run(death, policy=policy)
        assert ended.returncode == -signal.SIGKILL, ended.stderr

    def output(self, *, policy: str = "fail", text: str = "go") -> str:
        ended = self.run(policy=policy, text=text)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def keys(self, what: str) -> list[str]:
        lines = self.log.read_text().splitlines()
        return [line.partition("\t")[2] for line in lines if line.startswith(f"{what}\t")]

    async def messages(self) -> list[Message]:
        store = SQLiteStore(self.db)
        try:
            assert await store.runs("s", unfinished=True) == []
            return await store.read("s")
        finally:
            await store.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, str]:
    """A run that was never killed, and its output."""
    place = Place(tmp_path_factory.mktemp("whole"))
    return place, place.output()


@pytest.mark.parametrize("path", TEN_NODES)
async def test_killed_behind_any_node(tmp_path: Path, path: str, whole: tuple[Place, str]) -> None:
    """Killed behind any node, every node and tool ran once, and the conversation is the same (C63)."""
    place = Place(tmp_path)
    place.killed(f"after {path}")
    assert place.output() == whole[1]
    assert happened(place.log) == happened(whole[0].log)
    assert parts_of(await place.messages()) == parts_of(await whole[0].messages())


@pytest.mark.parametrize("what", ["look sky", "book train", "book bag", "look b"])
async def test_killed_in_a_tool_that_may_run_again(
    tmp_path: Path, what: str, whole: tuple[Place, str]
) -> None:
    """With `on_unknown="retry"` a tool that was killed runs again with the same key, and only that one."""
    place = Place(tmp_path)
    place.killed(f"in {what}", policy="retry")
    assert place.output(policy="retry") == whole[1]
    first, again = place.keys(f"tool {what}")
    assert first == again
    lines = happened(place.log)
    lines.remove(f"tool {what}")
    assert lines == happened(whole[0].log)
    assert parts_of(await place.messages()) == parts_of(await whole[0].messages())


async def test_killed_in_a_tool_that_must_not_run_again(
    tmp_path: Path, whole: tuple[Place, str]
) -> None:
    """With `on_unknown="fail"` a tool that was killed is not run again, and the model is told so."""
    place = Place(tmp_path)
    place.killed("in look sky")
    place.output()
    assert happened(place.log) == happened(whole[0].log)
    assert len(place.keys("tool look sky")) == 1
    place = Place(tmp_path / "code")
    place.killed("in book train")
    assert "None" in place.output()  # the value that code was to have
    assert len(place.keys("tool book train")) == 1


async def test_killed_again_and_again(tmp_path: Path, whole: tuple[Place, str]) -> None:
    """A process that is killed in each of several nodes and tools leaves no trace of that."""
    place = Place(tmp_path)
    for death in ("in look map", "after journey/send", "in book bag", "in look right"):
        place.killed(death, policy="retry")
    assert place.output(policy="retry") == whole[1]
    assert set(happened(place.log)) == set(happened(whole[0].log))
    assert parts_of(await place.messages()) == parts_of(await whole[0].messages())


async def test_a_new_input_after_a_kill(tmp_path: Path) -> None:
    """What another process is asked after a kill is answered behind the work that it resumes."""
    place = Place(tmp_path)
    place.killed("after journey/ask")
    place.output(text="more")
    lines = happened(place.log)
    for what in ("node journey/plan", "tool look map", "node journey/answer"):
        assert lines.count(what) == 2
    users = [message.text for message in await place.messages() if message.role == "user"]
    assert [text for text in users if text.startswith("plan")] == ["plan go"]
