"""Tagged JSON: every value that a tool may return, both ways, and every other one refused."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum
from functools import cached_property, partial
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType, SimpleNamespace
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, PrivateAttr, RootModel, SecretStr, computed_field

from tenure import codec
from tenure.errors import InvalidValueError, UsageError
from tenure.messages import Media, ToolMessage, ToolResult
from tenure.tools import output_parts
from tenure.values import MAX_DEPTH, from_tagged, from_tagged_json, to_tagged, to_tagged_json

T = TypeVar("T")


class Colour(Enum):
    RED = "red"
    SHADES = (1, b"\xff")


class Size(StrEnum):
    SMALL = "s"


class Rank(IntEnum):
    HIGH = 3


class Right(Flag):
    READ = 1
    WRITE = 2


class Mode(IntFlag):
    USER = 4


@dataclass
class Point:
    x: Any
    y: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    item: Any
    made: int = field(default=0, init=False)


@dataclass
class Made:
    """Its constructor would not give what its fields are."""

    seed: InitVar[int]
    doubled: int = field(init=False)

    def __post_init__(self, seed: int) -> None:
        self.doubled = 2 * seed


@dataclass
class Generically(Generic[T]):
    item: T


class Pair(NamedTuple):
    left: Any
    right: Any = 0


Old = namedtuple("Old", "a b")


class Plain(TypedDict):
    a: int


class Order(BaseModel):
    number: Any
    lines: Any = Field(default=(), alias="Lines")

    @computed_field
    @property
    def doubled(self) -> object:
        return [self.number, self.number]


class Open(BaseModel, extra="allow", frozen=True):
    a: Any = None


class Box(BaseModel, Generic[T]):
    item: T


class Names(RootModel[list[str]]):
    pass


class Noted(BaseModel):
    a: int = 0
    _note: str = PrivateAttr("none")
    _later: str

    @cached_property
    def slow(self) -> int:
        return self.a


@pydantic.dataclasses.dataclass
class Checked:
    n: int


TYPES = [Colour, Size, Rank, Right, Mode, Point, Fixed, Made, Generically, Pair, Old, Order]
TYPES += [Open, Box, Box[int], Names, Noted, Checked, Media]


def again(value: object) -> Any:
    """The value after a way through a text of JSON, which is valid Unicode."""
    text = to_tagged_json(value)
    text.encode("utf-8")
    json.loads(text)
    assert from_tagged(to_tagged(value), types=TYPES) is not NotImplemented
    return from_tagged_json(text, types=TYPES)


def exactly(value: Any) -> object:
    """All that there is to know of a value, to be compared; NaN is itself here, and 1 is not True."""
    cls = type(value)
    if isinstance(value, Enum):
        return (cls, value.name)
    if isinstance(value, np.ndarray):
        return (cls, value.dtype.str, value.shape, repr(value.tolist()))
    if isinstance(value, np.generic):
        return (cls, value.dtype.str, repr(value))
    if isinstance(value, dict):
        factory = getattr(value, "default_factory", None)
        return (cls, factory, [(exactly(k), exactly(v)) for k, v in value.items()])
    if isinstance(value, list | tuple | deque):
        return (cls, getattr(value, "maxlen", None), [exactly(item) for item in value])
    if isinstance(value, set | frozenset):
        return (cls, sorted(repr(exactly(item)) for item in value))
    if isinstance(value, BaseModel):
        return (cls, exactly(dict(value)), value.model_fields_set, exactly(value.model_extra))
    if dataclasses.is_dataclass(value):
        return (cls, [exactly(getattr(value, f.name)) for f in dataclasses.fields(value)])
    return (cls, repr(value))


# --- every kind of value -------------------------------------------------------------------------

fixed_offsets = st.integers(-86399, 86399).map(lambda s: timezone(timedelta(seconds=s)))
zones: st.SearchStrategy[tzinfo | None] = st.none() | st.just(UTC) | st.timezones() | fixed_offsets


def folded(value: Any, fold: int) -> Any:
    return value.replace(fold=fold)


texts = st.text(st.characters(), max_size=8)
numpy_kinds = ["bool", "int8", "uint64", "float16", "float32", "float64", "complex64"]
numpy_kinds += ["datetime64[D]", "datetime64[ns]", "datetime64[25s]", "timedelta64[us]"]
arrays = st.builds(
    lambda kind, numbers, shape: (
        (np.array(numbers, dtype="int8").astype("m8" if "m8" in kind else "int64"))
        .astype(kind)
        .reshape(shape)
    ),
    st.sampled_from(numpy_kinds),
    st.lists(st.integers(0, 100), min_size=6, max_size=6),
    st.sampled_from([(6,), (2, 3), (1, 3, 2)]),
)
hashables = st.one_of(
    st.none(),
    st.booleans(),
    st.integers() | st.integers(2040, 2060).map(lambda bits: -(1 << bits) + bits),
    st.floats(),
    texts,
    st.binary(max_size=6),
    st.builds(folded, st.datetimes(timezones=zones), st.integers(0, 1)),
    st.dates(),
    st.builds(folded, st.times(timezones=zones), st.integers(0, 1)),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.complex_numbers(),
    texts.map(PurePosixPath) | texts.map(PureWindowsPath) | texts.map(Path),
    st.ip_addresses() | st.ip_addresses().map(ip_network) | st.ip_addresses().map(ip_interface),
    st.sampled_from([*Colour, *Size, *Rank, *Right, Right(0), Right(3), Mode(4), Mode(9)]),
)
frozen = st.recursive(
    hashables,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.frozensets(inner, max_size=3)
        | st.builds(Pair, inner, inner)
        | st.builds(Fixed, item=inner)
    ),
    max_leaves=4,
)
leaves = st.one_of(
    frozen,
    st.decimals(),
    st.binary(max_size=6).map(bytearray),
    arrays,
    arrays.map(lambda array: array.ravel()[0]),
    st.sampled_from([np.zeros((0, 3), "f4"), np.array(5), np.datetime64("NaT"), np.float32("nan")]),
    st.sets(frozen, max_size=3),
    st.builds(Made, st.integers()),
)


def opened(a: Any, more: dict[str, Any]) -> Open:
    made = Open(a=a, b=1)  # pyright: ignore[reportCallIssue]
    assert made.model_extra is not None
    made.model_extra.update({name: item for name, item in more.items() if name != "a"})
    return made


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=3)
    named = st.dictionaries(st.sampled_from(["a", "$a", "$dict", "$", "$set", ""]) | texts, inner)
    keyed = named | st.dictionaries(frozen, inner, max_size=3)
    return st.one_of(
        lists,
        lists.map(tuple),
        st.builds(deque, lists, st.none() | st.integers(0, 4)),
        keyed,
        keyed.map(OrderedDict),
        keyed.map(Counter),
        st.builds(defaultdict, st.sampled_from([None, list, int, dict, Counter]), keyed),
        st.builds(Pair, inner, inner),
        st.builds(Point, inner, inner),
        st.builds(Generically[int], inner),
        st.builds(Order, number=inner) | st.builds(Order, number=inner, Lines=inner),
        st.builds(opened, inner, named),
        st.builds(Box, item=inner),
    )


@settings(deadline=None, derandomize=True, max_examples=250)
@given(st.recursive(leaves, containers, max_leaves=8))
def test_round_trip_is_exact(value: object) -> None:
    """A value comes back as it was, with the types and the contents all the way down."""
    assert exactly(again(value)) == exactly(value)


@pytest.mark.parametrize(
    "leaf", [pytest.param(hashables, id="hashable"), pytest.param(leaves, id="any")]
)
def test_every_leaf_is_exact(leaf: st.SearchStrategy[object]) -> None:
    """The same for values by themselves."""

    @settings(deadline=None, derandomize=True, max_examples=300)
    @given(leaf)
    def check(value: object) -> None:
        assert exactly(again(value)) == exactly(value)

    check()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": [1, 2.5, None, True], "a": "ä"}, '{"b": [1, 2.5, null, true], "a": "ä"}'),
        (Plain(a=1), '{"a": 1}'),
        (b"\xff\xfe", '{"$bytes": "//4="}'),
        (datetime(2026, 1, 2, tzinfo=UTC), '{"$datetime": "2026-01-02T00:00:00+00:00"}'),
        (
            datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001
            '{"$datetime": "2026-01-02T03:04:05.000006"}',
        ),
        (
            datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Oslo"), fold=1),
            '{"$datetime": "2026-10-25T02:30:00+01:00[Europe/Oslo][fold=1]"}',
        ),
        (date(2026, 1, 2), '{"$date": "2026-01-02"}'),
        (time(3, 4), '{"$time": "03:04:00"}'),
        (timedelta(days=1, seconds=3723), '{"$timedelta": "P1DT1H2M3S"}'),
        (timedelta(microseconds=-1), '{"$timedelta": "-P0DT0H0M0.000001S"}'),
        (timedelta.min, '{"$timedelta": "-P999999999DT0H0M0S"}'),
        (Decimal("1.10"), '{"$Decimal": "1.10"}'),
        (UUID(int=1), '{"$UUID": "00000000-0000-0000-0000-000000000001"}'),
        (1 + 2j, '{"$complex": "(1+2j)"}'),
        (PurePosixPath("a/b"), '{"$PurePosixPath": "a/b"}'),
        (ip_address("10.0.0.1"), '{"$IPv4Address": "10.0.0.1"}'),
        (float("-inf"), '{"$float": "-inf"}'),
        (-0.0, "-0.0"),
        ((1, ()), '{"$tuple": [1, {"$tuple": []}]}'),
        ({3, 1, "a", 2}, '{"$set": ["a", 1, 2, 3]}'),
        ({1: "a", (2,): "b"}, '{"$dict": [[1, "a"], [{"$tuple": [2]}, "b"]]}'),
        ({"$ref": "x"}, '{"$dict": {"$ref": "x"}}'),
        ({"$ref": "x", "b": 1}, '{"$ref": "x", "b": 1}'),
        (deque([1], 9), '{"$deque:9": [1]}'),
        (Counter("aab"), '{"$Counter": {"a": 2, "b": 1}}'),
        (defaultdict(list, a=[1]), '{"$defaultdict:list": {"a": [1]}}'),
        (np.float32(0.5), '{"$numpy:float32": 0.5}'),
        (np.array([[1, 2]], "int8"), '{"$numpy:int8[1,2]": [[1, 2]]}'),
        (Colour.RED, f'{{"${__name__}.Colour": "red"}}'),
        (Size.SMALL, f'{{"${__name__}.Size": "s"}}'),
        (Rank.HIGH, f'{{"${__name__}.Rank": 3}}'),
        (Point(1, Pair(b"")), None),
        (
            Order(number=1),
            f'{{"${__name__}.Order": {{"number": 1, "lines": {{"$tuple": []}}, '
            '"doubled": [1, 1], "$defaults": ["lines"]}}',
        ),
    ],
)
def test_form(value: object, text: str | None) -> None:
    """What a model reads: plain JSON where JSON has it, else a short object that names the type."""
    expected = text or (
        f'{{"${__name__}.Point": {{"x": 1, "y": '
        f'{{"${__name__}.Pair": {{"left": {{"$bytes": ""}}, "right": 0}}}}}}}}'
    )
    assert to_tagged_json(value) == expected
    assert exactly(again(value)) == exactly(value)


# --- cases of the field --------------------------------------------------------------------------


def stored(value: object) -> Any:
    """The value after a way through a tool's result and the text of a row."""
    result = ToolResult(call_id="c", name="t", parts=output_parts(value))
    message = codec.from_json(codec.to_json(ToolMessage(parts=(result,))))
    return from_tagged_json(message.tool_results[0].text, types=TYPES)


