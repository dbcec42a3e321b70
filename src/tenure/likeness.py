"""How alike a query's vector and those of memories are, by angle or by distance.

Vectors of texts point much the same way: with e5, any two have a cosine above .7. For ranking memories it
helps to look at them from their own centre (`Centre`), where what they all share is gone: what is left
below 0 has less in common with the query than the average has. On LoCoMo's development half recall@10 by
vectors alone is .605 from there, and .545 by plain cosine. `similarities` without a centre are the plain
figures that a threshold is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Metric: TypeAlias = Literal["cosine", "euclidean"]

SHRUNK_BY = 10
"""How many memories at the origin the centre is taken with, so that a few have one near the origin.

With 3 memories or fewer that leaves plain cosine, with 200 it changes nothing. Source: questions of the
development half of LoCoMo, each among n random turns of which one answers it. By plain cosine that was the
first of 10 in 77.5 %, of 50 in 58.8, of 200 in 41.6; and from here in 78.7, 65.1 and 46.4. With 0 it would
be in 80.7, 64.9 and 46.4, but the only memory there is, or the worse of two, would be like no query.
"""

_LEAST_NORM = 0.01  # nearer to the centre there is only noise
_BLOCK = 4096  # rows that are summed at once in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Centre:
    """The centre of the vectors of some memories, and how far each is from it.

    Args:
        mean: float32 `[d]`; shorter the fewer vectors there are.
        norms: float32 `[n]`; NaN for a row of NaN.
    """

    mean: NDArray[np.float32]
    norms: NDArray[np.float32]


def centre_of(vectors: NDArray[np.float32]) -> Centre:
    """Return the centre of unit vectors.

    It takes two passes over them, where `similarities` takes one; keep it while the vectors are the same.

    Args:
        vectors: float32 `[n, d]`, rows of norm 1; rows of NaN have no vector and do not count.
    """
    total = np.zeros(vectors.shape[1])
    count = 0
    for start in range(0, len(vectors), _BLOCK):
        block = vectors[start : start + _BLOCK]
        missing = np.isnan(block[:, 0]) if block.shape[1] else np.ones(len(block), np.bool_)
        if missing.any():
            block = block[~missing]
        total += block.sum(axis=0)
        count += len(block)
    mean = (total / (count + SHRUNK_BY)).astype(np.float32)
    squares = 1 - 2 * np.vecdot(vectors, mean) + np.vecdot(mean, mean)
    return Centre(mean=mean, norms=np.sqrt(np.maximum(squares, _LEAST_NORM**2)))


def similarities(
    vectors: NDArray[np.float32],
    query: NDArray[np.float32],
    metric: Metric = "cosine",
    *,
    centre: Centre | None = None,
) -> NDArray[np.float32]:
    """Return how alike each vector and the query are; NaN for a row of NaN.

    Args:
        vectors: float32 `[n, d]`, rows of norm 1.
        query: float32 `[d]`, of any norm.
        metric: `cosine`, from -1 to 1; or `euclidean`, which is 1 / (1 + distance) between unit vectors.
        centre: What to look from, for `cosine`; a distance is the same from everywhere.

    Returns:
        float32 `[n]`. A query of zeros is like nothing: 0 by cosine.
    """
    query = query / (np.linalg.norm(query) or np.float32(1))
    if metric == "euclidean":
        squares = 1 + np.vecdot(query, query) - 2 * np.vecdot(vectors, query)
        return (1 / (1 + np.sqrt(np.maximum(squares, 0)))).astype(np.float32, copy=False)
    if centre is None:
        return np.clip(np.vecdot(vectors, query), -1, 1).astype(np.float32, copy=False)
    away = query - centre.mean
    norm = max(float(np.linalg.norm(away)), _LEAST_NORM)
    along = np.vecdot(vectors, away) - np.vecdot(centre.mean, away)
    return np.clip(along / (centre.norms * norm), -1, 1).astype(np.float32, copy=False)
