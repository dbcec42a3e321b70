"""The examples do what they say: the chat service over real HTTP, the chat loop in real processes."""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from types import ModuleType
from typing import Any

import openai_server as wire
import pytest
import uvicorn

from tenure import ModelRequest, ModelRequestError, TextDelta
from tenure.testing import ScriptedModel

EXAMPLES = Path(__file__).parent.parent / "examples"
TIMEOUT_S = 10


@pytest.fixture(scope="module")
def backend() -> ModuleType:
    """The module of the chat service, which is no package."""
    spec = importlib.util.spec_from_file_location("chat_backend", EXAMPLES / "chat_backend.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Client:
    """Speaks HTTP to a server on loopback."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, method: str, path: str, user: str | None = None, body: str | None = None) -> Any:
        """The status and the JSON of one request."""
        with self.open(method, path, user, body) as response:
            assert response.headers["content-type"] == "application/json"
            return response.status, json.loads(response.read())

    def chat(self, user: str, message: str) -> list[dict[str, object]]:
        """The events that answer one message."""
        with self.open("POST", "/chat", user, json.dumps({"message": message})) as response:
            assert response.status == 200
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            return [event(chunk) for chunk in response.read().split(b"\n\n") if chunk]

    def history(self, user: str) -> list[tuple[str, str]]:
        status, messages = self.ask("GET", "/history", user)
        assert status == 200
        return [(message["role"], message["text"]) for message in messages]

    @contextmanager
    def open(
        self, method: str, path: str, user: str | None, body: str | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        try:
            headers = {"X-User-Id": user} if user is not None else {}
            connection.request(method, path, body=body, headers=headers)
            with connection.getresponse() as response:
                yield response
        finally:
            connection.close()


def event(chunk: bytes) -> dict[str, object]:
    assert chunk.startswith(b"data: ")
    return json.loads(chunk.removeprefix(b"data: "))


@contextmanager
def served(app: object) -> Iterator[Client]:
    """Serve an app with uvicorn in a thread, on a port that the system chose."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))  # pyright: ignore
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()  # from here on a client that comes early waits
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Client(listening.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def serve(backend: ModuleType, tmp_path: Path) -> Callable[..., Any]:
    """Serves the example with a model, on one database per test."""
    url = f"sqlite:///{tmp_path / 'chat.db'}"
    return lambda model: served(backend.create_app(model, url))


# --- the chat service ----------------------------------------------------------------------------


def test_each_user_has_a_conversation_of_their_own(serve: Callable[..., Any]) -> None:
    """The model and the history of one user never hold what another one said."""
    model = ScriptedModel(["Hello, Ada.", "Hello, Bob.", "You are Ada."])
    with serve(model) as client:
        client.chat("ada", "I am Ada.")
        client.chat("bob", "I am Bob.")
        client.chat("ada", "Who am I?")
        assert client.history("ada") == [
            ("user", "I am Ada."),
            ("assistant", "Hello, Ada."),
            ("user", "Who am I?"),
            ("assistant", "You are Ada."),
        ]
        assert client.history("bob") == [("user", "I am Bob."), ("assistant", "Hello, Bob.")]
        assert client.history("eve") == []
    sent = [[message.text for message in request.messages[1:]] for request in model.requests]
    assert sent == [["I am Ada."], ["I am Bob."], ["I am Ada.", "Hello, Ada.", "Who am I?"]]


def test_a_restart_with_the_same_file_remembers(serve: Callable[..., Any]) -> None:
    """A service that is started again on its database goes on with every conversation."""
    with serve(ScriptedModel(["Hello, Ada."])) as client:
        client.chat("ada", "I am Ada.")
    model = ScriptedModel(["You are Ada."])
    with serve(model) as client:
        assert client.history("ada") == [("user", "I am Ada."), ("assistant", "Hello, Ada.")]
        client.chat("ada", "Who am I?")
    assert [message.text for message in model.requests[0].messages[1:]] == [
        "I am Ada.",
        "Hello, Ada.",
        "Who am I?",
    ]


class GatedModel(ScriptedModel):
    """Streams one word, and the rest only when it is told to."""

    def __init__(self) -> None:
        super().__init__(["One two three."])
        self.may_go_on = Event()
        self.was_left = Event()

    async def stream(self, request: ModelRequest) -> Any:
        try:
            async for frame in super().stream(request):
                yield frame
                if isinstance(frame, TextDelta):
                    while not self.may_go_on.is_set():  # set by another thread
                        await asyncio.sleep(0.005)
        finally:
            self.was_left.set()


def test_a_reply_arrives_in_pieces(serve: Callable[..., Any]) -> None:
    """A piece of the reply is at the client while the model still writes the next one."""
    model = GatedModel()
    body = json.dumps({"message": "Count."})
    with serve(model) as client, client.open("POST", "/chat", "ada", body) as response:
        assert event(response.readline().strip()) == {"text": "One "}
        assert not model.was_left.is_set()
        model.may_go_on.set()
        rest = [event(chunk) for chunk in response.read().strip().split(b"\n\n")]
        assert rest == [{"text": "two "}, {"text": "three."}, {"done": True}]


def test_a_client_that_leaves_cancels_the_run(serve: Callable[..., Any]) -> None:
    """When the client leaves in the middle, the model is stopped and nothing is stored."""
    model = GatedModel()
    body = json.dumps({"message": "Count."})
    with serve(model) as client:
        with client.open("POST", "/chat", "ada", body) as response:
            assert event(response.readline().strip()) == {"text": "One "}
        assert model.was_left.wait(TIMEOUT_S)
        assert client.history("ada") == []


def test_a_model_that_fails_is_an_event_and_stores_nothing(serve: Callable[..., Any]) -> None:
    """A model error is told as JSON, without its details, and the conversation stays as it was."""
    model = ScriptedModel([ModelRequestError("key sk-secret is wrong", status_code=401), "Hello."])
    with serve(model) as client:
        assert client.chat("ada", "Hello?") == [
            {"error": "The model could not answer. Please try again."}
        ]
        assert client.history("ada") == []
        assert client.chat("ada", "Hello?") == [{"text": "Hello."}, {"done": True}]


def test_a_database_that_fails_is_json(backend: ModuleType, tmp_path: Path) -> None:
    """A database that cannot be opened is told as JSON on both ways, without its path."""
    broken = tmp_path / "chat.db"
    broken.write_text("this is no database, and long enough to see that" * 100)
    with served(backend.create_app(ScriptedModel(["Hello."]), f"sqlite:///{broken}")) as client:
        assert client.ask("GET", "/history", "ada") == (503, {"error": backend.UNAVAILABLE})
        assert client.chat("ada", "Hello?") == [{"error": backend.UNAVAILABLE}]


@pytest.mark.parametrize(
    ("method", "path", "user", "body", "status", "error"),
    [
        ("POST", "/chat", None, '{"message": "Hi"}', 400, "The header X-User-Id is missing."),
        ("POST", "/chat", " ", '{"message": "Hi"}', 400, "The header X-User-Id is missing."),
        ("GET", "/history", None, None, 400, "The header X-User-Id is missing."),
        ("POST", "/chat", "ada", "Hi", 400, "The body is not JSON."),
        ("POST", "/chat", "ada", "[]", 400, 'The body must be {"message": "some text"}.'),
        (
            "POST",
            "/chat",
            "ada",
            '{"message": 1}',
            400,
            'The body must be {"message": "some text"}.',
        ),
        (
            "POST",
            "/chat",
            "ada",
            '{"message": ""}',
            400,
            'The body must be {"message": "some text"}.',
        ),
        ("GET", "/chat", "ada", None, 405, "Method Not Allowed"),
        ("GET", "/elsewhere", "ada", None, 404, "Not Found"),
    ],
)
def test_a_request_that_makes_no_sense_is_told_so(
    serve: Callable[..., Any],
    method: str,
    path: str,
    user: str | None,
    body: str | None,
    status: int,
    error: str,
) -> None:
    """A request that cannot be answered gets a status and JSON, and the model is not asked."""
    model = ScriptedModel([])
    with serve(model) as client:
        assert client.ask(method, path, user, body) == (status, {"error": error})
    assert model.requests == []


# --- the chat loop -------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[wire.OpenAIServer]:
    """A server of OpenAI's protocol on loopback."""
    with wire.running_server() as running:
        yield running


def loop(
    folder: Path, said: str, *arguments: str, url: str = ""
) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, str(EXAMPLES / "chat_loop.py"), *arguments],
        input=said,
        capture_output=True,
        encoding="utf-8",
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": paths,
            "PYTHONWARNINGS": "error",
            "OPENAI_API_KEY": "sk-secret",
            "OPENAI_BASE_URL": url,
        },
        timeout=60,
        check=False,
    )