def test_c54_bytes_of_a_tool_are_stored() -> None:
    """C54: raw bytes, also inside other things, survive a tool's result and the row."""
    value = {"raw": b"\xff\xfe", "more": [Order(number=b"\0")]}
    assert stored(value) == value


def test_c55_kinds_of_dict_stay() -> None:
    """C55: a defaultdict, a Counter and an OrderedDict come back as such, and still work."""
    value = [defaultdict(list, a=[1]), Counter(a=2), OrderedDict(b=1, a=2), deque([1], 2)]
    found = stored(value)
    assert exactly(found) == exactly(value)
    assert found[0]["new"] == []
    assert found[1]["new"] == 0


@pytest.mark.parametrize(
    "value",
    [
        *(np.array(["1999", "NaT"], f"datetime64[{unit}]") for unit in ("Y", "M", "D", "s", "ns")),
        np.array([[5, "NaT"]], "timedelta64[as]"),
    ],
    ids=lambda value: value.dtype.name,
)
def test_c56_numpy_times_stay(value: np.ndarray) -> None:
    """C56: times of every unit, NaT too, alone and in an array."""
    items = [value, *value.flat]
    assert exactly(stored(items)) == exactly(items)


@pytest.mark.parametrize("text", ["a\ud83d", "\udf78b", "\0", "\ud83c\udf78", "🍸"])
def test_c24_odd_texts_stay(text: str) -> None:
    """C24: lone surrogates, NUL and pairs in two halves stay as they are, as values and as keys."""
    value = [text, {text: text}, Point(text), PurePosixPath("x" + text)]
    assert exactly(stored(value)) == exactly(value)


