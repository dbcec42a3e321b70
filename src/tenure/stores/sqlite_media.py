"""Bodies and media of the SQLite driver: what a row holds of a message, and what lives beside it.

Media above `INLINE_BYTES` is not in the body: its bytes are kept once a tenant, under their hash, for as
long as an entry uses them, so that a picture sent ten times is stored once and reading texts stays cheap.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import cast

from tenure.codec import from_dict, from_json, parts_of, to_dict, to_json
from tenure.errors import StoreError
from tenure.messages import Json, Media, Message, Part
from tenure.stores.checks import checked_message_ids
from tenure.stores.sqlite_rows import Rows, Value

INLINE_BYTES = 64 * 1024
_MARK = '"blob": "b2:'  # only a body that has this text can have its media elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A message as rows: the body, and the media that it uses, by digest."""

    message: Message
    body: str
    media: Mapping[str, bytes] = field(default_factory=dict[str, bytes])


def pack(message: Message) -> Packed:
    """Return what the rows of a message hold.

    Raises:
        InvalidValueError: It cannot be written as JSON.
    """
    if not any(_is_big(part) for part in parts_of(message)):
        return Packed(message=message, body=to_json(message))
    media: dict[str, bytes] = {}
    data = to_dict(message)
    for part, written in zip(parts_of(message), _written_parts(data), strict=True):
        if isinstance(part, Media) and part.data is not None and _is_big(part):
            digest = f"b2:{blake2b(part.data, digest_size=32).hexdigest()}"
            media[digest] = part.data
            del written["data"]
            written["blob"] = digest
    body = json.dumps(data, ensure_ascii=True, sort_keys=True, allow_nan=False)
    return Packed(message=message, body=body, media=media)


def pack_all(messages: Sequence[Message]) -> list[Packed]:
    """Return what the rows of messages hold.

    Raises:
        InvalidValueError: One cannot be stored.
    """
    checked_message_ids(messages)
    return [pack(message) for message in messages]


def unpack(rows: Rows, body: str) -> Message:
    """Return the message that `pack` gave this body.

    Raises:
        StoreError: The row is damaged, or its media is gone.
    """
    if (kept := rows.memo.get(body)) is not None:
        return kept
    if _MARK not in body:
        message = from_json(body)
        rows.memo.put(body, message)
        return message
    data = cast("dict[str, Json]", json.loads(body))
    for part in _written_parts(data):
        if part.get("kind") == "media" and "blob" in part and "data" not in part:
            digest = str(part.pop("blob"))
            found = rows.one("find_media", {"digest": digest})
            if found is None:
                raise StoreError(f"The media {digest!r} of a message is gone; it was damaged.")
            part["data"] = b64encode(found["data"]).decode("ascii")
    return from_dict(data)


def keep_media(rows: Rows, place: Mapping[str, Value], media: Mapping[str, bytes]) -> None:
    """Keep the media that the entry at `place` uses."""
    for digest, data in media.items():
        rows.run("add_media", {"digest": digest, "data": data})
        rows.run("add_media_use", place, digest=digest)


def drop_unused(rows: Rows, digests: Iterable[str]) -> None:
    """Remove the media among these that no entry uses any more."""
    for digest in digests:
        rows.run("delete_unused_media", {"digest": digest})


def _is_big(part: Part) -> bool:
    return isinstance(part, Media) and part.data is not None and len(part.data) > INLINE_BYTES


def _written_parts(data: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    """The parts in a message's object, in the order of `parts_of`."""
    for part in cast("list[dict[str, Json]]", data["parts"]):
        yield part
        if part.get("kind") == "tool_result":
            yield from cast("list[dict[str, Json]]", part.get("parts", []))
