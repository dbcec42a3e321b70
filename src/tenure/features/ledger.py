"""The tool calls of one run, each written down before the tool runs and again after it.

So a run that is resumed knows what has come of the calls that it makes again, and a run that is taken back
knows what is to be undone. A call is made again when the same node, begun at the same checkpoint, calls the
same tool with the same arguments; of several such calls the first comes first. Whether the same message
calls it does not matter, since a node that is executed again may ask the model again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from tenure.errors import InvalidValueError, UndoFailedError
from tenure.idempotency import calling
from tenure.messages import Json, Text
from tenure.recorded import from_recorded, to_recorded
from tenure.run import RunContext
from tenure.run_tools import PlacedCall, ToolExecution
from tenure.stores.base import Lease
from tenure.stores.run_base import CheckpointStore
from tenure.stores.run_records import CallRecord, NewCall
from tenure.tools import Tool, ToolFunction, ToolOutcome


class RollbackToolRegistry:
    """Which tool undoes which, for `Persistence(rollback_tools=...)`."""

    def __init__(self) -> None:
        self._undo: dict[str, Tool] = {}

    def register(self, tool: str | Tool | ToolFunction, undo: Tool | ToolFunction) -> None:
        """Say what undoes a tool.

        When a run is taken back, it is called for each call of the tool that has succeeded, or of which
        nobody knows what has come of it; with the same arguments, and with the `idempotency_key` of that
        call. It may be called again if the process dies in it.

        Args:
            tool: The tool, or its name.
            undo: Undoes it: a function of the same parameters; the model does not see it.

        Raises:
            InvalidValueError: The tool has something that undoes it already.
        """
        name = tool if isinstance(tool, str) else _as_tool(tool).name
        if name in self._undo:
            raise InvalidValueError(f"The tool {name!r} has something that undoes it already.")
        self._undo[name] = undo if isinstance(undo, Tool) else Tool(undo, name=f"undo_{name}"[:64])

    def get(self, name: str) -> Tool | None:
        """Return what undoes the tool of a name, if anything does."""
        return self._undo.get(name)


@dataclass(slots=True, kw_only=True, eq=False)
class Ledger:
    """The tool calls of one run.

    Args:
        store: Where they are.
        session_id: The conversation.
        run_id: The run.
        lease: Everything is written only while this is held.
        types: The classes whose instances tools may return.
        undo: What undoes what.
    """

    store: CheckpointStore
    session_id: str
    run_id: str
    lease: Lease | None
    types: Sequence[type] = ()
    undo: RollbackToolRegistry | None = None
    _known: list[CallRecord] = field(init=False, repr=False, default_factory=list[CallRecord])
    _again: list[tuple[PlacedCall, CallRecord]] = field(
        init=False, repr=False, default_factory=list[tuple[PlacedCall, CallRecord]]
    )  # calls that are about to be tried again

    async def read(self) -> None:
        """Take the calls that the run may make again from the store, and undo what is to be undone.

        The last comes first. One of which nothing has come needs no undoing.

        Raises:
            UndoFailedError: What undoes a call has failed; it is tried again the next time.
        """
        calls = await self.store.calls(self.session_id, self.run_id)
        self._known = [call for call in calls if not call.is_rolled_back]
        for call in reversed(calls):
            if call.is_rolled_back and not call.is_undone:
                await self._undone(call)

    def forget(self) -> None:
        """Make all calls anew: the graph starts from its beginning."""
        self._known.clear()

    async def known_outcome(self, ctx: RunContext, placed: PlacedCall) -> ToolOutcome | None:
        """What has come of a call before the run was resumed; None if it is to be run.

        Raises:
            InvalidValueError: The result cannot be read back, and code asks for it.
        """
        found = self._found(ctx, placed)
        if found is None:
            return None
        if found.outcome is not None:
            self._known.remove(found)
            return self._outcome(found, by_code=not placed.origin)
        self._known.remove(found)  # so that an equal call is not taken for it meanwhile
        if placed.tool is not None and placed.tool.on_unknown == "retry":
            self._again.append((placed, found))
            return None
        outcome = _unknown(placed.call.name)
        await self._finish(found.number, outcome, is_known=False)
        return outcome

    async def execute(
        self, ctx: RunContext, placed: PlacedCall, execute: ToolExecution
    ) -> ToolOutcome:
        """Run a tool, and write down that it runs and what has come of it."""
        found = self._tried_again(placed)
        if found is None:
            new = _new_call(ctx, placed)
            found = await self.store.begin_call(self.session_id, self.run_id, new, lease=self.lease)
        with calling(self._key(found)):
            outcome = await execute()
        await self._finish(found.number, outcome)
        return outcome

    def _found(self, ctx: RunContext, placed: PlacedCall) -> CallRecord | None:
        if not self._known:
            return None
        new = _new_call(ctx, placed)
        same = (r for r in self._known if _what(r.call) == _what(new))
        return next(same, None)

    def _tried_again(self, placed: PlacedCall) -> CallRecord | None:
        for place, (other, record) in enumerate(self._again):
            if other is placed:
                del self._again[place]
                return record
        return None

    async def _finish(self, number: int, outcome: ToolOutcome, *, is_known: bool = True) -> None:
        await self.store.end_call(
            self.session_id,
            self.run_id,
            number,
            outcome=json.dumps(self._written(outcome) | ({} if is_known else {"is_unknown": True})),
            lease=self.lease,
        )

    def _written(self, outcome: ToolOutcome) -> dict[str, Json]:
        what = "The outcome of a tool call"
        try:
            return {"outcome": to_recorded(outcome, what, types=self.types)}
        except InvalidValueError as exc:  # the model needs the text only
            plain = replace(outcome, value=None)
            return {"outcome": to_recorded(plain, what), "without_value": str(exc)}

    def _outcome(self, record: CallRecord, *, by_code: bool) -> ToolOutcome:
        written = cast("Mapping[str, Json]", json.loads(record.outcome or ""))
        if by_code and "without_value" in written:
            raise InvalidValueError(
                f"The tool {record.call.tool!r} has run already, and its result cannot be read back: "
                f"{written['without_value']}"
            )
        what = f"The outcome of the tool {record.call.tool!r}"
        return cast("ToolOutcome", from_recorded(written["outcome"], what, types=self.types))

    def _has_failed(self, record: CallRecord) -> bool:
        """Whether a call is known to have come to an error, so that it has taken no effect."""
        is_unknown = "is_unknown" in json.loads(record.outcome or "")
        return not is_unknown and self._outcome(record, by_code=False).is_error

    async def _undone(self, record: CallRecord) -> None:
        undo = self.undo.get(record.call.tool) if self.undo is not None else None
        is_void = record.outcome is not None and self._has_failed(record)
        if undo is not None and not is_void:
            with calling(self._key(record)):
                outcome = await undo.execute(_args_of(record))
            if outcome.is_error:
                raise UndoFailedError(
                    f"The run was taken back, and {undo.name!r} could not undo the call of "
                    f"{record.call.tool!r}: {outcome.text} Run again to try it once more."
                ) from outcome.error
        await self.store.mark_undone(self.session_id, self.run_id, record.number, lease=self.lease)

    def _key(self, record: CallRecord) -> str:
        return f"{self.run_id}:{record.number}"


def _new_call(ctx: RunContext, placed: PlacedCall) -> NewCall:
    return NewCall(
        node_path="/".join(ctx.node_path),
        position=ctx.position,
        origin=placed.origin,
        place=placed.place,
        tool=placed.call.name,
        args=placed.call.args,
    )


def _what(call: NewCall) -> tuple[object, ...]:
    """What tells a call from others that the same node makes."""
    return call.node_path, call.position, call.tool, call.args


def _args_of(record: CallRecord) -> Mapping[str, Json]:
    try:
        args: object = json.loads(record.call.args or "{}")
    except ValueError:
        return {}
    return cast("Mapping[str, Json]", args) if isinstance(args, dict) else {}


def _unknown(name: str) -> ToolOutcome:
    text = (
        f"The process died while tool {name!r} was running, so it is not known whether it has taken "
        "effect. It was not run again. Find out before you call it once more."
    )
    return ToolOutcome(kind="failure", parts=(Text(text=text),))


def _as_tool(given: Tool | ToolFunction) -> Tool:
    return given if isinstance(given, Tool) else Tool(given)
