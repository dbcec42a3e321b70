"""Conformance: what `ChatMemory` expects of a chat history provider."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import pytest

from tenure.messages import Message
from tenure.testing.conformance_suite import ODD_NAMES, every_kind, odd_texts, said, texts

if TYPE_CHECKING:
    from tenure.features.chat_memory import ChatHistoryProvider


class ChatHistoryProviderConformance:
    """The tests of an object with `load` and `store`, sync or async.

    Subclass it as a class whose name starts with `Test`, and override the fixture `provider`.
    """

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Runs the tests on asyncio."""
        return "asyncio"

    @pytest.fixture
    def provider(self) -> ChatHistoryProvider:
        """A new and empty provider for one test; override it."""
        raise NotImplementedError(f"{type(self).__name__} must override the fixture `provider`.")

    async def test_an_unknown_conversation_is_nothing(self, provider: ChatHistoryProvider) -> None:
        """Loading a conversation that was never stored gives nothing, and does not raise."""
        assert await loaded(provider, "none") == []
        await store(provider, "s", said("x"))
        assert await loaded(provider, "none") == []

    async def test_what_is_stored_is_loaded(self, provider: ChatHistoryProvider) -> None:
        """The messages of a conversation come back in order, as often as they are asked for."""
        await store(provider, "s", said("1", "2", "3", "2"))
        for _ in range(2):
            assert texts(await loaded(provider, "s")) == ["1", "2", "3", "2"]

    async def test_every_kind_of_message_comes_back(self, provider: ChatHistoryProvider) -> None:
        """Each role and part comes back equal: bytes, errors, order of parts (C54, C58)."""
        messages = every_kind()
        await store(provider, "s", messages)
        assert await loaded(provider, "s") == messages

    async def test_odd_texts_come_back(self, provider: ChatHistoryProvider) -> None:
        """NUL, half surrogate pairs and the like come back (C24, C25, C26)."""
        messages = odd_texts()
        await store(provider, "s", messages)
        assert texts(await loaded(provider, "s")) == texts(messages)

    async def test_ids_and_times_come_back(self, provider: ChatHistoryProvider) -> None:
        """A message keeps its id and its time (C31)."""
        messages = [*every_kind(), *odd_texts()]
        await store(provider, "s", messages)
        found = await loaded(provider, "s")
        assert [m.id for m in found] == [m.id for m in messages]
        assert [m.created_at for m in found] == [m.created_at for m in messages]

    async def test_storing_overwrites(self, provider: ChatHistoryProvider) -> None:
        """What is stored is the whole conversation, in place of what was kept before."""
        first, second, third = said("1", "2", "3")
        await store(provider, "s", [first, second])
        await store(provider, "s", [second, third])
        assert texts(await loaded(provider, "s")) == ["2", "3"]
        await store(provider, "s", [third])
        assert texts(await loaded(provider, "s")) == ["3"]

    async def test_storing_nothing_empties(self, provider: ChatHistoryProvider) -> None:
        """A conversation stored without messages loads as nothing (C41)."""
        await store(provider, "s", said("1"))
        await store(provider, "s", [])
        assert await loaded(provider, "s") == []

    async def test_conversations_do_not_share(self, provider: ChatHistoryProvider) -> None:
        """Storing one conversation leaves the others alone."""
        await store(provider, "a", said("in a"))
        await store(provider, "b", said("in b"))
        await store(provider, "a", said("new in a"))
        assert texts(await loaded(provider, "a")) == ["new in a"]
        assert texts(await loaded(provider, "b")) == ["in b"]

    async def test_session_ids_are_taken_verbatim(self, provider: ChatHistoryProvider) -> None:
        """Session ids of any characters and lengths are different conversations."""
        for name in ODD_NAMES:
            await store(provider, name, said(f"in {name}"))
        for name in ODD_NAMES:
            assert texts(await loaded(provider, name)) == [f"in {name}"]

    async def test_what_was_stored_is_copied(self, provider: ChatHistoryProvider) -> None:
        """Changing the list that was given to `store` changes nothing that is kept."""
        messages = said("1")
        await store(provider, "s", messages)
        messages.append(said("2")[0])
        assert texts(await loaded(provider, "s")) == ["1"]

    async def test_what_is_loaded_is_a_copy(self, provider: ChatHistoryProvider) -> None:
        """Changing what `load` gave changes nothing that is kept."""
        await store(provider, "s", said("1"))
        found = await answered(provider.load("s"))
        if isinstance(found, list):
            cast("list[Message]", found).clear()
        assert texts(await loaded(provider, "s")) == ["1"]

    async def test_conversations_are_stored_at_once(self, provider: ChatHistoryProvider) -> None:
        """Storing different conversations at the same time loses none (C08)."""
        await asyncio.gather(*(store(provider, f"s{n}", said(str(n), f"{n}'")) for n in range(20)))
        for n in range(20):
            assert texts(await loaded(provider, f"s{n}")) == [str(n), f"{n}'"]


async def loaded(provider: ChatHistoryProvider, session_id: str) -> list[Message]:
    """What `load` gives, as a list."""
    found = await answered(provider.load(session_id))
    return list(cast("Iterable[Message]", found or []))


async def store(provider: ChatHistoryProvider, session_id: str, messages: list[Message]) -> None:
    """Call `store`."""
    await answered(provider.store(session_id, messages))


async def answered(value: object) -> object:
    """The value itself, or what it gives when it is awaited."""
    return await value if inspect.isawaitable(value) else value
