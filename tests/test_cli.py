"""The `tenure` command as a user runs it: real processes, real files, and a server on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime, timedelta
from pathlib import Path

import openai_server as wire
import pytest

import tenure

MODEL = ("--model", "openai-chat:scripted-1")


class Command:
    """Runs `tenure` in a folder of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.environment = {
            **{k: v for k, v in os.environ.items() if k != "TENURE_STORE"},
            "OPENAI_API_KEY": "sk-secret",
            "OPENAI_BASE_URL": url,
            "XDG_DATA_HOME": str(folder / "data"),
            "COLUMNS": "80",
            "PYTHONWARNINGS": "error",
        }

    def __call__(self, *args: str, said: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tenure", *args],
            input=said,
            capture_output=True,
            text=True,
            encoding="utf-8",
            cwd=self.folder,
            env=self.environment,
            timeout=60,
            check=False,
        )

    def messages(self, session: str = "s1") -> list[dict[str, object]]:
        shown = self("show", session, "--db", "a.db", "--json")
        assert shown.returncode == 0, shown.stderr
        return json.loads(shown.stdout)


@pytest.fixture
def command(server: wire.OpenAIServer, tmp_path: Path) -> Command:
    """The command, with a model that the loopback server answers for."""
    return Command(tmp_path, server.url)


def streamed(*words: str) -> wire.Reply:
    return wire.streamed(*({"content": word} for word in words))


CHAT = ("chat", "--db", "a.db", "--session", "s1", *MODEL)


def test_a_conversation_goes_on_in_a_new_process(
    command: Command, server: wire.OpenAIServer
) -> None:
    """Lines from a pipe are answered on standard output; the next process remembers them."""
    server.script(streamed("Porto", " it is."), streamed("In Porto."))
    first = command(*CHAT, said="I live in Porto and I am allergic to nuts.\n")
    assert (first.returncode, first.stdout) == (0, "Porto it is.\n")
    assert first.stderr.startswith("Conversation s1: 0 messages remembered.")
    second = command(*CHAT, said="Where do I live?")  # the last line may lack its newline
    assert (second.returncode, second.stdout) == (0, "In Porto.\n")
    assert second.stderr.startswith("Conversation s1: 2 messages remembered.")
    assert [(m["role"], m["text"]) for m in command.messages()] == [
        ("user", "I live in Porto and I am allergic to nuts."),
        ("assistant", "Porto it is."),
        ("user", "Where do I live?"),
        ("assistant", "In Porto."),
    ]
    sent = [(m["role"], m["content"]) for m in server.bodies[1]["messages"]]
    assert sent == [
        ("system", "You are a helpful assistant."),
        ("user", "I live in Porto and I am allergic to nuts."),
        ("assistant", "Porto it is."),
        ("user", "Where do I live?"),
    ]


def test_json_has_what_scripts_need(command: Command, server: wire.OpenAIServer) -> None:
    """`show --json` is one array of objects with role, text, created_at and id."""
    server.script(streamed("Ⓐ🙂"))
    assert command(*CHAT, said="né\n").returncode == 0
    user, assistant = command.messages()
    assert (user["text"], assistant["text"]) == ("né", "Ⓐ🙂")
    assert user["id"] != assistant["id"]
    assert datetime.fromisoformat(str(user["created_at"])).utcoffset() == timedelta(0)


def test_commands_inside_the_chat(command: Command, server: wire.OpenAIServer) -> None:
    """/history shows, /new starts another conversation, /exit ends, anything else is explained."""
    server.script(streamed("one"), streamed("two"))
    said = "first\n\n   \n/history\n/nonsense\n/new\nsecond\n/exit\nnever sent\n"
    done = command(*CHAT, said=said)
    assert done.returncode == 0
    assert done.stdout == "one\nuser> first\nassistant> one\ntwo\n"
    assert "There is no command /nonsense: /history shows" in done.stderr
    listed = command("sessions", "--db", "a.db").stdout.splitlines()
    assert listed[0].split() == ["session", "messages", "last", "used"]
    assert [line.split()[1] for line in listed[1:]] == ["2", "2"]
    assert listed[1].startswith("chat-")
    assert listed[2].startswith("s1 ")
    assert len(server.bodies[1]["messages"]) == 2  # the new conversation knows nothing of the first


