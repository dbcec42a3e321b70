"""`tenure runs` and `tenure rollback`, on runs that were interrupted."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from runs import Died, agent_of, dies_after, line_of, named
from test_cli import Command, Terminal

from tenure import (
    Agent,
    ChatMemory,
    Graph,
    Owner,
    Persistence,
    RollbackToolRegistry,
    RunContext,
    Store,
    tool,
    user,
)
from tenure.stores.run_records import NewCheckpoint
from tenure.stores.sqlite import SQLiteStore


class Shop:
    """A file, and an agent that buys something in the middle of its graph."""

    def __init__(self, db: Path) -> None:
        self.db = db
        self.did: list[str] = []

    def agent(self, store: Store, name: str = "agent") -> Agent:
        @tool
        def buy(what: str) -> str:
            """Buy."""
            self.did.append(f"buy {what}")
            return "bought"

        def unbuy(what: str) -> None:
            self.did.append(f"unbuy {what}")

        undo = RollbackToolRegistry()
        undo.register(buy, unbuy)

        async def shop(ctx: RunContext, value: Any) -> Any:
            async with ctx.llm.write_session() as session:
                await session.call_tool("buy", {"what": "tea"})
            return value

        graph: Graph[Any, Any] = line_of(named("first"), shop, named("last"))
        features = [ChatMemory(store), Persistence(store, rollback_tools=undo)]
        return agent_of(store, graph, features=features, tools=[buy], name=name)

    def die(self, text: str = "go\x1b[31m\nhome", path: str = "line/shop", **options: str) -> None:
        async def run() -> None:
            store = SQLiteStore(self.db)
            agent = self.agent(store, **options)
            dies_after(agent, path)
            with pytest.raises(Died):
                await agent.run(text, "s")
            await store.close()

        asyncio.run(run())

    def run(self, text: str = "go\x1b[31m\nhome") -> object:
        async def run() -> object:
            store = SQLiteStore(self.db)
            try:
                return (await self.agent(store).run(text, "s")).output
            finally:
                await store.close()

        return asyncio.run(run())


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "chat.db")


def tenure(shop: Shop, *args: str, said: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tenure", *args, "--db", str(shop.db)],
        input=said,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def listed(shop: Shop, *args: str) -> list[dict[str, Any]]:
    ended = tenure(shop, "runs", "s", "--json", *args)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_runs_are_listed(shop: Shop) -> None:
    """An unfinished run is shown with input, checkpoints and calls, and nothing a terminal obeys."""
    shop.die()
    ended = tenure(shop, "runs", "s")
    assert (ended.returncode, ended.stderr) == (0, "")
    head, said, one, two, call = ended.stdout.splitlines()
    assert "  unfinished  agent agent  20" in head
    assert said == "  input  go�[31m home"
    assert one.startswith("  checkpoint 1  line/first  20")
    assert two.startswith("  checkpoint 2  line/shop  20")
    assert call.startswith("  call 1  buy  line/shop  20")
    assert call.endswith("  finished")
    (run,) = listed(shop)
    assert (run["state"], run["input"], run["ended_at"]) == ("unfinished", "go\x1b[31m\nhome", None)
    assert [each["node_path"] for each in run["checkpoints"]] == ["line/first", "line/shop"]
    assert [(each["tool"], each["state"]) for each in run["calls"]] == [("buy", "finished")]


def test_finished_runs_are_listed(shop: Shop) -> None:
    """The last ten finished runs are shown, or all; without input, checkpoints and calls."""
    for n in range(11):
        shop.run(f"go {n}")
    runs = listed(shop)
    assert len(runs) == 10
    assert {run["state"] for run in runs} == {"finished"}
    assert all(run["input"] is None and run["checkpoints"] == run["calls"] == [] for run in runs)
    assert [run["started_at"] for run in runs] == sorted(run["started_at"] for run in runs)
    assert len(listed(shop, "--all")) == 11
    assert len(tenure(shop, "runs", "s").stdout.splitlines()) == 10


def test_a_run_that_was_redacted_is_lost(shop: Shop) -> None:
    """A run that can neither be resumed nor has ended is said to be lost."""

    async def redact() -> None:
        store = SQLiteStore(shop.db)
        await store.append("s", [user("secret")])
        await store.redact("s", lambda _: None)
        await store.close()

    shop.die()
    asyncio.run(redact())
    assert [run["state"] for run in listed(shop)] == ["lost"]


@pytest.mark.parametrize("by", ["version", "checkpoint_id"])
def test_a_rollback_is_undone_by_the_agent(shop: Shop, by: str) -> None:
    """Behind a rollback the agent undoes what its tools did, and goes on from the checkpoint."""
    shop.die()
    first, _ = listed(shop)[0]["checkpoints"]
    ended = tenure(shop, "rollback", "s", str(first[by]), said="y\n")
    assert ended.returncode == 0, ended.stderr
    removed, undone, hint, asked = ended.stderr.splitlines()
    assert removed.startswith("to be removed: checkpoint 2  line/shop  20")
    assert undone.startswith("to be undone: call 1  buy  line/shop  20")
    assert "RollbackToolRegistry" in hint
    assert asked.endswith(f"Took run {listed(shop)[0]['run_id']} back to 1.")
    (run,) = listed(shop)
    assert [each["node_path"] for each in run["checkpoints"]] == ["line/first"]
    assert [each["state"] for each in run["calls"]] == ["rolled back"]
    assert shop.did == ["buy tea"]
    assert "first last" in str(shop.run())
    assert shop.did == ["buy tea", "unbuy tea", "buy tea"]


def test_back_to_the_beginning(shop: Shop) -> None:
    """Version 0 is the beginning of the run."""
    shop.die()
    assert tenure(shop, "rollback", "s", "0", "--yes").returncode == 0
    assert listed(shop)[0]["checkpoints"] == []
    shop.run()
    assert shop.did == ["buy tea", "unbuy tea", "buy tea"]


def test_a_run_is_given_up(shop: Shop) -> None:
    """A run that was given up is not resumed; what its tools did stays done."""
    shop.die()
    ended = tenure(shop, "rollback", "s", "--give-up", "--yes")
    assert ended.returncode == 0, ended.stderr
    assert "nothing undoes it any more" in ended.stderr
    assert [run["state"] for run in listed(shop)] == ["finished"]
    assert shop.run("another") == "another first last"
    assert shop.did == ["buy tea", "buy tea"]


@pytest.mark.parametrize("args", [["1"], ["--give-up"]])
def test_nothing_happens_without_a_yes(shop: Shop, args: list[str]) -> None:
    """It asks first, and a no leaves everything as it was."""
    shop.die()
    before = listed(shop)
    ended = tenure(shop, "rollback", "s", *args, said="n\n")
    assert ended.returncode == 0
    assert "call 1  buy  line/shop" in ended.stderr
    assert listed(shop) == before


def test_ctrl_c_at_the_question(shop: Shop, tmp_path: Path) -> None:
    """One Ctrl-C at the question ends the command; nothing was done, and the conversation is free."""
    shop.die()
    before = listed(shop)
    args = ("rollback", "s", "1", "--db", str(shop.db))
    terminal = Terminal(Command(tmp_path, ""), *args)
    terminal.wait_for("[y/N]")
    time.sleep(
        0.5
    )  # one that comes just before readline waits is not heard; see Terminal.interrupt
    terminal.process.send_signal(signal.SIGINT)
    try:
        assert terminal.close() == 1
    finally:
        terminal.process.kill()
        terminal.process.wait()
    assert "Traceback" not in terminal.screen
    assert listed(shop) == before
    assert tenure(shop, "rollback", "s", "1", "--yes").returncode == 0


async def _with_names(db: Path, *, run_id: str, checkpoints: Sequence[str]) -> None:
    """Record a run of the agent that has saved these."""
    store = SQLiteStore(db)
    await store.begin_run("s", run_id, owner=Owner(agent_id="a\nb"), input="x")
    for name in checkpoints:
        new = NewCheckpoint(checkpoint_id=name, node_path="g/a\nb", scope="g", state="{}")
        await store.save_checkpoint("s", run_id, new)
    await store.close()


def test_names_stay_in_their_line(shop: Shop) -> None:
    """A name with a newline or a control character neither makes a line of its own nor steers anything."""
    asyncio.run(_with_names(shop.db, run_id="r\x1b[31m\n", checkpoints=["one", "two\n  call 9"]))
    shown = tenure(shop, "runs", "s").stdout
    assert [line.split()[0] for line in shown.splitlines()] == [
        "r\ufffd[31m", "input", "checkpoint", "checkpoint",
    ]  # fmt: skip
    asked = tenure(shop, "rollback", "s", "1", said="n\n").stderr
    assert len(asked.splitlines()) == 2
    assert "\x1b" not in shown + asked


def test_a_name_of_two_checkpoints(shop: Shop) -> None:
    """What is the version of one checkpoint and the id of another is refused; each has another name."""
    asyncio.run(_with_names(shop.db, run_id="r", checkpoints=["a", "b", "1", "4", "0"]))
    for name in ("1", "0"):
        ended = tenure(shop, "rollback", "s", name, "--yes")
        assert ended.returncode == 2
        assert f"'{name}' is the version of one checkpoint and the id of another" in ended.stderr
    assert len(listed(shop)[0]["checkpoints"]) == 5
    assert tenure(shop, "rollback", "s", "3", "--yes").returncode == 0
    assert tenure(shop, "rollback", "s", "a", "--yes").returncode == 0
    assert [each["checkpoint_id"] for each in listed(shop)[0]["checkpoints"]] == ["a"]


def test_one_of_several_runs(shop: Shop) -> None:
    """When several agents have unfinished runs, `--run` says which; without, they are listed."""
    shop.die(name="one")
    shop.die(name="two")
    ended = tenure(shop, "rollback", "s", "1", "--yes")
    assert ended.returncode == 2
    assert "agent one" in ended.stderr
    assert "agent two" in ended.stderr
    one, two = listed(shop)
    assert tenure(shop, "rollback", "s", "1", "--yes", "--run", two["run_id"]).returncode == 0
    assert [len(run["checkpoints"]) for run in listed(shop)] == [2, 1]
    assert one["agent_id"] == "one"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["rollback", "s", "7", "--yes"], "no checkpoint '7'"),
        (["rollback", "s", "--yes"], "either a checkpoint"),
        (["rollback", "s", "1", "--give-up", "--yes"], "either a checkpoint"),
        (["rollback", "s", "1", "--run", "none", "--yes"], "no unfinished run 'none'"),
        (["rollback", "none", "1", "--yes"], "no conversation 'none'"),
        (["runs", "none"], "no conversation 'none'"),
    ],
)
def test_bad_input(shop: Shop, args: list[str], said: str) -> None:
    """What cannot be done is one sentence and exit code 2, and nothing is changed."""
    shop.die()
    before = listed(shop)
    ended = tenure(shop, *args)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert listed(shop) == before


def test_a_conversation_without_runs(shop: Shop) -> None:
    """A conversation that has none says so, and there is nothing to roll back."""

    async def talk() -> None:
        store = SQLiteStore(shop.db)
        await store.append("s", [user("hello")])
        await store.close()

    asyncio.run(talk())
    ended = tenure(shop, "runs", "s")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "has no runs with persistence" in ended.stderr
    assert listed(shop) == []
    assert "no unfinished run" in tenure(shop, "rollback", "s", "1", "--yes").stderr


def test_a_run_that_is_going_on_is_left_alone(shop: Shop) -> None:
    """While somebody has the conversation, a rollback is refused."""
    shop.die()

    async def held() -> subprocess.CompletedProcess[str]:
        store = SQLiteStore(shop.db)
        lease = await store.request_lease("s", holder="a run", wait=False)
        assert lease is not None
        ended = await asyncio.to_thread(tenure, shop, "rollback", "s", "1", "--yes")
        await store.release_lease("s", holder="a run")
        await store.close()
        return ended

    ended = asyncio.run(held())
    assert ended.returncode == 2
    assert "Another run is using the conversation 's'" in ended.stderr
    assert len(listed(shop)[0]["checkpoints"]) == 2