def test_c26_escaped_pair_is_one_character() -> None:
    """C26: an escaped pair in JSON is one code point, and stays one."""
    assert from_tagged_json('"\\ud83c\\udf78"') == "🍸"
    assert to_tagged_json("🍸") == '"🍸"'


def test_c74_classes_are_never_imported() -> None:
    """C74: a class that data names is built only if it was given; nothing is looked up by name."""
    text = to_tagged_json([Point(1)])
    with pytest.raises(UsageError, match=rf"holds a {__name__}\.Point.*pass types=\[Point\]\.$"):
        from_tagged_json(text, types=[Pair])
    for name in ("os.system", "subprocess.Popen", "antigravity.x", "tenure.messages.Text"):
        with pytest.raises(InvalidValueError, match=f"holds a {name}"):
            from_tagged({f"${name}": {"text": "rm"}}, types=TYPES)
    assert "antigravity" not in sys.modules


# --- instances -----------------------------------------------------------------------------------


def test_constructors_do_not_run() -> None:
    """Fields come back as they were, though a constructor or a validator would change or refuse them."""

    class Loud(BaseModel):
        n: int

        @pydantic.field_validator("n")
        @classmethod
        def more(cls, n: int) -> int:
            return n + 1

        def model_post_init(self, context: object) -> None:
            calls.append("model")

    calls: list[str] = []
    made, loud = Made(3), Loud(n=1)
    made.doubled = 5
    calls.clear()
    found: Any = from_tagged(
        to_tagged([made, loud, Loud.model_construct(n="x")]), types=[Made, Loud]
    )
    assert found == [made, loud, Loud.model_construct(n="x")]
    assert calls == ["model", "model"]  # of the two model_construct