def test_the_system_prompt_can_be_given(command: Command, server: wire.OpenAIServer) -> None:
    """`--system` is sent first, and is not stored."""
    server.script(streamed("Oui."))
    assert command(*CHAT, "--system", "Answer in French.", said="Yes?\n").returncode == 0
    assert server.bodies[0]["messages"][0] == {"role": "system", "content": "Answer in French."}
    assert [m["role"] for m in command.messages()] == ["user", "assistant"]


def test_the_database_is_in_the_data_directory_by_default(
    command: Command, server: wire.OpenAIServer
) -> None:
    """Without --db the file is tenure.db in the user's data directory; --db takes URLs too."""
    server.script(streamed("x"))
    assert command("chat", *MODEL, said="hi\n").returncode == 0
    path = command.folder / "data" / "tenure" / "tenure.db"
    assert path.exists()
    assert command("show", "default").stdout == "user> hi\nassistant> x\n"
    assert command("show", "default", "--db", f"sqlite:///{path}").stdout.endswith("x\n")


def test_a_conversation_can_be_deleted(command: Command, server: wire.OpenAIServer) -> None:
    """`delete` asks first, unless it is told --yes; then the text is nowhere in the files (C75)."""
    server.script(streamed("the secret answer"))
    assert command(*CHAT, said="my secret question\n").returncode == 0
    refused = command("delete", "s1", "--db", "a.db", said="n\n")
    assert "Delete 2 messages of conversation 's1' for good?" in refused.stderr
    assert len(command.messages()) == 2
    assert command("delete", "s1", "--db", "a.db", "--yes").returncode == 0
    assert command("show", "s1", "--db", "a.db").returncode == 2
    again = command("delete", "s1", "--db", "a.db", "--yes")
    assert (again.returncode, again.stdout) == (2, "")
    assert "There is no conversation 's1'" in again.stderr
    for file in command.folder.glob("a.db*"):
        assert b"secret" not in file.read_bytes()


def test_a_conversation_without_messages_is_shown(command: Command) -> None:
    """A conversation whose messages were all removed is there, and `show` says that it is empty."""

    async def emptied() -> None:
        store = tenure.open_store(f"sqlite:///{command.folder / 'a.db'}")
        await store.append("s1", [tenure.user("hi")])
        await store.redact("s1", lambda message: None)
        await store.close()

    asyncio.run(emptied())
    assert command.messages() == []
    for options in ((), ("--view",)):
        shown = command("show", "s1", "--db", "a.db", *options)
        assert (shown.returncode, shown.stdout.count("user>")) == (0, 0)
        assert "Conversation s1 has no messages." in shown.stderr


def test_nothing_is_made_by_looking(command: Command) -> None:
    """`show` and `sessions` on a file that is not there say so, and do not make it."""
    for args in (["show", "s1"], ["sessions"]):
        looked = command(*args, "--db", "none.db")
        assert looked.returncode == 2
        assert looked.stderr.startswith("tenure: There is no database 'none.db' yet;")
        assert command(*args).returncode == 2
    assert list(command.folder.rglob("*.db*")) == []


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["chat", "--model", "gpt"], "There is no model 'gpt'"),
        (["chat", "--model", "nobody:x"], "nobody:x"),
        (["chat", "--model", "bedrock:x"], 'pip install "tenure[bedrock]"'),
        (["chat", "--session", "", *MODEL], "The session id is empty"),
        (["chat", "--db", ".", *MODEL], "is a directory"),
        (["chat", "--db", "notes.txt", *MODEL], "is not an SQLite file"),
        (["chat", "--db", "newer.db", *MODEL], "schema version 99"),
        (["chat", "--db", "no/such/a.db", *MODEL], "there is no folder"),
        (["chat", "--db", "mysql://x", *MODEL], "names no store"),
        (["show", "nobody", "--db", "empty.db"], "There is no conversation 'nobody'"),
    ],
)
def test_what_is_wrong_is_one_sentence(command: Command, args: list[str], says: str) -> None:
    """Bad input ends with exit code 2 and one line that names it; no traceback, no secret."""
    (command.folder / "notes.txt").write_text("my notes\n" * 500)
    with closing(sqlite3.connect(command.folder / "newer.db")) as connection:
        connection.execute("CREATE TABLE migrations (number INTEGER, name, applied_at)")
        connection.execute("INSERT INTO migrations VALUES (99, 'future', '')")
        connection.commit()
    (command.folder / "empty.db").touch()
    done = command(*args, said="hi\n")
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("tenure: ")
    assert "sk-secret" not in done.stderr
    assert (command.folder / "notes.txt").read_text() == "my notes\n" * 500


