"""The example of LLM sessions does what it says, in a process of its own and in ours."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tenure import Agent, ModelRequestError
from tenure.testing import ScriptedModel

EXAMPLE = Path(__file__).parent.parent / "examples" / "sessions.py"

PRINTED = """\
user: Where is order 17? I need it now!
  ticket: Ticket(order=17, is_urgent=True)
  tool: shipped, arrives on Friday
  draft: Order 17 was handed over to the carrier yesterday. It is expected to arrive on Friday.
  answer: Your parcel is on its way and arrives on Friday!
  history: ['Where is order 17? I need it now!', 'Your parcel is on its way and arrives on Friday!']
user: Thanks. And order 21?
  ticket: Ticket(order=21, is_urgent=False)
  tool: not packed yet
  draft: Order 21 is waiting to be packed. There is no date yet.
  answer: We still have to pack order 21.
  summary: Order 17 arrives on Friday.
  history: ['Said earlier: Order 17 arrives on Friday.', 'Thanks. And order 21?', \
'We still have to pack order 21.']
stored: ['Said earlier: Order 17 arrives on Friday.', 'Thanks. And order 21?', \
'We still have to pack order 21.']
before: ['Where is order 17? I need it now!', 'Your parcel is on its way and arrives on Friday!']
"""


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The module of the example, which is no package."""
    spec = importlib.util.spec_from_file_location("example_sessions", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_prints_each_step(tmp_path: Path) -> None:
    """The script runs without a network, warns of nothing, and prints what each session did."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONWARNINGS": "error",
            "PYTHONIOENCODING": "utf-8",
        },
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == (PRINTED, "", 0)


@pytest.mark.anyio
async def test_the_requests_are_what_the_comments_say(
    example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ticket is asked for on the side, and the draft with what the tool said in front of it."""
    model = ScriptedModel(example.REPLIES[:3])
    agent = Agent(model=model, tools=[example.order_status], strategy=example.help_desk)
    await agent.run("Where is order 17?")
    assert [[message.text for message in request.messages] for request in model.requests] == [
        ["Where is order 17?"],
        ["Where is order 17?", "Order 17: shipped, arrives on Friday."],
        [
            "Where is order 17?",
            "Order 17: shipped, arrives on Friday.",
            example.REPLIES[1],
            "Say it in one short sentence.",
        ],
    ]
    assert [request.output_schema is not None for request in model.requests] == [True, False, False]


@pytest.mark.anyio
async def test_a_summary_that_fails_leaves_the_history(
    example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """When the model cannot sum up, the run has its answer, and the history is as it was."""
    earlier = [example.user("One?"), example.user("Two?")]
    model = ScriptedModel([*example.REPLIES[:3], ModelRequestError("busy")])
    agent = Agent(
        model=model, prompt=earlier, tools=[example.order_status], strategy=example.help_desk
    )
    result = await agent.run("Where is order 17?")
    assert (result.output, len(model.requests)) == (example.REPLIES[2], 4)
    assert "  history: ['One?', 'Two?', 'Where is order 17?', " in capsys.readouterr().out
