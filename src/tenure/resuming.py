"""Going on with a run where it was: places in its graph, and what is known of them.

A *scope* is a graph, or a parallel branch, by its path. What a run has come to is, in each scope that it
is in, the last node that has returned there. So a run is resumed from the outside in: the outermost graph
goes on behind its last node, and when that leads into a subgraph or to branches, these go on behind theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.run import RunContext


class Rewound(BaseException):
    """Leaves whatever a strategy is doing, so that the run goes on from another place.

    No `Exception`, so that a node that catches those does not keep it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A node behind which a run can go on, or before it.

    Args:
        path: The node: names with slashes between them.
        version: Points of a higher version are later.
        restore: Gives a context what the run had there; returns the node's output, or its input.
        is_input: Whether the node has yet to be executed, with what `restore` returns.
        is_forced: Whether to go there once, whatever the versions say.
    """

    path: str
    version: int
    restore: Callable[[RunContext], object]
    is_input: bool = False
    is_forced: bool = False

    @property
    def scope(self) -> str:
        """Where the node is."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The node's own name."""
        return self.path.rpartition("/")[2]


class Resumption:
    """All that is known of how far a run had come."""

    def __init__(self, points: Iterable[Point]) -> None:
        """Take the points, in any order."""
        self._points = sorted(points, key=lambda point: (point.is_forced, point.version))

    def last_in(self, scope: str, position: int) -> Point | None:
        """Return the last point directly in a scope that is later than a version; a forced one once."""
        return self._taken(lambda p: p.scope == scope, position)

    def last_at(self, path: str, position: int) -> Point | None:
        """The same, of one node."""
        return self._taken(lambda p: p.path == path, position)

    def name_within(self, scope: str, position: int) -> str | None:
        """Return the node of a scope in or behind which a later point is, if there is one."""
        prefix = f"{scope}/" if scope else ""
        for point in self._later_than(position):
            if point.path.startswith(prefix):
                return point.path.removeprefix(prefix).partition("/")[0]
        return None

    def _later_than(self, position: int) -> Iterator[Point]:
        """The points that are later than a version, and forced ones; the last first."""
        return takewhile(lambda p: p.is_forced or p.version > position, reversed(self._points))

    def _taken(self, is_wanted: Callable[[Point], bool], position: int) -> Point | None:
        for point in self._later_than(position):
            if is_wanted(point):
                if point.is_forced:
                    self._points.remove(point)
                return point
        return None
