"""Python values as JSON that a model reads and Python reads back: the tagged JSON of tool results.

What JSON has is written as it is. Whatever else is an object with one key, which begins with `$` and
names the type, as in `{"$datetime": "2026-01-01T00:00:00+00:00"}` or `{"$tuple": [1, 2]}`:

    bytes bytearray                 base64
    datetime date time timedelta    ISO 8601; behind it `[Europe/Oslo]` for a zone and `[fold=1]`
    Decimal UUID complex paths IP   as `str()` writes them
    float int str                   NaN and infinities; hexadecimal if huge; pieces, see `_text`
    tuple set frozenset             a list of the items; sets are sorted
    deque deque:9                   a list; the number is `maxlen`
    dict OrderedDict Counter        an object, or `[key, value]` pairs if a key is not a text
    defaultdict:list                the same; the name is the factory
    numpy:float32 numpy:int8[2,3]   a scalar; an array of that shape as nested lists
    app.shop.Order                  a class of yours (it has a dot): an object of the fields of a
                                    dataclass, NamedTuple or pydantic model; an enum member's value

A dict whose only key begins with `$` is written as `{"$dict": {...}}`. Nothing is pickled or turned into
a text in silence: what has no exact form is refused by `to_tagged`, with its type and its place.

Exact means of the same type, equal, and so all the way down, with -0.0, NaN, surrogates and the order of
a dict. Not kept: which objects are one and the same, and the name and class of a time zone of a fixed
offset. Instances come back with the fields that they had; `__init__`, validators and serializers of their
class are not run. A pydantic model keeps `model_fields_set` (`"$defaults"` lists the fields not set); its
computed fields are written for the model to read. Private attributes that differ from their defaults, and
fields with `exclude=True`, are not for a model's eyes: an instance that has them is refused.

`scalars.py` makes the texts, `instances.py` takes classes apart, `tools.py` writes with this. `recorded.py`
extends it by our own values.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

from tenure.errors import InvalidValueError
from tenure.instances import fields_of, instance_of, is_enum, is_supported, value_of
from tenure.scalars import TEXTS, InexactError, full_name, numpy_items, numpy_value

if TYPE_CHECKING:
    from tenure.messages import Json

MAX_DEPTH = 128
"""How deep a value may be nested; a guess that stays far from Python's own limit, both ways."""

_INT_BITS = 2048  # fewer than the 640 digits that Python reads under any setting
_PATH_CHARACTERS = 120
_MERGING = re.compile("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")
_SURROGATE = re.compile("[\ud800-\udfff]")

_LISTS: dict[type, Callable[[list[Any]], object]] = {tuple: tuple, set: set, frozenset: frozenset}
_MAPPINGS: dict[type, Callable[[dict[Any, Any]], object]] = {
    dict: dict,
    OrderedDict: OrderedDict,
    Counter: Counter,
}
_FACTORIES: dict[str, Callable[[], object]] = {
    cls.__name__: cls
    for cls in (
        *(list, tuple, set, frozenset, deque, dict, OrderedDict, Counter),
        *(bool, int, float, complex, Decimal, str, bytes, bytearray),
    )
}
_SUPPORTED = {str, int, float, list, deque, defaultdict, *_LISTS, *_MAPPINGS, *TEXTS}
_READERS: dict[str, Callable[[Any], object]] = {
    cls.__name__: make for cls, make in (_LISTS | _MAPPINGS).items()
}
_TEXT_READERS = {cls.__name__: read for cls, (_, read) in TEXTS.items()}


def to_tagged(value: object) -> Json:
    """Return the JSON of a value, as nested dicts and lists.

    Raises:
        InvalidValueError: Something in it has no exact form; the text names its type and its place.
    """
    return Writer().whole(value)


def to_tagged_json(value: object) -> str:
    """Return the JSON of a value as text: valid Unicode, with no more escapes than that needs.

    Raises:
        InvalidValueError: See `to_tagged`.
    """
    tagged = to_tagged(value)
    try:
        text = json.dumps(tagged, ensure_ascii=False, allow_nan=False)
    except RecursionError as exc:
        raise InvalidValueError("The result is nested too deeply to be written as JSON.") from exc
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def from_tagged(data: Json, *, types: Iterable[type] = ()) -> object:
    """Return the value of which `to_tagged` made this.

    Args:
        data: What `to_tagged` returned.
        types: The enums, dataclasses, NamedTuples and pydantic models that may be built. Their fields
            are not validated, so do that yourself if somebody else may have written the data. A field
            that is missing, since the class had none when it was written, gets its default.

    Raises:
        InvalidValueError: It holds a class that is not in `types`, an unknown tag, or what does not fit
            its tag.
    """
    return Reader(types).whole(data)


