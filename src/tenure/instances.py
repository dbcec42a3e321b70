"""Instances of the user's classes as their fields, and back: no code of the class is run either way.

Enums, dataclasses, NamedTuples and pydantic models. Whatever an instance holds beside its fields is a
reason to refuse it, since it would be lost. `values.py` says what that means for the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cached_property
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, cast, get_args, get_type_hints

from tenure.errors import InvalidValueError
from tenure.scalars import InexactError, full_name

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_DEFAULTS = "$defaults"


def is_supported(cls: type) -> bool:
    """Whether instances of the class can be taken apart and put together."""
    return is_enum(cls) or _is_model(cls) or _is_named_tuple(cls) or is_dataclass(cls)


def classes_in(annotation: object) -> list[type]:
    """The classes whose instances a value of a type can hold, at any depth, each once."""
    found: list[type] = []

    def visit(each: object) -> None:
        if isinstance(each, type) and each not in found and is_supported(each):
            found.append(each)
            if not is_enum(each):
                with suppress(Exception):  # of a hint that names what is not there
                    for hint in get_type_hints(each).values():
                        visit(hint)
        for argument in get_args(each):
            visit(argument)

    visit(annotation)
    return found


def is_enum(cls: type) -> bool:
    """Whether instances of the class are members of an enum."""
    return issubclass(cls, Enum)


def fields_of(value: object) -> dict[str, object]:
    """The fields of an instance that is not of an enum, by name.

    Raises:
        InexactError: The instance is more than its fields, or its class hides one of them.
    """
    cls = type(value)
    if _is_model(cls):
        return _model_fields(cast("BaseModel", value))
    if _is_named_tuple(cls):
        names, own = _names(cls), set[str]()
        found: dict[str, object] = dict(zip(names, cast("tuple[object]", value), strict=True))
    else:
        _require_shown(getattr(cls, "__pydantic_fields__", {}))  # of a pydantic dataclass
        names, own = _names(cls), set(_names(cls))
        for name in names:
            if not hasattr(value, name):
                raise InexactError(f"its field {name!r} was never set")
        found = {name: getattr(value, name) for name in names}
        try:
            object.__new__(cls)
        except TypeError as exc:
            raise InexactError("its class derives from a built-in type, too") from exc
    if more := _state(value).keys() - own:
        raise InexactError(f"its attribute {min(more)!r} is not a field")
    return found


def value_of(member: Enum) -> object:
    """The value of an enum's member, by which its class finds it again.

    Raises:
        InexactError: The class does not.
    """
    with suppress(Exception):  # of a `_missing_` or a comparison of the user's
        # NaN is found as long as it is the same object, but not when it was read.
        if type(member)(member._value_) is member and member._value_ == member._value_:
            return member._value_
    raise InexactError("its value does not lead back to the member")


def instance_of(cls: type, values: Mapping[str, object]) -> object:
    """Return the instance of which `fields_of` gave this.

    Raises:
        InvalidValueError: A field is unknown, or is missing and has no default.
    """
    if _is_model(cls):
        return _model(cast("type[BaseModel]", cls), values)
    names = _names(cls)
    if _is_named_tuple(cls):
        defaults = cast("Mapping[str, object]", getattr(cls, "_field_defaults", {}))
        found = _complete(cls, names, values, lambda name: defaults[name])
        return cast("Any", tuple).__new__(cls, found.values())
    by_name = {field.name: field for field in fields(cls)}

    def default(name: str) -> object:
        field = by_name[name]
        if field.default is not MISSING:
            return field.default
        if field.default_factory is not MISSING:
            return field.default_factory()
        raise KeyError(name)

    made: object = object.__new__(cast("Any", cls))
    for name, item in _complete(cls, names, values, default).items():
        object.__setattr__(made, name, item)
    return made


def _is_named_tuple(cls: type) -> bool:
    return isinstance(getattr(cls, "_fields", None), tuple) and issubclass(cls, tuple)


def _is_model(cls: type) -> bool:
    from pydantic import BaseModel

    return issubclass(cls, BaseModel)


def _names(cls: Any) -> tuple[str, ...]:
    return cls._fields if _is_named_tuple(cls) else tuple(field.name for field in fields(cls))


def _state(value: object) -> dict[str, object]:
    """What an instance holds in its `__dict__` and its slots, but for what it can compute again."""
    state = object.__getstate__(value)  # None, a dict, or a pair of such: of __dict__ and slots
    held: dict[str, object] = {}
    for part in cast("tuple[object, ...]", state if isinstance(state, tuple) else (state,)):
        held.update(cast("dict[str, object]", part or {}))
    return {
        name: item
        for name, item in held.items()
        if name != "__orig_class__"  # of a generic dataclass: the alias that it was made with
        and not isinstance(getattr_static(type(value), name, None), cached_property)
    }


def _complete(
    cls: type,
    names: Iterable[str],
    values: Mapping[str, object],
    default: Callable[[str], object],
) -> dict[str, object]:
    """Exactly these fields, in this order."""
    found: dict[str, object] = {}
    for name in names:
        try:
            found[name] = values[name] if name in values else default(name)
        except KeyError as exc:
            raise InvalidValueError(
                f"The JSON of a {full_name(cls)} lacks the field {name!r}, which has no default."
            ) from exc
    if unknown := values.keys() - found.keys():
        raise InvalidValueError(
            f"The JSON of a {full_name(cls)} has the field {min(unknown)!r}, which the class has not."
        )
    return found


# --- pydantic ------------------------------------------------------------------------------------


def _require_shown(infos: Mapping[str, FieldInfo]) -> None:
    for name, info in infos.items():
        if info.exclude:
            raise InexactError(f"its field {name!r} has exclude=True; return a dict of the others")


def _private_defaults(cls: type[BaseModel]) -> dict[str, object]:
    from pydantic_core import PydanticUndefined

    defaults = {name: a.get_default() for name, a in cls.__private_attributes__.items()}
    return {name: item for name, item in defaults.items() if item is not PydanticUndefined}


def _model_fields(value: BaseModel) -> dict[str, object]:
    cls = type(value)
    found = _state(value)
    extra = cast("dict[str, object]", found.pop("__pydantic_extra__", None) or {})
    given = cast("set[str]", found.pop("__pydantic_fields_set__"))
    private = cast("dict[str, object]", found.pop("__pydantic_private__", None) or {})
    _require_shown(cls.model_fields)
    for name in cls.model_fields:
        if name not in found:
            raise InexactError(f"its field {name!r} was never set")
    if more := found.keys() - cls.model_fields.keys():
        raise InexactError(f"its attribute {min(more)!r} is not a field")
    defaults = _private_defaults(cls)
    for name in defaults.keys() | private.keys():
        if name not in private or name not in defaults or _differ(private[name], defaults[name]):
            raise InexactError(
                f"its private attribute {name!r} has a value of its own; return its model_dump()"
            )
    unset = [name for name in (*found, *extra) if name not in given]
    computed = {name: _computed(value, name) for name in cls.model_computed_fields}
    if clash := extra.keys() & (computed.keys() | {_DEFAULTS}):
        raise InexactError(f"its extra field {min(clash)!r} has a name that is taken")
    return {**found, **extra, **computed, **({_DEFAULTS: unset} if unset else {})}


def _differ(one: object, other: object) -> bool:
    try:
        return bool(one != other)
    except Exception:  # of an object's own comparison, or an array's
        return True


def _computed(value: BaseModel, name: str) -> object:
    try:
        return getattr(value, name)
    except Exception as exc:
        raise InexactError(f"its computed field {name!r} raised {type(exc).__name__}") from exc


def _model(cls: type[BaseModel], values: Mapping[str, object]) -> BaseModel:
    from pydantic import BaseModel

    unset = cast("list[str]", values.get(_DEFAULTS, []))
    ignored = {_DEFAULTS, *cls.model_computed_fields}
    given = {name: item for name, item in values.items() if name not in ignored}
    takes_extra = cls.model_config.get("extra") == "allow"
    extra = {name: given[name] for name in given if takes_extra and name not in cls.model_fields}

    def default(name: str) -> object:
        field = cls.model_fields[name]
        if field.is_required():
            raise KeyError(name)
        return field.get_default(call_default_factory=True, validated_data=dict(given))

    own = {name: item for name, item in given.items() if name not in extra}
    state = {
        "__dict__": _complete(cls, cls.model_fields, own, default),
        "__pydantic_extra__": extra if takes_extra else None,
        "__pydantic_fields_set__": given.keys() - set(unset),
        "__pydantic_private__": _private_defaults(cls) if cls.__private_attributes__ else None,
    }
    made = object.__new__(cls)
    BaseModel.__setstate__(made, state)  # what copying and unpickling use
    return made
