"""Embedders of providers, over real HTTP on loopback."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from threading import Event
from typing import Any

import openai_server as wire
import pytest

from tenure import EmbeddingError, Memories, UsageError
from tenure.embedding import CheckedEmbedder, resolve_embedder

NAME = "openai:text-embedding-3-small"


def answer(body: dict[str, Any]) -> wire.Reply:
    """A vector for each text: its length, and 1."""
    return wire.embeddings(*([float(len(text)), 1.0] for text in body["input"]))


@pytest.fixture
def embedder(server: wire.OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> CheckedEmbedder:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    found = resolve_embedder(NAME)
    assert found is not None
    return found


async def embed(embedder: CheckedEmbedder, *texts: str) -> Any:
    return await embedder.embed(texts, kind="document")


def test_texts_go_out_in_batches(server: wire.OpenAIServer, embedder: CheckedEmbedder) -> None:
    """In order, 64 in a request, with the model's name; what comes back has unit norm."""
    server.answer = answer
    texts = ["x" * n for n in range(1, 131)]
    vectors = asyncio.run(embed(embedder, *texts))
    assert [len(body["input"]) for body in server.bodies] == [64, 64, 2]
    assert {body["model"] for body in server.bodies} == {"text-embedding-3-small"}
    assert [text for body in server.bodies for text in body["input"]] == texts
    assert vectors.shape == (130, 2)
    assert vectors[2, 0] == pytest.approx(3 / math.sqrt(10))
    assert (embedder.name, embedder.identity, embedder.dimensions) == (NAME, NAME, 2)


def test_vectors_out_of_order_are_put_in_order(
    server: wire.OpenAIServer, embedder: CheckedEmbedder
) -> None:
    """Each text gets the vector of its number, in whatever order they come."""
    rows = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    server.script(wire.embeddings(rows[2], rows[0], rows[1], order=[2, 0, 1]))
    vectors = asyncio.run(embed(embedder, "a", "b", "c"))
    assert vectors[:2].tolist() == [[0, 1], [1, 0]]
    assert vectors[2].tolist() == pytest.approx([0.5**0.5] * 2)


@pytest.mark.parametrize("number", [None, 0])
def test_vectors_without_numbers_are_taken_as_they_come(
    server: wire.OpenAIServer, embedder: CheckedEmbedder, number: int | None
) -> None:
    """Some servers of this protocol number nothing."""
    server.script(wire.embeddings([0.0, 1.0], [1.0, 0.0], order=[number, number]))
    assert asyncio.run(embed(embedder, "a", "b")).tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (wire.embeddings([1.0], [2.0], order=[0, 2]), "shape"),
        (wire.embeddings([1.0], [2.0], [3.0], order=[0, 0, 1]), "did not number"),
        (wire.embeddings([1.0], [2.0], [3.0], order=[0, None, 1]), "did not number"),
    ],
)
def test_vectors_that_are_missing_or_twice_there_are_refused(
    server: wire.OpenAIServer, embedder: CheckedEmbedder, reply: wire.Reply, said: str
) -> None:
    """Nothing is guessed of whose vector it is (C48)."""
    server.script(reply)
    with pytest.raises(EmbeddingError, match=said) as caught:
        asyncio.run(embed(embedder, "secret", "secreter", "secretest"))
    assert NAME in str(caught.value)
    assert "secret" not in str(caught.value)


def test_another_dimension_is_refused(server: wire.OpenAIServer, embedder: CheckedEmbedder) -> None:
    """The dimension is the one that the server had before (C34)."""
    server.script(wire.embeddings([1.0, 2.0]), wire.embeddings([1.0, 2.0, 3.0]))
    asyncio.run(embed(embedder, "tea"))
    with pytest.raises(EmbeddingError, match="3 dimensions, and not 2"):
        asyncio.run(embed(embedder, "tea"))


@pytest.mark.parametrize("status", [429, 500])
def test_what_passes_is_tried_again(
    server: wire.OpenAIServer, embedder: CheckedEmbedder, status: int
) -> None:
    """The SDK repeats a request that was one too many, or that the server failed at, within our time."""
    server.script(wire.failure(status, "not now"), wire.embeddings([0.0, 1.0]))
    assert asyncio.run(embed(embedder, "tea")).tolist() == [[0, 1]]
    assert len(server.bodies) == 2


