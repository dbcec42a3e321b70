"""A chat that recalls other conversations, and forgetting: real processes, a loopback server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import openai_server as wire
import pytest
from test_cli import MODEL, Command, streamed

from tenure import NewMemory, Owner, Participant, open_store, user

WORDS = ("--memory", "--embedder", "none")


@pytest.fixture
def command(server: wire.OpenAIServer, tmp_path: Path) -> Command:
    """The command, with a model that the loopback server answers for."""
    return Command(tmp_path, server.url)


def chat(command: Command, session: str, said: str, *options: str) -> tuple[str, str]:
    """One process; what it wrote to each channel."""
    done = command("chat", "--db", "a.db", "--session", session, *MODEL, *options, said=said)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


ANN, BOB = Owner(agent_id="agent", user_id="ann"), Owner(agent_id="agent", user_id="bob")
NOBODY, OTHER = Owner(agent_id="agent"), Owner(agent_id="other", user_id="ann")


def told(command: Command, all_of_it: dict[Owner, dict[str, list[str]]]) -> None:
    """What chats of these owners would have left behind: their messages, and the same as memories."""

    async def append() -> None:
        store = open_store(f"sqlite:///{command.folder / 'a.db'}")
        for owner, conversations in all_of_it.items():
            for session_id, texts in conversations.items():
                new = [
                    NewMemory(content=text, session_id=session_id, metadata={"role": "user"})
                    for text in texts
                ]
                by = Participant(owner=owner, memories=new)
                run_id = f"{owner} in {session_id}"
                await store.append(session_id, [*map(user, texts)], run_id=run_id, by=by)
        await store.close()

    asyncio.run(append())


def last_message(server: wire.OpenAIServer) -> str:
    message = server.bodies[-1]["messages"][-1]
    assert isinstance(message["content"], str)
    return message["content"]


@pytest.mark.parametrize("embedder", ["none", "local"])
def test_a_fact_of_another_conversation_reaches_the_server(
    command: Command, server: wire.OpenAIServer, embedder: str
) -> None:
    """After a restart, in another conversation, the request has the fact that was told before."""
    server.script(streamed("Noted."), streamed("No", " nuts."))
    options = ("--memory", "--embedder", embedder)
    chat(command, "one", "I am allergic to nuts.\n", *options)
    out, err = chat(command, "two", "Am I allergic to something?\n", *options)
    assert out == "No nuts.\n"
    assert "user: I am allergic to nuts." in err
    request = last_message(server)
    assert request.startswith("<memories>\n")
    assert 'by="user">I am allergic to nuts.</memory>' in request
    assert request.endswith("</memories>\n\nAm I allergic to something?")
    assert [m["role"] for m in server.bodies[-1]["messages"]] == ["system", "user"]


def test_memories_are_listed_in_the_chat(command: Command, server: wire.OpenAIServer) -> None:
    """`/memories` lists what is remembered, the oldest first; without --memory there is no such command."""
    server.script(streamed("Noted."))
    out, err = chat(command, "one", "/memories\nI like tea\n/memories\n", *WORDS)
    lines = out.splitlines()
    assert lines[0] == "Noted."
    assert [line.split(" ", 2)[2] for line in lines[1:]] == [
        "user: I like tea",
        "assistant: Noted.",
    ]
    assert "Nothing is remembered yet." in err
    assert "/memories lists" in err
    _, err = chat(command, "one", "/memories\n")
    assert "There is no command /memories" in err
    assert "/memories lists" not in err


def test_users_of_a_chat_are_apart(command: Command, server: wire.OpenAIServer) -> None:
    """`--agent` and `--user` say whose memories these are."""
    server.script(streamed("ok"), streamed("ok"))
    told(command, {ANN: {"one": ["My pin is 1234"]}, OTHER: {"two": ["My pin is 9876"]}})
    chat(command, "three", "What is my pin?\n", *WORDS, "--user", "ann")
    assert "1234" in str(server.bodies[-1])
    assert "9876" not in str(server.bodies[-1])
    chat(command, "four", "What is my pin?\n", *WORDS)
    assert "1234" not in str(server.bodies[-1])


def test_a_view_shows_what_would_be_recalled(command: Command, server: wire.OpenAIServer) -> None:
    """`show --view --say --memory` prints the request that a chat then sends, and changes nothing."""
    server.script(streamed("Tea."))
    told(command, {NOBODY: {"one": ["I like tea"], "two": ["hello"]}})
    view = ("show", "two", "--db", "a.db", "--view", "--say", "What tea do I like?")
    shown = command(*view, *WORDS, "--json")
    assert shown.returncode == 0, shown.stderr
    assert "recalled: " in shown.stderr
    messages = [(m["role"], m["text"]) for m in json.loads(shown.stdout)]
    assert messages == [
        (m["role"], m["text"]) for m in json.loads(command(*view, *WORDS, "--json").stdout)
    ]
    chat(command, "two", "What tea do I like?\n", *WORDS)
    assert messages == [(m["role"], m["content"]) for m in server.bodies[-1]["messages"]]
    plain = json.loads(command(*view, "--json").stdout)
    assert plain[-1]["text"] == "What tea do I like?"
    tight = command(*view, *WORDS, "--budget", "60")
    assert "no room for the recalled memories" in tight.stderr
    assert tight.stdout.endswith("user> What tea do I like?\n")


def test_an_owner_is_forgotten(command: Command) -> None:
    """`forget` asks, erases one owner everywhere, says what that was, and leaves no text behind."""
    secrets = {"ann-1": ["my secret is mauve", "secret"], "shared": ["another mauve secret"]}
    told(command, {ANN: secrets, BOB: {"shared": ["green is fine"]}})
    refused = command("forget", "--db", "a.db", "--user", "ann", said="n\n")
    assert "Forget the agent 'agent' and user 'ann' for good: 3 memories" in refused.stderr
    assert "in 2 conversations?" in refused.stderr
    assert len(command.messages("ann-1")) == 2
    done = command("forget", "--db", "a.db", "--user", "ann", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "memories": 3, "messages": 3, "conversations": ["ann-1"], "shared": ["shared"]
    }  # fmt: skip
    assert command("show", "ann-1", "--db", "a.db").returncode == 2
    assert [m["text"] for m in command.messages("shared")] == ["green is fine"]
    again = command("forget", "--db", "a.db", "--user", "ann", "--yes")
    assert "0 memories, 0 conversations, 0 messages" in again.stderr
    for file in command.folder.glob("a.db*"):
        assert b"secret" not in file.read_bytes()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("show", "s", "--say", "x"), "give --view, too"),
        (("show", "s", "--view", "--memory"), "give --view and --say, too"),
        (("forget", "--agent", ""), "agent_id='' is no name"),
        (("chat", "--memory", "--embedder", "nobody:x", *MODEL), "nobody"),
        (("chat", "--memory", "--user", "", *MODEL), "user_id='' is no name"),
    ],
)
def test_what_is_wrong_is_one_sentence(command: Command, args: tuple[str, ...], says: str) -> None:
    """Options that make no sense end with code 2 and one line."""
    (command.folder / "a.db").touch()
    done = command(*args, "--db", "a.db", said="hi\n")
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert (done.stderr.count("\n"), done.stdout) == (1, "")
