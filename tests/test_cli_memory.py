"""The `tenure memory` commands as a user runs them: real processes and real files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


class Command:
    """Runs `tenure memory` on a file in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.environment = {
            **{k: v for k, v in os.environ.items() if k != "TENURE_STORE"},
            "COLUMNS": "100",
            "PYTHONWARNINGS": "error",
        }
        self.folder = folder

    def __call__(self, verb: str, *args: str, said: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tenure", "memory", verb, *args, "--db", "m.db"],
            input=said,
            capture_output=True,
            text=True,
            encoding="utf-8",
            cwd=self.folder,
            env=self.environment,
            timeout=60,
            check=False,
        )

    def json(self, verb: str, *args: str, said: str = "") -> Any:
        done = self(verb, *args, "--json", said=said)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


WORDS = ("--embedder", "none")


def test_a_memory_from_beginning_to_end(command: Command) -> None:
    """What is added is found, shown, changed and deleted, with its labels and metadata."""
    [tea] = command.json(
        "add", "Ada likes tea", *WORDS, "--session", "s", "--graph", "g", "--task", "t",
        "--speaker", "Ada", "--metadata", '{"n": 1}',
    )  # fmt: skip
    assert (tea["content"], tea["session_id"], tea["metadata"]) == ("Ada likes tea", "s", {"n": 1})
    assert (tea["graph_id"], tea["task_id"], tea["speaker"]) == ("g", "t", "Ada")
    assert "embedding" not in tea
    added = command("add", *WORDS, said="one\n\ntwo\n")
    assert (added.returncode, added.stderr) == (0, "")
    assert [m["content"] for m in command.json("list")] == ["two", "one", "Ada likes tea"]
    assert [m["content"] for m in command.json("list", "--limit", "1")] == ["two"]
    [hit] = command.json("search", "tea", *WORDS, "--explain")
    assert hit["id"] == tea["id"]
    assert sum(hit["signals"].values()) == pytest.approx(hit["score"], abs=1e-4)
    [changed] = command.json("update", tea["id"], "--content", "Ada likes mate", *WORDS)
    assert changed["version"] == 2
    versions = command.json("show", tea["id"])
    assert [v["content"] for v in versions] == ["Ada likes tea", "Ada likes mate"]
    assert "Ada likes mate" in command("show", tea["id"]).stdout
    assert command.json("delete", tea["id"]) == {"deleted": 1}
    assert command("search", "mate", *WORDS).stderr == "There are no such memories.\n"


def test_filters_choose(command: Command) -> None:
    """Labels, times and conditions choose, alike in lists, searches and clearing."""
    for n in range(3):
        label = "st"[n % 2]
        command.json("add", f"note {n}", *WORDS, "--session", label, "--metadata", f'{{"n": {n}}}')
    for args, expected in (
        (("--session", "s"), {"note 0", "note 2"}),
        (("--where", '{"n": {"$gt": 0}}'), {"note 1", "note 2"}),
        (("--since", "2020-01-01"), {"note 0", "note 1", "note 2"}),
        (("--until", "2020-01-01"), set[str]()),
        (("--as-of", "2020-01-01 10:00:00", "--session", "t"), {"note 1"}),
    ):
        assert {m["content"] for m in command.json("list", *args)} == expected, args
        assert {m["content"] for m in command.json("search", "note", *WORDS, *args)} == expected
    page = command.json("search", "note", *WORDS, "--limit", "1", "--offset", "2")
    assert len(page) == 1
    refused = command("clear", "--session", "s", said="n\n")
    assert "Delete 2 memories of agent 'agent' for good?" in refused.stderr
    assert command.json("clear", "--session", "s", "--yes") == {"deleted": 2}
    assert [m["content"] for m in command.json("list")] == ["note 1"]


def test_owners_are_apart(command: Command) -> None:
    """Each agent and user has memories of its own."""
    command.json("add", "of agent", *WORDS)
    command.json("add", "of ada", *WORDS, "--user", "ada")
    command.json("add", "of other", *WORDS, "--agent", "other")
    assert [m["content"] for m in command.json("list")] == ["of agent"]
    assert [m["content"] for m in command.json("list", "--user", "ada")] == ["of ada"]
    assert [m["content"] for m in command.json("list", "--agent", "other")] == ["of other"]


def test_searching_by_meaning(command: Command) -> None:
    """`reembed` gives what has none a vector; then a question in other words finds its answer."""
    command.json("add", "Budget is $50k", "I like cats", "It rains in April", *WORDS)
    done = command("reembed", "--embedder", "local")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.endswith("Embedded 3 memories.\n")
    assert command.json("reembed", "--embedder", "local") == {"embedded": 0}
    found = command.json("search", "how much money do we have?", "--embedder", "local")
    assert found[0]["content"] == "Budget is $50k"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("show", "none"), "There is no memory 'none'"),
        (("update", "none", "--content", "x"), "There is no memory 'none'"),
        (("delete", "none"), "There is no memory 'none'"),
        (("search", "x", "--where", "{"), "--where '{' is no JSON"),
        (("list", "--where", "[1]"), "is no JSON object"),
        (("list", "--where", '{"a": {"$x": 1}}'), "There is no operator '$x'"),
        (("add", "x", "--metadata", "1"), "is no JSON object"),
        (("add", "x", "--agent", ""), "agent_id=''"),
        (("add", ""), "is empty"),
        (("search", "x", "--embedder", "lokal"), "There is no embedder 'lokal'"),
        (("reembed", "--embedder", "none"), "There is no embedder"),
    ],
)
def test_what_is_wrong_is_said(command: Command, args: tuple[str, ...], said: str) -> None:
    """One sentence on standard error, code 2, and nothing is lost."""
    command.json("add", "kept", *WORDS)
    done = command(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [m["content"] for m in command.json("list")] == ["kept"]


def test_looking_makes_no_file(command: Command) -> None:
    """A database that is not there is not made by looking."""
    done = command("list")
    assert done.returncode == 2
    assert "There is no database" in done.stderr
    assert list(command.folder.iterdir()) == []