def test_models_are_equal_afterwards() -> None:
    """Equality, set fields, extra fields, generic and root models, and private defaults hold."""
    for value in (
        Order(number=1),
        Order(number=1, Lines=[b""]),
        Open(a=1, more={"$x": 1}, **{"$y": 2}),  # pyright: ignore
        Box[int](item=1),
        Names(["a"]),
        Noted(a=1),
        Checked(n=1),
    ):
        found = again(value)
        assert found == value
        assert exactly(found) == exactly(value)
    assert again(Noted(a=1))._note == "none"
    assert again(Order(number=1)).model_dump(exclude_unset=True) == {"number": 1, "doubled": [1, 1]}


def test_cached_properties_are_computed_again() -> None:
    """What an instance has computed and kept is no part of it."""
    value = Noted(a=7)
    assert value.slow == 7
    assert again(value).slow == 7


def test_later_fields_get_their_defaults() -> None:
    """Data that was written before a class had a field is read with the field's default."""
    assert from_tagged({f"${__name__}.Point": {"x": 1}}, types=TYPES) == Point(1)
    assert from_tagged({f"${__name__}.Pair": {"left": 1}}, types=TYPES) == Pair(1)
    found: Any = from_tagged({f"${__name__}.Order": {"number": 1}}, types=TYPES)
    assert (found, found.model_fields_set) == (Order(number=1), {"number"})


@pytest.mark.parametrize(
    ("name", "values", "why"),
    [
        ("Point", {}, "Point lacks the field 'x', which has no default"),
        ("Point", {"x": 1, "z": 1}, "Point has the field 'z', which the class has not"),
        ("Pair", {}, "Pair lacks the field 'left'"),
        ("Pair", {"left": 1, "__class__": 1}, "Pair has the field '__class__'"),
        ("Order", {}, "Order lacks the field 'number'"),
        ("Order", {"number": 1, "Lines": []}, "Order has the field 'Lines'"),
        ("Order", {"number": 1, "__dict__": {}}, "Order has the field '__dict__'"),
    ],
)
def test_fields_must_be_those_of_the_class(name: str, values: dict[str, object], why: str) -> None:
    """A missing field without a default and an unknown field are errors that name it."""
    with pytest.raises(InvalidValueError, match=why):
        from_tagged({f"${__name__}.{name}": values}, types=TYPES)