@pytest.mark.parametrize(
    ("status", "said"),
    [(429, "HTTP 429; wait, or raise your quota"), (500, "HTTP 500; try again later")],
)
def test_what_does_not_pass_is_an_embedding_error(
    server: wire.OpenAIServer, embedder: CheckedEmbedder, status: int, said: str
) -> None:
    """With the status and what to do; the text that the server repeats is not in it (C50)."""
    server.script(wire.failure(status, "cannot embed 'a private text'"))
    with pytest.raises(EmbeddingError, match=said) as caught:
        asyncio.run(embed(embedder, "a private text"))
    assert "private" not in str(caught.value)


def test_a_server_that_is_slow(server: wire.OpenAIServer, embedder: CheckedEmbedder) -> None:
    """It is left when its time is up, and asked anew for the next texts."""
    released = Event()

    def slow(body: dict[str, Any]) -> wire.Reply:
        released.wait(10)
        return answer(body)

    server.answer = slow
    with pytest.raises(EmbeddingError, match=r"longer than 0\.2 seconds"):
        asyncio.run(embed(CheckedEmbedder(embedder, timeout_s=0.2), "tea"))
    released.set()
    assert asyncio.run(embed(embedder, "tea")).shape == (1, 2)


def test_it_works_in_one_event_loop_after_the_other(
    server: wire.OpenAIServer, embedder: CheckedEmbedder
) -> None:
    """Each loop has its own connections, which end with it."""
    server.answer = answer
    for _ in range(3):
        asyncio.run(embed(embedder, "tea"))
    assert server.wait_for_open_connections(0)
    assert len(server.bodies) == 3


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (wire.failure(401, "Incorrect API key: sk-secret"), "HTTP 401; check the API key"),
        (wire.failure(400, "cannot embed 'a private text'"), "HTTP 400; change the request"),
        (wire.failure(404, "no such model"), "HTTP 404; check the model's name"),
        (wire.garbage(), "failed"),
        (wire.embeddings([1.0, 2.0], [1.0, 2.0]), "shape"),
        (wire.embeddings([0.0, 0.0]), "zeros"),
        (wire.embeddings([1.0, None]), "finite"),
        (wire.embeddings(), "failed"),
    ],
)
def test_what_goes_wrong_is_an_embedding_error(
    server: wire.OpenAIServer, embedder: CheckedEmbedder, reply: wire.Reply, said: str
) -> None:
    """With what to do, and neither the key nor the text (C48, C50)."""
    server.script(reply)
    with pytest.raises(EmbeddingError) as caught:
        asyncio.run(embed(embedder, "a private text"))
    message = str(caught.value)
    assert said in message, message
    assert "sk-secret" not in message
    assert "private" not in message


def test_a_server_that_is_not_there(
    server: wire.OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is refused is an `EmbeddingError`; a missing key is told at once."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    embedder = resolve_embedder(NAME)
    assert embedder is not None
    with pytest.raises(EmbeddingError, match="failed"):
        asyncio.run(embed(embedder, "tea"))
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.delenv("OPENAI_BASE_URL")
    with pytest.raises(UsageError, match="cannot be used yet"):
        resolve_embedder(NAME)


def test_memories_over_http(
    server: wire.OpenAIServer, embedder: CheckedEmbedder, tmp_path: Path
) -> None:
    """Memories are embedded by the server, also by an agent's second process that knows only the name."""
    server.answer = answer
    url = f"sqlite:///{tmp_path}/m.db"

    async def remember() -> None:
        async with Memories.open(url, agent_id="a", embedder=NAME) as memories:
            memory = await memories.add("x" * 5)
            assert memory.embedding is not None

    async def recall() -> list[str]:
        async with Memories.open(url, agent_id="a", embedder=NAME) as memories:
            found = await memories.search_by_similarity("y" * 5)
            return [memory.content for memory in found]

    asyncio.run(remember())
    assert asyncio.run(recall()) == ["xxxxx"]
    assert [body["input"] for body in server.bodies] == [["xxxxx"], ["yyyyy"]]
