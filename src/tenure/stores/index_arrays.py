"""What an `OwnerIndex` is made of: numbers for texts, and a growing matrix of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Codes(dict[str | None, int]):
    """Numbers the texts of a column, from 0; None is -1."""

    def __init__(self) -> None:
        super().__init__({None: -1})

    def __missing__(self, text: str) -> int:
        return self.setdefault(text, len(self) - 1)


class IdsOf(Sequence[str]):
    """The ids of some rows, looked up when asked for: only ties need them."""

    def __init__(self, ids: Sequence[str], rows: NDArray[np.int64]) -> None:
        self._ids = ids
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        return self._ids[int(self._rows[place])]


class Vectors:
    """The vectors of one embedder, row by row, with gaps; float32 `[capacity, d]`."""

    def __init__(self) -> None:
        self.matrix: NDArray[np.float32] = np.zeros((0, 0), np.float32)  # [capacity, d]

    def put(self, rows: Sequence[int], blobs: Sequence[bytes], *, size: int) -> None:
        """Set the vectors of some rows."""
        self.reserve(size, len(blobs[0]) // 4)
        new = np.frombuffer(b"".join(blobs), "<f4").reshape(len(blobs), -1)
        self.matrix[rows] = new

    def reserve(self, size: int, dimensions: int) -> None:
        """Have room for so many rows."""
        capacity = len(self.matrix)
        if size <= capacity and self.matrix.shape[1] == dimensions:
            return
        capacity = max(size, capacity + capacity // 2, 64)
        matrix = np.full((capacity, dimensions), np.nan, np.float32)
        if self.matrix.shape[1] == dimensions:
            matrix[: len(self.matrix)] = self.matrix
        self.matrix = matrix

    def drop(self, row: int) -> None:
        """Forget the vector of a row."""
        if row < len(self.matrix):
            self.matrix[row] = np.nan

    def filled(self, size: int) -> NDArray[np.float32]:
        """The vectors of the first rows; NaN where there is none."""
        if size > len(self.matrix):
            self.reserve(size, self.matrix.shape[1])
        return self.matrix[:size]

    @property
    def nbytes(self) -> int:
        """How much RAM they take."""
        return self.matrix.nbytes


def renumbered(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number what is there of some codes from 0, without gaps; -1 stays."""
    known = codes >= 0
    is_there = np.bincount(codes[known], minlength=1) > 0
    numbers = np.append(np.cumsum(is_there) - 1, -1)  # the last one is that of -1
    return numbers[codes]


def of_rows(values: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """The values of some rows, each once and in ascending order; not copied when that is all of them."""
    return values if len(rows) == len(values) else values[rows]
