"""What the conformance suites stand on: their fixtures, and the words in which they ask a store.

`conformance.py` puts the suites together; start there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from tenure.messages import (
    Media,
    Message,
    Opaque,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
)
from tenure.saying import assistant, system, user
from tenure.stores.base import Conversation, Entry, Store
from tenure.stores.run_records import NewCall, NewCheckpoint

ODD_NAMES = (
    "a", "A", "a ", " a", "a/b", "a%", "a_", "a*", "../a", "a~1", "é", "e\u0301", "日本", "🍸", "\n",
    "x'; DROP TABLE entries; --", '"', "\\", "None", "0", "a" * 500,
)  # fmt: skip
"""Names that a key must keep apart and as they are: case, blanks, wildcards, quotes, forms of é."""


class StoreSuite:
    """The fixtures and the hook that a suite of stores has."""

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Runs the tests on asyncio."""
        return "asyncio"

    @pytest.fixture
    def store(self) -> Store:
        """A new and empty store for one test; override it with a fixture that closes it, too."""
        raise NotImplementedError(f"{type(self).__name__} must override the fixture `store`.")

    async def let_time_pass(self, store: Store, seconds: float) -> None:
        """Let the store's clock go on by so many seconds.

        The default waits for so long; then make `lease_ttl_s` short in the fixture. A store that is
        given its clock goes faster: override this and turn the clock.
        """
        await asyncio.sleep(seconds)

    async def let_leases_expire(self, store: Store) -> None:
        """Let so much time pass that nobody holds a lease or a place in line any more."""
        await self.let_time_pass(store, store.lease_ttl_s * 1.1)


def said(*words: str) -> list[Message]:
    """User messages of these texts."""
    return [user(text) for text in words]


def reply(text: str, *, tokens: int) -> Message:
    """An assistant message that cost so many tokens of input, and one of output."""
    return replace(assistant(text), usage=Usage(input_tokens=tokens, output_tokens=1, requests=1))


def unstorable() -> Message:
    """A message that is not JSON."""
    return replace(user("bad"), metadata={"x": object()})


def checkpoint(checkpoint_id: str, *, scope: str = "n", state: str = "{}") -> NewCheckpoint:
    """A checkpoint of this id."""
    return NewCheckpoint(checkpoint_id=checkpoint_id, node_path="graph/n", scope=scope, state=state)


def call(tool: str = "look", *, args: str = "{}") -> NewCall:
    """A call of a tool."""
    return NewCall(node_path="graph/n", position=0, origin="m1", place=0, tool=tool, args=args)


def every_kind() -> list[Message]:
    """A message of each role, with parts of each kind and every field set."""
    call = ToolCall(id="c1", name="look", args='{"x": 1', provider={"signature": "s"})
    anonymous = ToolCall(name="wait")
    reply = assistant(
        Text(text="so", provider={"id": "t1"}),
        Reasoning(text="why", provider={"signature": "r"}),
        call,
        anonymous,
        Media(media_type="audio/wav", data=b"\xff\xff"),
        Opaque(kind="new", data={"n": [1, None, {"deep": True}]}),
    )
    results = ToolMessage(
        parts=(
            ToolResult(
                call_id="c1",
                name="look",
                parts=(Text(text="failed"), Media(media_type="image/png", data=b"\xff\xfe\0")),
                is_error=True,
            ),
            ToolResult(name="wait", parts=()),
            Text(text="aside"),
        )
    )
    return [
        replace(system("be brief"), metadata={"tags": ["a", 1, 1.5, None, True], "ü": {}}),
        user("look", Media(media_type="a/b", url="http://x/y", filename="y.b"), "at this"),
        replace(
            reply,
            usage=Usage(input_tokens=3, output_tokens=2, requests=1, details={"cached": 1}),
            finish_reason="tool_call",
            model="m-1",
            provider={"id": "resp", "n": 7},
            extra={"later": [True]},
        ),
        results,
        assistant(""),
    ]


def odd_texts() -> list[Message]:
    """Texts that JSON, UTF-8 and text columns are known to break on, and odd times."""
    pair: str = json.loads(r'"\ud83c\udf78"')
    earlier = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    local = datetime(2026, 7, 1, 0, 30, tzinfo=timezone(timedelta(hours=-7)))
    return [
        *said("", "\0", "a\ud83d", "\udc00b", pair, "\u2028\r\n\t", "'\"\\", "\ufeff", "😀" * 100),
        replace(user("before 1970"), created_at=earlier),
        replace(user("elsewhere"), created_at=local),
    ]


def texts(messages: Iterable[Message]) -> list[str]:
    """The texts of messages."""
    return [message.text for message in messages]


def log(entries: Iterable[Entry]) -> list[tuple[int, str]]:
    """The sequence number and text of entries."""
    return [(entry.seq, entry.message.text) for entry in entries]


def names(conversations: Iterable[Conversation]) -> list[str]:
    """The session ids of conversations."""
    return [conversation.session_id for conversation in conversations]


async def history(store: Store, session_id: str, last: int | None = None) -> list[str]:
    """The texts of a conversation."""
    return texts(await store.read(session_id, last=last))


async def known(store: Store, session_id: str) -> Conversation:
    """What is known of a conversation, which must be there."""
    found = await store.conversation(session_id)
    assert found is not None, f"there is no conversation {session_id!r}"
    return found


async def everything(store: Store, session_id: str) -> object:
    """All that can be read of a conversation; two that are equal are in the same state."""
    branches = await store.branches(session_id)
    begun = await store.runs(session_id)
    runs = sorted(
        {run.run_id for run in begun} | {b.run_id for b in branches if b.run_id is not None}
    )
    return (
        await store.conversation(session_id),
        await store.entries(session_id),
        branches,
        [await store.entries(session_id, branch=branch.branch) for branch in branches],
        [await store.run_entries(session_id, run_id) for run_id in runs],
        begun,
        await store.runs(session_id, unfinished=True),
        [await store.checkpoints(session_id, run_id) for run_id in runs],
        [await store.calls(session_id, run_id) for run_id in runs],
    )