def from_tagged_json(text: str, *, types: Iterable[type] = ()) -> object:
    """Return the value of which `to_tagged_json` made this text. See `from_tagged`.

    Raises:
        InvalidValueError: The text is not JSON, or see `from_tagged`.
    """
    try:
        data: object = json.loads(text)
    except (ValueError, TypeError, RecursionError) as exc:
        raise InvalidValueError("The text is not JSON, so no value can be read from it.") from exc
    return from_tagged(data, types=types)


class Writer:
    """One value on its way into JSON. After a refusal, the path is where it happened.

    Args:
        what: What refusals call the value.
        at: What they put between that and a path into it.
    """

    def __init__(self, what: str = "result", *, at: str = "") -> None:
        self._what, self._at = what, at
        self._path: list[str] = []
        self._open: set[int] = set()

    def whole(self, value: object) -> Json:
        """Write all of a value, once."""
        try:
            return self.write(value)
        except RecursionError:
            raise self.refusal(value, "it is nested too deeply") from None

    def write(self, value: object) -> Json:
        if value is None or type(value) is bool:
            return value
        if type(value) is str:
            return _text(value)
        if type(value) is int:
            return value if value.bit_length() < _INT_BITS else {"$int": hex(value)}
        if type(value) is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if id(value) in self._open:
            raise self.refusal(value, "it holds itself")
        if len(self._open) >= MAX_DEPTH:
            raise self.refusal(value, f"it is nested more than {MAX_DEPTH} levels deep")
        self._open.add(id(value))
        try:
            written = self._tagged(value)
        except InexactError as exc:
            raise self.refusal(value, str(exc)) from exc
        self._open.discard(id(value))
        return written

    def _tagged(self, given: object) -> Json:
        cls, value = type(given), cast("Any", given)
        if cls is list:
            return self._items(value)
        if cls is dict:
            written = self._mapping(value)
            return {"$dict": written} if isinstance(written, list) or _tag_of(written) else written
        if cls in TEXTS:
            return {f"${cls.__name__}": _text(TEXTS[cls][0](value))}
        if cls in _LISTS:
            items = self._items(value)
            return {f"${cls.__name__}": items if cls is tuple else sorted(items, key=json.dumps)}
        if cls in _MAPPINGS:
            return {f"${cls.__name__}": self._mapping(value)}
        if cls is deque:
            size = "" if value.maxlen is None else f":{value.maxlen}"
            return {f"$deque{size}": self._items(value)}
        if cls is defaultdict:
            return {f"$defaultdict{_factory_name(value)}": self._mapping(value)}
        if is_enum(cls):
            name, content = self._name_of(cls), value_of(value)
            self._path.append(".value")
            written = self.write(content)
            self._path.pop()
            return {f"${name}": written}
        if is_supported(cls):
            return {f"${self._name_of(cls)}": self._mapping(fields_of(value), attributes=True)}
        if found := numpy_items(value):
            return {f"$numpy:{found[0]}": self.write(found[1])}
        bases = [base for base in cls.__mro__ if base in _SUPPORTED]
        raise InexactError(
            f"it is a subclass of {bases[0].__name__} that tenure does not know; convert it to one"
            if bases
            else "no exact form of it is known; return plain values, a dataclass or a pydantic model"
        )

    def _name_of(self, cls: type) -> str:
        """The tag of a class of the user's."""
        return full_name(cls)

    def _items(self, values: Iterable[object]) -> list[Json]:
        written: list[Json] = []
        for index, item in enumerate(values):
            self._path.append(f"[{index}]")
            written.append(self.write(item))
            self._path.pop()
        return written

    def _mapping(
        self, values: Mapping[Any, object], *, attributes: bool = False
    ) -> dict[str, Json] | list[Json]:
        """An object if JSON can hold all the keys, else pairs."""
        named: dict[str, Json] = {}
        pairs: list[Json] = []
        for key, item in values.items():
            self._path.append(".keys()")
            name = self.write(key)
            self._path[-1] = f".{key}" if attributes else _step(key)
            written = self.write(item)
            self._path.pop()
            pairs.append([name, written])
            if isinstance(name, str):
                named[name] = written
        return named if len(named) == len(pairs) else pairs

    def refusal(self, value: object, why: str) -> InvalidValueError:
        path = "".join(self._path)
        if len(path) > _PATH_CHARACTERS:
            path = f"{path[: _PATH_CHARACTERS // 2]}…{path[-_PATH_CHARACTERS // 2 :]}"
        place = f"{self._what}{self._at if path else ''}{path}"
        return InvalidValueError(
            f"{place} of type {full_name(type(value))} cannot be written as JSON: {why}."
        )


