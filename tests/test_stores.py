"""Stores by their URLs. What every store does is in the shipped conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure import InvalidValueError, Store, open_store, user

pytestmark = pytest.mark.anyio


async def texts(store: Store, session_id: str) -> list[str]:
    return [message.text for message in await store.read(session_id)]


async def test_equal_urls_share_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal URLs give one store, relative and absolute ones too; a closed one is not given again."""
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///chat.db")
    assert open_store("sqlite:///chat.db") is store
    assert open_store(f"sqlite:///{tmp_path}/chat.db") is store
    assert open_store("sqlite:///other.db") is not store
    assert open_store("sqlite:///chat.db?durable=true") is not store
    await store.append("s", [user("x")])
    await store.close()
    again = open_store("sqlite:///chat.db")
    assert again is not store
    assert await texts(again, "s") == ["x"]
    await again.close()


@pytest.mark.parametrize(
    "url",
    ["", "chat.db", "sqlite://", "sqlite:///", "sqlite://chat.db", "mysql://x/y",
     "sqlite:///a.db?fast=1", "sqlite:///a.db?durable=maybe", "memory://?x=1"],
)  # fmt: skip
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    """A URL of another form, or with an unknown option, is refused with the right form."""
    with pytest.raises(InvalidValueError, match=r"sqlite:///|durable=true"):
        open_store(url)
