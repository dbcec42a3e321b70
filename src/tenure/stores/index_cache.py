"""Which owners' indexes stay in RAM: those searched last, up to a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Generator, Hashable
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.stores.owner_index import OwnerIndex

MAX_BYTES = 512 * 2**20
"""RAM for all indexes of a store; a guess: 100,000 memories of 384 dimensions three times over."""


class IndexCache:
    """The indexes of a store's owners; may be used by several threads."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._indexes: OrderedDict[Hashable, OwnerIndex] = OrderedDict()

    @contextmanager
    def index(self, owner: Hashable) -> Generator[OwnerIndex]:
        """Have an owner's index for oneself; a new one is empty, and an interrupted one is let go."""
        from tenure.stores.owner_index import OwnerIndex  # imports NumPy

        with self._lock:
            index = self._indexes.setdefault(owner, OwnerIndex())
            self._indexes.move_to_end(owner)
        with index.lock:
            try:
                yield index
            except BaseException:
                self._drop(owner, index)  # it may have taken in the half of a change
                raise
        self._make_room()

    def clear(self) -> None:
        """Let all go."""
        with self._lock:
            self._indexes.clear()

    def _drop(self, owner: Hashable, index: OwnerIndex) -> None:
        with self._lock:
            if self._indexes.get(owner) is index:
                del self._indexes[owner]

    def _make_room(self) -> None:
        with self._lock:
            while self._indexes and sum(i.nbytes for i in self._indexes.values()) > self._max_bytes:
                self._indexes.popitem(last=False)