class Hidden(BaseModel):
    password: str = Field("x", exclude=True)


@pydantic.dataclasses.dataclass
class Veiled:
    password: str = Field(exclude=True)


class Broken(BaseModel):
    @computed_field
    @property
    def ratio(self) -> float:
        return 1 / 0


class Odd(Enum):
    NAN = float("nan")
    LOCK = threading.Lock


class Extended(Pair):
    pass


def changed(value: Any, name: str = "note", item: object = 1) -> Any:
    object.__setattr__(value, name, item)
    return value


def noted(**private: str) -> Noted:
    made = Noted()
    for name, item in private.items():
        setattr(made, name, item)
    return made


def circle() -> list[object]:
    made: list[object] = [1]
    made.append({"a": made})
    return made


class MyDict(dict[str, int]):
    pass


@dataclass
class CodedError(Exception):
    code: int = 0


class Zone(tzinfo):
    def utcoffset(self, dt: datetime | None, /) -> timedelta:
        return timedelta(0)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (object, "result of type object cannot"),
        (lambda: {"a": [1, 2, 3, object()]}, 'result["a"][3] of type object cannot'),
        (lambda: {object(): 1}, "result.keys() of type object cannot"),
        (lambda: {(1, 2): object()}, "result[a tuple] of type object cannot"),
        (lambda: Point(1, (object(),)), "result.y[0] of type object cannot"),
        (lambda: print, "of type builtin_function_or_method cannot"),
        (lambda: Point, "of type type cannot"),
        (lambda: (i for i in ()), "of type generator cannot"),
        (lambda: {}.keys(), "of type dict_keys cannot"),
        (lambda: MappingProxyType({}), "of type mappingproxy cannot"),
        (lambda: [ValueError("secret")], "result[0] of type ValueError cannot"),
        (threading.Lock, "of type _thread.lock cannot"),
        (lambda: partial(print), "of type functools.partial cannot"),
        (SimpleNamespace, "of type types.SimpleNamespace cannot"),
        (lambda: SecretStr("secret"), "of type pydantic.types.SecretStr cannot"),
        (lambda: range(3), "of type range cannot"),
        (lambda: memoryview(b""), "of type memoryview cannot"),
        (lambda: UTC, "of type datetime.timezone cannot"),
        (lambda: MyDict(a=1), "MyDict cannot be written as JSON: it is a subclass of dict"),
        (lambda: [type("Markup", (str,), {})("secret")], "it is a subclass of str"),
        (lambda: [np.str_("secret")], "its dtype is <U6"),
        (lambda: np.array([object()]), "its dtype is object"),
        (lambda: np.zeros(2, ">f4"), "its dtype is >f4"),
        (lambda: np.ma.array([1]), "of type numpy.ma.MaskedArray cannot"),
        (lambda: np.longdouble(1), "its dtype is float128"),
        (lambda: datetime(2026, 1, 1, tzinfo=Zone()), "its time zone is of type"),
        (
            lambda: datetime(2026, 1, 1, tzinfo=timezone(timedelta(microseconds=1))),
            "the offset of its time zone has a fraction of a second",
        ),
        (lambda: defaultdict(lambda: 1), "its default_factory is not one of list,"),
        (circle, 'result[1]["a"] of type list cannot be written as JSON: it holds itself'),
        (lambda: changed(Point(1)), "its attribute 'note' is not a field"),
        (lambda: changed(Extended(1)), "its attribute 'note' is not a field"),
        (lambda: changed(Order(number=1)), "its attribute 'note' is not a field"),
        (lambda: object.__new__(Made), "its field 'doubled' was never set"),
        (Order.model_construct, "its field 'number' was never set"),
        (CodedError, "its class derives from a built-in type, too"),
        (lambda: noted(_note="mine"), "its private attribute '_note' has a value"),
        (lambda: noted(_later="now"), "its private attribute '_later' has a value"),
        (Hidden, "its field 'password' has exclude=True; return a dict of the others"),
        (lambda: Veiled("secret"), "its field 'password' has exclude=True"),
        (Broken, "its computed field 'ratio' raised ZeroDivisionError"),
        (lambda: Open(a=1, **{"$defaults": 1}), "its extra field '$defaults' has a name that is"),
        (lambda: Odd.LOCK, "result.value of type builtin_function_or_method cannot"),
        (lambda: Odd.NAN, "its value does not lead back to the member"),
    ],
)
def test_refusals(make: Callable[[], object], why: str) -> None:
    """What has no exact form is refused with its type and place, and with nothing that it holds."""
    with pytest.raises(InvalidValueError) as caught:
        to_tagged_json(make())
    assert why in str(caught.value)
    assert "secret" not in str(caught.value)


