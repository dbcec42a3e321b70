"""An embedder for tests: fast, the same everywhere, and with an opinion on which texts are alike."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from tenure.errors import EmbeddingError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tenure.embedding import Kind


class HashEmbedder:
    """Hashes the words of a text, and each three letters of them, into a vector.

    Texts that share words are near each other, words that share letters a little less; unrelated texts are
    about orthogonal. No two texts of different words have the same vector, for all practical purposes.

    Attributes:
        identity: What its vectors are stored under.
        dimensions: Of its vectors.
        is_failing: While true, `embed` raises `EmbeddingError`.
        is_broken: While true, `embed` returns numbers that are not finite.
        delay_s: How long `embed` takes.
        texts: All that it was asked for, in order.
    """

    name = ""

    def __init__(
        self, dimensions: int = 64, *, identity: str = "hash", delay_s: float = 0.0
    ) -> None:
        self.identity = identity
        self.dimensions = dimensions
        self.delay_s = delay_s
        self.is_failing = False
        self.is_broken = False
        self.texts: list[str] = []

    async def embed(self, texts: Sequence[str], *, kind: Kind) -> NDArray[np.float32]:
        """Return a vector of unit norm for each text; `kind` makes no difference."""
        import numpy as np

        self.texts.extend(texts)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.is_failing:
            raise EmbeddingError("The embedder was told to fail.")
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for feature, weight in _features(text):
                digest = int.from_bytes(blake2b(feature, digest_size=8).digest(), "big")
                row[digest % self.dimensions] += weight if digest >> 63 else -weight
            row /= np.linalg.norm(row) or 1
        return vectors * np.float32("nan") if self.is_broken else vectors


def _features(text: str) -> Iterator[tuple[bytes, float]]:
    yield text.encode("utf-8", "surrogatepass"), 0.01  # so that no text has a vector of zeros
    for word in re.findall(r"\w+", text.casefold()):
        yield b"w" + word.encode("utf-8", "surrogatepass"), 1.0
        for start in range(len(word) - 2):
            yield b"g" + word[start : start + 3].encode("utf-8", "surrogatepass"), 0.3