class Reader:
    """Reads tagged JSON, and builds instances of these classes only."""

    _advice = "pass types=[{}]"

    def __init__(self, types: Iterable[type]) -> None:
        self.types: dict[str, type] = {}
        for cls in types:
            # Whoever does not check types gives an instance, or list[Order].
            if not isinstance(cls, type) or not is_supported(cls):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidValueError(
                    f"types= takes enums, dataclasses, NamedTuples and pydantic models, not {cls!r}."
                )
            if self.types.setdefault(full_name(cls), cls) is not cls:
                raise InvalidValueError(f"types= has two classes named {full_name(cls)}.")

    def whole(self, data: Json) -> object:
        """Read all of a value."""
        try:
            return self.read(data)
        except RecursionError as exc:
            raise InvalidValueError("The tagged JSON is nested too deeply to be read.") from exc

    def read(self, data: Json) -> object:
        if data is None or type(data) in (bool, int, float, str):
            return data
        if type(data) is list:
            return self._items(cast("list[Json]", data))
        if type(data) is not dict:
            raise InvalidValueError(f"{full_name(type(data))} is not a type of JSON.")
        named = cast("dict[str, Json]", data)
        tag = _tag_of(named)
        if not tag:
            return self._mapping(named)
        try:
            return self._tagged(tag, named[f"${tag}"])
        except (InvalidValueError, RecursionError, MemoryError):
            raise
        except Exception as exc:  # of any constructor; its text may hold what nobody should read
            raise InvalidValueError(
                f"What tagged JSON has under {f'${tag}'[:80]!r} does not fit that tag."
            ) from exc

    def _tagged(self, tag: str, payload: Any) -> object:
        kind, colon, argument = tag.partition(":")
        if "." in kind:
            return self._instance(tag, payload)
        if tag in _TEXT_READERS:
            return _TEXT_READERS[tag](_expect(str, self.read(payload)))
        if tag in _READERS:
            is_list = _READERS[tag] in _LISTS
            return _READERS[tag](self._items(payload) if is_list else self._mapping(payload))
        if kind == "deque":
            return deque(self._items(payload), maxlen=int(argument) if colon else None)
        if kind == "defaultdict":
            factory = _FACTORIES[argument] if colon else None
            return defaultdict(factory, self._mapping(payload))
        if kind == "numpy":
            return numpy_value(argument, self.read(payload))
        if tag == "float" and payload in ("nan", "inf", "-inf"):
            return float(payload)
        if tag == "int":
            return int(_expect(str, payload), 16)
        if tag == "str":
            return "".join(_expect(list, payload))
        raise InvalidValueError(
            f"Tagged JSON has the unknown tag {f'${tag}'[:80]!r}; was it written by a newer tenure?"
        )

    def _instance(self, name: str, payload: Json) -> object:
        cls = self.types.get(name)
        if cls is None:
            short = name.partition("[")[0].rpartition(".")[2]
            raise InvalidValueError(
                f"The value holds a {name[:80]}, which is not among the types that may be built; "
                f"{self._advice.format(short[:80])}."
            )
        if is_enum(cls):
            return cls(self.read(payload))
        return instance_of(cls, self._mapping(payload))

    def _items(self, payload: Json) -> list[object]:
        return list(map(self.read, _expect(list, payload)))

    def _mapping(self, payload: Json) -> dict[Any, object]:
        if isinstance(payload, list):
            pairs = (_expect(list, pair) for pair in cast("list[Json]", payload))
            return {self.read(key): self.read(item) for key, item in pairs}
        named = _expect(dict, payload)
        return dict(zip(named, map(self.read, named.values()), strict=True))


def _text(value: str) -> Json:
    """The text, in pieces where JSON would make one character of two surrogates."""
    pieces = _MERGING.split(value)
    return value if len(pieces) == 1 else {"$str": pieces}


def _tag_of(data: Mapping[Any, Json]) -> str:
    """What is behind the `$`, if this object has one key with one."""
    key = next(iter(data)) if len(data) == 1 else ""
    return key[1:] if isinstance(key, str) and key.startswith("$") else ""


def _step(key: object) -> str:
    return f"[{json.dumps(key[:40])}]" if isinstance(key, str) else f"[a {type(key).__name__}]"


def _factory_name(value: defaultdict[object, object]) -> str:
    factory = value.default_factory
    if factory is None:
        return ""
    name = getattr(factory, "__name__", "")
    if _FACTORIES.get(name) is not factory:
        raise InexactError(
            f"its default_factory is not one of {', '.join(_FACTORIES)}; return a dict of it"
        )
    return f":{name}"


def _expect(cls: Callable[..., Any], payload: object) -> Any:
    if type(payload) is not cls:
        raise ValueError("of another type")
    return payload