def test_a_missing_key_is_named(command: Command) -> None:
    """A model whose API key is not set is one sentence that names the variable."""
    del command.environment["OPENAI_API_KEY"]
    del command.environment["OPENAI_BASE_URL"]
    done = command(*CHAT, said="hi\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "OPENAI_API_KEY" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_failing_model_stores_nothing(command: Command, server: wire.OpenAIServer) -> None:
    """When the provider fails, the command says why, exits with 2, and keeps what was answered."""
    server.script(streamed("one"), wire.failure(400, "too hot today"))
    done = command(*CHAT, said="first\nsecond\nthird\n")
    assert done.returncode == 2
    assert done.stdout.splitlines()[0] == "one"
    assert "400" in done.stderr.splitlines()[-1]
    assert [m["text"] for m in command.messages()] == ["first", "one"]


def test_an_answer_that_cannot_be_stored_is_shown(
    command: Command, server: wire.OpenAIServer
) -> None:
    """When the database stops taking writes, the answer is on the screen and the error is said."""
    server.script(streamed("one"), streamed("two"))
    assert command(*CHAT, said="first\n").returncode == 0
    with closing(sqlite3.connect(command.folder / "a.db")) as connection:
        connection.execute(
            "CREATE TRIGGER no BEFORE INSERT ON entries BEGIN SELECT raise(ABORT, 'no more'); END"
        )
    done = command(*CHAT, said="second\n")
    assert (done.returncode, done.stdout) == (2, "two\n")
    assert "was produced but not stored" in done.stderr
    assert [m["text"] for m in command.messages()] == ["first", "one"]


def test_bytes_that_are_no_text_do_no_harm(command: Command, server: wire.OpenAIServer) -> None:
    """Input that is not UTF-8 is taken with replacement characters."""
    server.script(streamed("ok"))
    done = subprocess.run(
        [sys.executable, "-m", "tenure", *CHAT],
        input=b"caf\xe9\n",
        capture_output=True,
        cwd=command.folder,
        env=command.environment,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert command.messages()[0]["text"] == "caf\ufffd"


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    """Terminals that a test has opened; whatever runs in them is ended after it."""
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.close()


class Terminal:
    """`tenure` on a pseudo-terminal."""

    def __init__(self, command: Command, *args: str) -> None:
        ours, theirs = pty.openpty()
        self._ours = ours
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tenure", *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=command.folder,
            env={**command.environment, "TERM": "dumb"},
            start_new_session=True,
        )
        os.close(theirs)
        self.screen = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait_for(self, text: str, times: int = 1) -> None:
        """Read until the screen has shown `text` so many times."""
        deadline = time.monotonic() + 30
        while self.screen.count(text) < times:
            assert time.monotonic() < deadline, self.screen
            try:
                self.screen += os.read(self._ours, 4096).decode("utf-8", "replace")
            except OSError:  # the other end is closed
                assert text in self.screen, self.screen

    def interrupt(self) -> None:
        """Press Ctrl-C until it is heard: one that comes just before readline waits is not."""
        for _ in range(5):
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(4)
                return

    def close(self) -> int:
        code = self.process.wait(30)
        while True:
            try:
                data = os.read(self._ours, 4096)
            except OSError:
                break
            if not data:
                break
            self.screen += data.decode("utf-8", "replace")
        os.close(self._ours)
        return code


@pytest.mark.parametrize("moment", ["at the prompt", "while the model answers"])
def test_ctrl_c_ends_cleanly(
    command: Command, server: wire.OpenAIServer, terminals: list[Terminal], moment: str
) -> None:
    """Ctrl-C ends the chat without a traceback, and keeps every turn that was answered."""
    endless = wire.streamed({"content": "and then"}, is_endless=True)
    server.script(streamed("answered"), endless)
    terminal = Terminal(command, *CHAT)
    terminals.append(terminal)
    terminal.wait_for("you> ")
    terminal.type("first\n")
    terminal.wait_for("answered")
    terminal.wait_for("you> ", times=2)
    if moment == "while the model answers":
        terminal.type("second\n")
        terminal.wait_for("and then")
    terminal.interrupt()
    assert terminal.close() == 0
    assert "Traceback" not in terminal.screen
    assert [m["text"] for m in command.messages()] == ["first", "answered"]


def test_a_terminal_is_not_given_control_codes(
    command: Command, server: wire.OpenAIServer, terminals: list[Terminal]
) -> None:
    """What a model says cannot steer the terminal; Ctrl-D ends the chat."""
    server.script(streamed("a\x1b]0;owned\x07b"))
    terminal = Terminal(command, *CHAT)
    terminals.append(terminal)
    terminal.wait_for("you> ")
    terminal.type("hi\n")
    terminal.wait_for("you> ", times=2)
    terminal.type("\x04")
    assert terminal.close() == 0
    assert "\x1b]0;" not in terminal.screen
    assert "a\ufffd]0;owned\ufffdb" in terminal.screen


def test_a_failing_model_does_not_end_a_terminal_chat(
    command: Command, server: wire.OpenAIServer, terminals: list[Terminal]
) -> None:
    """On a terminal an error of the model is said, and the user may go on."""
    server.script(wire.failure(400, "too hot"), streamed("cooler now"))
    terminal = Terminal(command, *CHAT)
    terminals.append(terminal)
    terminal.wait_for("you> ")
    terminal.type("hi\n")
    terminal.wait_for("tenure: ")
    terminal.wait_for("you> ", times=2)
    terminal.type("again\n")
    terminal.wait_for("cooler now")
    terminal.wait_for("you> ", times=3)
    terminal.type("/exit\n")
    assert terminal.close() == 0
    assert [m["text"] for m in command.messages()] == ["again", "cooler now"]


def test_a_killed_chat_keeps_every_answered_turn(
    command: Command, server: wire.OpenAIServer, terminals: list[Terminal]
) -> None:
    """After SIGKILL while the model answers, the database opens and has each answered turn whole."""
    server.script(streamed("one"), wire.streamed({"content": "tw"}, is_endless=True))
    terminal = Terminal(command, *CHAT)
    terminals.append(terminal)
    terminal.wait_for("you> ")
    terminal.type("first\n")
    terminal.wait_for("you> ", times=2)
    terminal.type("second\n")
    terminal.wait_for("tw")
    terminal.process.send_signal(signal.SIGKILL)
    assert terminal.close() == -signal.SIGKILL
    assert [m["text"] for m in command.messages()] == ["first", "one"]


def test_help_and_version(command: Command) -> None:
    """`--version` names the version; every command has help; no command at all shows it."""
    assert command("--version").stdout == f"tenure {tenure.__version__}\n"
    assert "Chat with an agent that remembers" in command().stdout
    for args in (["chat"], ["sessions"], ["show"], ["delete"], ["local"], ["local", "install"]):
        shown = command(*args, "--help")
        assert shown.returncode == 0
        assert " ".join(["tenure", *args]) in shown.stdout.replace("python -m ", "")
    assert command("nonsense").returncode == 2
