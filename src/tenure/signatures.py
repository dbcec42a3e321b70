"""What a function's signature and docstring say of it: for the model a schema, for a call a check."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeGuard, TypeVar, cast, get_type_hints

from tenure.errors import InvalidValueError
from tenure.messages import Json

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")


def _as_written(function: Callable[..., object]) -> Callable[..., object]:
    """The function with the annotations and the docstring, inside a partial or a callable object."""
    while isinstance(function, functools.partial):
        function = cast("Callable[..., object]", function.func)
    return function if inspect.isroutine(function) else type(function).__call__


def is_async(
    function: Callable[..., object],
) -> TypeGuard[Callable[..., Awaitable[object]]]:
    """Whether a call of a function, a partial or a callable object gives a coroutine."""
    while isinstance(function, functools.partial):
        function = cast("Callable[..., object]", function.func)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        type(function).__call__
    )


async def awaited(value: object) -> object:
    """Return a value, or what it gives when it is awaited."""
    return await cast("Awaitable[object]", value) if inspect.isawaitable(value) else value


def docstring_of(function: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """The docstring's text before its sections, and what it says of each parameter."""
    import griffe

    docstring = inspect.getdoc(_as_written(function))
    if not docstring:
        return "", {}
    # Without the options griffe logs whatever it finds untidy, each time a tool is made.
    sections = griffe.parse_auto(
        griffe.Docstring(docstring),
        default="google",
        per_style_options={
            "google": {"warnings": False},
            "numpy": {"warnings": False},
            "sphinx": {"warnings": False},
        },
    )
    texts: list[str] = []
    parameters: dict[str, str] = {}
    for section in sections:
        if isinstance(section, griffe.DocstringSectionText) and not parameters:
            texts.append(section.value)
        elif isinstance(section, griffe.DocstringSectionParameters):
            parameters |= {item.name: item.description for item in section.value}
    return "\n\n".join(texts).strip(), parameters


def arguments_adapter(
    function: Callable[..., object], name: str
) -> TypeAdapter[tuple[tuple[object, ...], dict[str, object]]]:
    """Validates a mapping of arguments into the positional and named ones of a call."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation

    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as exc:
        raise InvalidValueError(
            f"Tool {name!r} has no signature to read; wrap it in a function of your own."
        ) from exc
    for position, parameter in enumerate(signature.parameters.values()):
        if position == 0 and parameter.name in ("self", "cls"):
            raise InvalidValueError(
                f"Tool {name!r} is a method without its object; make a tool of the bound method, "
                "as in tool(thing.method)."
            )
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise InvalidValueError(
                f"Tool {name!r} has the positional-only parameter {parameter.name!r}, which a model "
                "cannot fill; make it an ordinary one."
            )

    @functools.wraps(function)
    def captured(*args: object, **kwargs: object) -> tuple[tuple[object, ...], dict[str, object]]:
        return args, kwargs

    try:
        captured.__annotations__ = _annotations_of(function)
        # pydantic takes any callable; its annotation speaks of types only.
        return TypeAdapter(cast("type[tuple[tuple[object, ...], dict[str, object]]]", captured))
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, NameError) as exc:
        raise InvalidValueError(
            f"Tool {name!r} has a parameter of a type that cannot be validated: {exc}"
        ) from exc


def _annotations_of(function: Callable[..., object]) -> dict[str, object]:
    """The types of the parameters, also those of partials, of callable objects and of local types."""
    function = _as_written(function)
    try:
        return get_type_hints(function, include_extras=True)
    except NameError:
        # Under `from __future__ import annotations` a type may be local to whoever makes the tool.
        frame = inspect.currentframe()
        while frame is not None:
            with suppress(NameError):
                return get_type_hints(function, localns=frame.f_locals, include_extras=True)
            frame = frame.f_back
        raise


def schema_of(
    adapter: TypeAdapter[tuple[tuple[object, ...], dict[str, object]]],
    name: str,
    descriptions: Mapping[str, str],
) -> dict[str, Json]:
    """The JSON schema of a tool's arguments, with what the docstring says of each.

    Raises:
        InvalidValueError: A parameter is of a type that JSON schema cannot describe.
    """
    from pydantic.errors import PydanticInvalidForJsonSchema

    try:
        schema = json_schema_of(adapter)
    except PydanticInvalidForJsonSchema as exc:
        raise InvalidValueError(
            f"Tool {name!r} has a parameter of a type that JSON schema cannot describe: {exc}"
        ) from exc
    for parameter, details in cast(
        "dict[str, dict[str, Json]]", schema.get("properties", {})
    ).items():
        if parameter in descriptions:
            details.setdefault("description", descriptions[parameter])
    return schema


def json_schema_of(adapter: TypeAdapter[T]) -> dict[str, Json]:
    """The JSON schema of a type, without titles: they repeat the names and cost tokens.

    Raises:
        PydanticInvalidForJsonSchema: The type has none.
    """
    from pydantic.json_schema import GenerateJsonSchema

    class WithoutTitles(GenerateJsonSchema):
        def emit_warning(self, kind: object, detail: str) -> None:
            """Say nothing: a default that JSON has not is left out, and nobody can help it."""

        def field_title_should_be_set(self, schema: object) -> bool:
            return False

        def get_title_from_name(self, name: str) -> str:
            return ""

    schema = adapter.json_schema(schema_generator=WithoutTitles)
    for details in schema.get("properties", {}).values():
        if not details.get("title", "-"):
            del details["title"]
    return schema


def explained(error: ValidationError) -> str:
    """What is wrong with each argument, in one line and without its value."""
    return "; ".join(
        f"{'.'.join(str(step) for step in item['loc']) or 'arguments'}: {item['msg']}"
        for item in error.errors(include_url=False, include_context=False, include_input=False)
    )