def streamed(*words: str) -> wire.Reply:
    return wire.streamed(*({"content": word} for word in words))


def test_the_loop_answers_and_remembers_in_a_new_process(
    server: wire.OpenAIServer, tmp_path: Path
) -> None:
    """Each line is answered, and another process on the same file goes on with the conversation."""
    server.script(streamed("Hello, ", "Ada."), streamed("You are Ada."), streamed("Still Ada."))
    model = "openai-chat:scripted-1"

    first = loop(tmp_path, "I am Ada.\nWho am I?\n", model, url=server.url)
    assert (first.stdout, first.stderr, first.returncode) == ("Hello, Ada.\nYou are Ada.\n", "", 0)

    second = loop(tmp_path, "And now?\n", model, url=server.url)
    assert (second.stdout, second.stderr, second.returncode) == ("Still Ada.\n", "", 0)
    assert [message["content"] for message in server.bodies[2]["messages"][1:]] == [
        "I am Ada.",
        "Hello, Ada.",
        "Who am I?",
        "You are Ada.",
        "And now?",
    ]


def test_the_loop_goes_on_after_a_model_error(server: wire.OpenAIServer, tmp_path: Path) -> None:
    """A line that the model could not answer is told on standard error, and is not kept."""
    server.script(wire.failure(400, "no"), streamed("Hello."))
    done = loop(tmp_path, "One.\nTwo.\n", "openai-chat:scripted-1", url=server.url)
    assert (done.stdout, done.returncode) == ("Hello.\n", 0)
    assert "HTTP 400" in done.stderr
    assert "Traceback" not in done.stderr
    assert [message["content"] for message in server.bodies[1]["messages"][1:]] == ["Two."]


def test_the_loop_says_what_is_wrong_with_the_model(tmp_path: Path) -> None:
    """A model that does not exist ends the loop with one sentence."""
    done = loop(tmp_path, "Hello.\n", "gpt-5-mini")
    assert done.returncode == 1
    assert done.stderr.startswith("There is no model 'gpt-5-mini'")
    assert "Traceback" not in done.stderr
