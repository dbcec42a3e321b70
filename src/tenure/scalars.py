"""Values that one text tells whole: bytes, times, numbers, paths, addresses. And those of numpy.

`values.py` puts the text into tagged JSON under the name of the type, and documents how each looks.
"""

from __future__ import annotations

import re
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

_MOMENT = re.compile(r"([^\[]*)(?:\[([^\[\]=]+)\])?(\[fold=1\])?")
_DURATION = re.compile(r"(-?)P(\d+)DT(\d+)H(\d+)M(\d+)(?:\.(\d{6}))?S", re.ASCII)
_NUMPY = re.compile(
    r"(bool|u?int(?:8|16|32|64)|float(?:16|32|64)|complex(?:64|128)"
    r"|(?:datetime|timedelta)64(?:\[\d*[a-zA-Z]+\])?)"
    r"(?:\[((?:\d+(?:,\d+)*)?)\])?",
    re.ASCII,
)


class InexactError(Exception):
    """Why a value has no exact form in tagged JSON; `values` says of which type it is, and where."""


def full_name(cls: type) -> str:
    """The module and the name of a class; of a built-in one, the name."""
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )


def _bytes_text(value: bytes | bytearray) -> str:
    return b64encode(value).decode("ascii")


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)


def _moment_text(value: datetime | time) -> str:
    from pydantic_core import TzInfo

    zone = value.tzinfo
    if type(zone) is ZoneInfo and zone.key:
        named = f"[{zone.key}]"
    elif zone is None or type(zone) in (timezone, TzInfo):
        named = ""
    else:
        raise InexactError(
            f"its time zone is of type {full_name(type(zone))}; use zoneinfo.ZoneInfo or "
            "datetime.timezone"
        )
    if (value.utcoffset() or timedelta()).microseconds:
        # fromisoformat takes offsets of less than a second for UTC (seen in Python 3.11).
        raise InexactError("the offset of its time zone has a fraction of a second")
    return value.isoformat() + named + "[fold=1]" * value.fold


def _moment(text: str, cls: type[datetime] | type[time]) -> datetime | time:
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise ValueError("not a time")
    value = cls.fromisoformat(found[1])
    if found[2]:
        # The time on the wall counts, should the rules of the zone have changed since.
        value = value.replace(tzinfo=ZoneInfo(found[2]))
    return value.replace(fold=1) if found[3] else value


def _duration_text(value: timedelta) -> str:
    size = abs(value)
    minutes, seconds = divmod(size.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    micros = f".{size.microseconds:06}" if size.microseconds else ""
    sign = "-" if value < timedelta(0) else ""
    return f"{sign}P{size.days}DT{hours}H{minutes}M{seconds}{micros}S"


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError("not a duration")
    days, hours, minutes, seconds, micros = (int(number or 0) for number in found.groups()[1:])
    size = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, microseconds=micros)
    return -size if found[1] else size


TEXTS: dict[type, tuple[Callable[[Any], str], Callable[[str], object]]] = {
    bytes: (_bytes_text, _bytes),
    bytearray: (_bytes_text, lambda text: bytearray(_bytes(text))),
    datetime: (_moment_text, lambda text: _moment(text, datetime)),
    date: (date.isoformat, date.fromisoformat),
    time: (_moment_text, lambda text: _moment(text, time)),
    timedelta: (_duration_text, _duration),
    Decimal: (str, Decimal),
    complex: (str, complex),
    UUID: (str, UUID),
    type(Path()): (str, Path),
    PurePosixPath: (str, PurePosixPath),
    PureWindowsPath: (str, PureWindowsPath),
    IPv4Address: (str, IPv4Address),
    IPv6Address: (str, IPv6Address),
    IPv4Network: (str, IPv4Network),
    IPv6Network: (str, IPv6Network),
    IPv4Interface: (str, IPv4Interface),
    IPv6Interface: (str, IPv6Interface),
}
"""How a value of exactly this type becomes a text, and how the text becomes the value."""


def numpy_items(value: object) -> tuple[str, object] | None:
    """Of a numpy scalar or array its type and shape, and its items as lists; else None.

    Raises:
        InexactError: The items are of a type that lists cannot hold exactly.
    """
    if "numpy" not in sys.modules:
        return None
    import numpy as np

    if not isinstance(value, np.generic) and type(value) is not np.ndarray:
        return None
    array = np.asarray(cast("np.ndarray[Any, np.dtype[Any]]", value))
    if not _NUMPY.fullmatch(array.dtype.name) or not array.dtype.isnative:
        raise InexactError(f"its dtype is {array.dtype}; return its tolist()")
    shape = "" if isinstance(value, np.generic) else f"[{','.join(map(str, array.shape))}]"
    if array.dtype.kind == "M":
        items = np.datetime_as_string(array)
    elif array.dtype.kind == "m":
        items = array.astype(np.int64)
    else:
        items = array
    return array.dtype.name + shape, items.tolist()


def numpy_value(name: str, items: object) -> object:
    """Return the scalar or array of which `numpy_items` gave this.

    Raises:
        ValueError: They do not fit the type or the shape.
    """
    import numpy as np

    found = _NUMPY.fullmatch(name)
    if found is None:
        raise ValueError("not a numeric type of numpy")
    shape = tuple(int(size) for size in (found[2] or "").split(",") if size)
    array = np.array(items, dtype=found[1]).reshape(shape)
    value = array[()] if found[2] is None else array
    # numpy rounds what does not fit. Texts, since NaN is not equal to itself.
    if repr(numpy_items(value)) != repr((name, items)):
        raise ValueError("other items than the type can hold")
    return value
