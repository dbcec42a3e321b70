"""Checkpoints as values: what a run needs to go on from a node, all in one piece."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast

from tenure.codec import from_dict, to_dict
from tenure.errors import InvalidValueError
from tenure.messages import Json, Message, Usage

FORMAT = 1
"""The version of what checkpoints hold. A later one reads all earlier ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How far a run had come when a node had returned.

    Nothing else is needed to go on from there. Texts, numbers and the like are in `output` and `values` as
    they are; everything else as JSON that tells its type (`recorded.py`).

    Args:
        checkpoint_id: Names it.
        session_id: The conversation.
        run_id: The run.
        version: Its place among those of its run, from 1.
        node_path: The node that had returned: the graph and the nodes from the outside in, with slashes
            between them; empty in a tombstone.
        created_at: When it was saved.
        input: What the run was given.
        output: What the node returned, as JSON.
        messages: The prompt, without the agent's own system prompt.
        values: What the run's `storage` held under the registered names, as JSON.
        usage: The tokens of the run so far.
        is_tombstone: Whether the run has ended, so that there is nothing to resume.
        revision: That of the conversation when the run began.
        replaces_after: All earlier ones with a higher version are void: the run was taken back.
        state: What else tenure needs to go on; JSON.
    """

    checkpoint_id: str
    session_id: str
    run_id: str
    version: int
    node_path: str
    created_at: datetime
    input: str
    output: Json = field(default=None, hash=False)
    messages: tuple[Message, ...] = ()
    values: Mapping[str, Json] = field(default_factory=dict[str, Json], hash=False)
    usage: Usage = field(default_factory=Usage)
    is_tombstone: bool = False
    revision: int = 0
    replaces_after: int | None = None
    state: Mapping[str, Json] = field(default_factory=dict[str, Json], hash=False)

    def to_json(self) -> str:
        """Return it as JSON, in pure ASCII."""
        data = {name: getattr(self, name) for name in _PLAIN}
        data |= {
            "format": FORMAT,
            "created_at": self.created_at.isoformat(),
            "messages": [to_dict(message) for message in self.messages],
            "usage": usage_to_json(self.usage),
        }
        return json.dumps(data, ensure_ascii=True, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Checkpoint:
        """Return the checkpoint that `to_json` gave this text.

        Raises:
            InvalidValueError: It is none, or was written by a newer version of tenure.
        """
        try:
            data = cast("dict[str, Json]", json.loads(text))
            checked_format(data)
            return cls(
                **{name: data[name] for name in _PLAIN},  # pyright: ignore[reportArgumentType]
                created_at=datetime.fromisoformat(cast("str", data["created_at"])),
                messages=tuple(
                    from_dict(each) for each in cast("list[dict[str, Json]]", data["messages"])
                ),
                usage=usage_from_json(data["usage"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            if isinstance(exc, InvalidValueError):
                raise
            raise InvalidValueError("The text is not the JSON of a checkpoint.") from exc


_PLAIN = (
    "checkpoint_id", "session_id", "run_id", "version", "node_path", "input", "output", "values",
    "is_tombstone", "revision", "replaces_after", "state",
)  # fmt: skip


def checked_format(data: Mapping[str, Json]) -> None:
    """Check that this version of tenure can read what a checkpoint holds.

    Raises:
        InvalidValueError: A newer one has written it.
    """
    found = data.get("format")
    if not isinstance(found, int) or found > FORMAT:
        raise InvalidValueError(
            f"The checkpoint has the format {found!r}, and this tenure knows up to {FORMAT}; upgrade "
            "tenure, or begin anew with resume='never'."
        )


def usage_to_json(usage: Usage) -> dict[str, Json]:
    """Return the counts of tokens, without the providers' own counters."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "requests": usage.requests,
    }


def usage_from_json(data: Json) -> Usage:
    """Return the counts of which `usage_to_json` made this."""
    counts = cast("dict[str, int]", data)
    return Usage(
        input_tokens=counts["input_tokens"],
        output_tokens=counts["output_tokens"],
        requests=counts["requests"],
    )
