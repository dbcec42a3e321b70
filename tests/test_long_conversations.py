"""Long conversations on a budget: over HTTP, with tools and compression, and in the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai_server as wire
import pytest
from test_cli import Command

from tenure import (
    Agent,
    ChatMemory,
    KeepLastN,
    assistant,
    is_summary,
    open_store,
    system,
    tool,
    tool_result,
    user,
)
from tenure.messages import ToolCall

pytestmark = pytest.mark.anyio

TURNS = 500
BUDGET = 4_000
SYSTEM = "You are the memory of a ship. " * 5


@tool
def look(place: str) -> str:
    """Look somewhere.

    Args:
        place: Where.
    """
    return f"At {place} there is " + "water, " * 20


def counted(body: dict[str, Any]) -> int:
    """The tokens of a request as this server counts them: not as anybody estimates them."""
    text = sum(len(json.dumps(message)) for message in body["messages"])
    return text * 10 // 37 + len(json.dumps(body.get("tools", []))) // 4 + 3


def answer(body: dict[str, Any]) -> wire.Reply:
    """Calls a tool twice at once in every fifth turn, summarises when asked to, and else talks."""
    last = body["messages"][-1]
    said = str(last.get("content"))
    usage = {"prompt_tokens": counted(body), "completion_tokens": 40, "total_tokens": 0}
    if body["messages"][0]["content"].startswith("You write down"):
        return wire.text("So far: " + "much was said. " * 9, usage=usage)
    if last["role"] == "user" and said.rpartition(" ")[2].rstrip("?").endswith(("0", "5")):
        number = len(body["messages"])
        calls = [
            (f"c{said[-5:-1]}{n}", "look", json.dumps({"place": f"{number}{n}"})) for n in "ab"
        ]
        return wire.completion(
            {
                "tool_calls": [
                    {"id": i, "type": "function", "function": {"name": name, "arguments": args}}
                    for i, name, args in calls
                ]
            },
            finish_reason="tool_calls",
            usage=usage,
        )
    return wire.text("The sea is wide, and so is this answer. " * 4, usage=usage)


def assert_acceptable(body: dict[str, Any]) -> None:
    """What any provider wants of a request: one system prompt, first; results behind their calls."""
    messages = body["messages"]
    assert [m["role"] for m in messages].count("system") == 1
    assert messages[0]["role"] == "system"
    waiting: list[str] = []
    for message in messages[1:]:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            continue
        assert waiting == []
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
    assert waiting == []
    assert messages[-1]["role"] in ("user", "tool")


async def test_five_hundred_turns_on_a_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C02, C22, C28, promise 2: 500 turns with tools and compression over HTTP: each request is valid
    and inside the budget, no system prompt is lost, and the log has everything that was said.
    """
    store = open_store(f"sqlite:///{tmp_path}/long.db")
    memory = (
        ChatMemory(store)
        .window_tokens(BUDGET)
        .compress_when(tokens=BUDGET * 6 // 10, strategy=KeepLastN(6))
    )
    with wire.running_server() as server:
        server.answer = answer
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        agent = Agent(
            model="openai-chat:scripted-1",
            system_prompt=SYSTEM,
            tools=[look],
            features=[memory],
        )
        for number in range(TURNS):
            await agent.run(f"What is at mile {number}?", "s")
        bodies = server.bodies
    summaries = [b for b in bodies if b["messages"][0]["content"].startswith("You write down")]
    assert len(bodies) == TURNS + TURNS // 5 + len(summaries)
    assert 5 < len(summaries) < TURNS // 5
    for body in bodies:
        assert_acceptable(body)
        assert counted(body) <= BUDGET
        if body not in summaries:
            assert body["messages"][0]["content"] == SYSTEM
    logged = {
        entry.message.id: entry.message
        for branch in await store.branches("s")
        for entry in await store.entries("s", branch=branch.branch)
    }
    asked = {m.text for m in logged.values() if m.role == "user"}
    assert asked == {f"What is at mile {number}?" for number in range(TURNS)}
    replies = [m for m in logged.values() if m.role == "assistant" and not is_summary(m)]
    assert len(replies) == TURNS + TURNS // 5
    assert sum(len(m.tool_results) for m in logged.values()) == 2 * TURNS // 5
    await store.close()


# --- in the terminal -------------------------------------------------------------------------------


def test_a_chat_on_a_budget_summarises(tmp_path: Path) -> None:
    """`tenure chat --budget`: the conversation goes on, and `tenure show` has its summary."""

    def talk(body: dict[str, Any]) -> wire.Reply:
        is_task = body["messages"][0]["content"].startswith("You write down")
        words = "They spoke of numbers." if is_task else "A number it is. " * 10
        if not body.get("stream"):
            return wire.text(words)
        return wire.streamed({"content": words})

    with wire.running_server() as server:
        server.answer = talk
        command = Command(tmp_path, server.url)
        lines = "".join(f"Number {n}\n" for n in range(12))
        options = ("--model", "openai-chat:scripted-1", "--db", "a.db", "--session", "s1")
        done = command("chat", *options, "--budget", "120", said=lines)
        assert (done.returncode, done.stdout.count("A number it is. \n")) == (0, 12)
        assert "They spoke" not in done.stdout
        shown = command("show", "s1", "--db", "a.db").stdout
    assert "summary> They spoke of numbers.\n" in shown
    assert shown.startswith("user> Number 0\n")
    assert "user> Number 11\n" in shown


async def test_a_view_says_what_is_left_out_and_why(tmp_path: Path) -> None:
    """`tenure show --view` prints the request, and to standard error a reason for each thing left out."""
    store = open_store(f"sqlite:///{tmp_path}/a.db")
    call = assistant(ToolCall(id="a", name="look", args='{"place": "x"}'))
    await store.append(
        "s1",
        [
            *(user(f"u{n}") for n in range(46)),
            call,
            tool_result("a", "hit", name="look"),
            tool_result("a", "again", name="look"),
            tool_result("z", "stray", name="look"),
            system("be kind"),
            user("last"),
        ],
    )
    await store.close()
    command = Command(tmp_path, "http://127.0.0.1:9/v1")
    done = command("show", "s1", "--db", "a.db", "--view", "--system", "be kind")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[:2] == ["system> be kind", "user> u2"]
    assert lines[-5:] == [
        "assistant> [tool call: look (id a)]",
        '{"place": "x"}',
        "user> [tool result: look (id a)]",
        "hit",
        "user> last",
    ]
    assert done.stderr.splitlines() == [
        "left out: user> u0 (outside the window of 50 messages)",
        "left out: user> u1 (outside the window of 50 messages)",
        "left out: tool> [look gave] again (its call has a result already)",
        "left out: tool> [look gave] stray (it answers no call)",
        "left out: system> be kind (the system prompt is sent once)",
    ]
    done = command("show", "s1", "--db", "a.db", "--view", "--budget", "24", "--system", "be kind")
    assert done.stdout == "system> be kind\nuser> last\n"
    assert "(outside the window of 24 tokens)" in done.stderr
    for budget, is_due in (("100", True), ("5000", False)):
        done = command("show", "s1", "--db", "a.db", "--view", "--budget", budget)
        assert ("note: tenure chat would first put a summary" in done.stderr) is is_due
    done = command("show", "s1", "--db", "a.db", "--view", "--budget", "5")
    assert (done.returncode, done.stdout) == (0, "")
    assert "more than the 5" in done.stderr