def test_depth_is_limited() -> None:
    """As deep as the limit goes both ways, whatever the kind of container; one more is refused."""
    nestings: list[Callable[[Any], Any]] = [
        lambda inner: [inner],
        lambda inner: {"a": inner},
        lambda inner: {(): inner},
        lambda inner: (inner,),
        lambda inner: frozenset([inner]),
        lambda inner: Point(inner),
        lambda inner: Order.model_construct(number=1, lines=inner),
        lambda inner: defaultdict(list, {1: inner}),
    ]
    for nest in nestings:
        value: Any = ()
        for _ in range(MAX_DEPTH - 1):
            value = nest(value)
        assert isinstance(again(value), type(value))
        with pytest.raises(InvalidValueError, match="more than 128 levels deep") as caught:
            to_tagged(nest(value))
        assert len(str(caught.value)) < 400


def test_little_stack_is_an_error_of_ours() -> None:
    """Where the stack is nearly used up, both ways end in an error that says so."""

    def down(levels: int, act: Callable[[], object]) -> object:
        return down(levels - 1, act) if levels else act()

    value: list[object] = []
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    text, levels = to_tagged_json(value), sys.getrecursionlimit() - len(inspect.stack()) - 60
    for act in (
        lambda: to_tagged_json(value),
        lambda: from_tagged_json(text),
        lambda: from_tagged(value),
    ):
        with pytest.raises(InvalidValueError, match=r"nested too deeply|not JSON"):
            down(levels, act)


def test_huge_numbers() -> None:
    """Numbers longer than Python reads in decimal come back; so do those that it does read."""
    for value in (10**639, 10**640, 10**5000, -(10**5000), 2**2048, -(2**2048) + 1):
        assert again([value]) == [value]


# --- hostile JSON --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"$what": 1}, "the unknown tag '$what'"),
        ({"$tuple:3": []}, "the unknown tag '$tuple:3'"),
        ({"$eval": "1"}, "the unknown tag '$eval'"),
        ({"$bytes": "a"}, "under '$bytes' does not fit"),
        ({"$bytes": 1}, "under '$bytes' does not fit"),
        ({"$bytes": "é"}, "under '$bytes' does not fit"),
        ({"$datetime": "secret"}, "under '$datetime' does not fit"),
        ({"$datetime": "2026-01-01[../../etc/passwd]"}, "under '$datetime' does not fit"),
        ({"$datetime": "2026-01-01[/etc/passwd]"}, "under '$datetime' does not fit"),
        ({"$datetime": "2026-01-01[America]"}, "under '$datetime' does not fit"),
        ({"$datetime": "2026-01-01[No/Where]"}, "under '$datetime' does not fit"),
        ({"$time": "25:00"}, "under '$time' does not fit"),
        ({"$timedelta": "P1D"}, "under '$timedelta' does not fit"),
        ({"$timedelta": "P9999999999DT0H0M0S"}, "under '$timedelta' does not fit"),
        ({"$Decimal": "x"}, "under '$Decimal' does not fit"),
        ({"$Decimal": 1.5}, "under '$Decimal' does not fit"),
        ({"$UUID": []}, "under '$UUID' does not fit"),
        ({"$IPv4Network": "10.0.0.1/8"}, "under '$IPv4Network' does not fit"),
        ({"$float": "1"}, "unknown tag '$float'"),
        ({"$int": 5}, "under '$int' does not fit"),
        ({"$str": [1]}, "under '$str' does not fit"),
        ({"$str": "a"}, "under '$str' does not fit"),
        ({"$set": [[1]]}, "under '$set' does not fit"),
        ({"$set": "abc"}, "under '$set' does not fit"),
        ({"$tuple": {"a": 1}}, "under '$tuple' does not fit"),
        ({"$dict": [[1]]}, "under '$dict' does not fit"),
        ({"$dict": ["ab"]}, "under '$dict' does not fit"),
        ({"$dict": [[[], 1]]}, "under '$dict' does not fit"),
        ({"$Counter": 1}, "under '$Counter' does not fit"),
        ({"$deque:-1": []}, "under '$deque:-1' does not fit"),
        ({"$deque:x": []}, "under '$deque:x' does not fit"),
        ({"$defaultdict:eval": {}}, "under '$defaultdict:eval' does not fit"),
        ({"$numpy:object[1]": [1]}, "does not fit"),
        ({"$numpy:<U99999999[1]": ["a"]}, "does not fit"),
        ({"$numpy:int8[1]": [300]}, "does not fit"),
        ({"$numpy:int8[1]": [1.5]}, "does not fit"),
        ({"$numpy:int8[9,9]": [1]}, "does not fit"),
        ({"$numpy:int8[99999999999999999999]": []}, "does not fit"),
        ({f"${__name__}.Colour": "blue"}, "Colour' does not fit"),
        ({f"${__name__}.Colour": []}, "Colour' does not fit"),
        ({f"${__name__}.Point": 1}, "Point' does not fit"),
        ({f"${__name__}.Order": {"number": 1, "$defaults": [[]]}}, "Order' does not fit"),
        ({"$" + "x" * 999: 1}, "the unknown tag"),
        ({"$" + "x." * 999: 1}, "which is not among the types"),
        ((1,), "tuple is not a type of JSON"),
        ([object()], "object is not a type of JSON"),
    ],
)
def test_malformed_data(data: object, why: str) -> None:
    """Whatever does not fit ends in one short error that names the tag and not the contents."""
    with pytest.raises(InvalidValueError) as caught:
        from_tagged([data], types=TYPES)
    assert why in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[" * 100_000, "9" * 5000, '{"a":' * 9999])
def test_text_that_is_no_json(text: str) -> None:
    """A text that is not JSON, however long, is refused as such."""
    with pytest.raises(InvalidValueError, match="not JSON"):
        from_tagged_json(text)


tags = st.sampled_from(
    ["bytes", "bytearray", "datetime", "date", "time", "timedelta", "Decimal", "UUID", "complex"]
    + [
        "PosixPath",
        "IPv4Address",
        "IPv6Network",
        "float",
        "int",
        "str",
        "tuple",
        "set",
        "frozenset",
    ]
    + ["deque", "deque:2", "dict", "OrderedDict", "Counter", "defaultdict", "defaultdict:int"]
    + ["numpy:int8", "numpy:float32[2]", "numpy:datetime64[D][]", "numpy:timedelta64", "what"]
    + [f"{__name__}.{cls.__qualname__}" for cls in TYPES]
).map("${}".format)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
hints = st.sampled_from(
    ["x", "number", "left", "$defaults", "1", "2026-01-01", "P1DT1H1M1S", "nan"]
)
hostile = st.recursive(
    scalars | hints,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(tags | hints, inner, min_size=1, max_size=1)
        | st.dictionaries(hints, inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None, derandomize=True, max_examples=500)
@given(hostile)
def test_no_data_raises_anything_else(data: object) -> None:
    """Any JSON whatever is read, or refused with our error."""
    with suppress(InvalidValueError):
        from_tagged(data, types=TYPES)


@pytest.mark.parametrize("wrong", [int, dict, 7, "Point", list[Point], SecretStr])
def test_types_are_classes_that_can_be_built(wrong: Any) -> None:
    """Anything else among the types is refused at once."""
    with pytest.raises(InvalidValueError, match="types= takes enums, dataclasses"):
        from_tagged(1, types=[wrong])


def test_two_classes_of_one_name() -> None:
    """Two types that data could not tell apart are refused; the same one twice is fine."""
    twin = dataclasses.make_dataclass("Point", ["x"])
    twin.__module__ = __name__
    with pytest.raises(InvalidValueError, match="two classes named"):
        from_tagged(1, types=[Point, twin])
    assert from_tagged(1, types=[Point, Point]) == 1
