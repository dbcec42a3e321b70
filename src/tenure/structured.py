"""Answers of a type: from a Python type to a JSON schema, and from a model's text to a value.

`OutputSchema` holds both directions. Asking is the session's business (`sessions.py`): where the model
can be held to a schema by its provider, the request carries it; elsewhere an instruction with the schema
is the last message of the request. Neither stays in the history.

A schema whose root is no object is asked for as an object with the one key `result`, because providers
take only objects; an answer without that wrapping is understood all the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from tenure.errors import InvalidValueError, StructuredOutputError
from tenure.messages import AssistantMessage, Json
from tenure.signatures import explained, json_schema_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_KEY = "result"  # of the object around an answer that is none
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_FENCE = re.compile(r"```[^`\n]*\n(.*?)```", re.DOTALL)
_MOST_TRIES = 200  # to read JSON somewhere in a text; a guess, so that no text takes for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredResult(Generic[T_co]):
    """What came of asking for an answer of a type.

    Args:
        message: The model's reply as it was, also when the value was repaired.
        value: The answer; None when there is an error, or when the reply calls tools.
        error: What is wrong with the reply, or None.
    """

    message: AssistantMessage
    value: T_co | None = None
    error: StructuredOutputError | None = None

    @property
    def raw(self) -> str:
        """The text of the reply."""
        return self.message.text

    def unwrap(self) -> T_co:
        """Return the value.

        Raises:
            StructuredOutputError: There is none.
        """
        if self.error is not None:
            raise self.error
        return cast("T_co", self.value)  # without an error, of the type that was asked for


class OutputSchema(Generic[T]):
    """A type that a model's answers are to have.

    Attributes:
        output: The type, or the JSON schema, as it was given.
        json_schema: What the model or its provider is told.
    """

    def __init__(self, output: type[T] | Mapping[str, Json] | object) -> None:
        """Make the schema of a type, or take a ready one.

        Args:
            output: A pydantic model, dataclass, TypedDict, `list[...]`, union or any other type that
                pydantic knows; or a JSON schema, whose values are what `json.loads` gives.

        Raises:
            InvalidValueError: There is no schema for this type, or the JSON schema is none.
        """
        self.output = output
        if isinstance(output, Mapping):
            self._plain = dict(cast("Mapping[str, Json]", output))
            _validator_of(self._plain)
            self._adapter: TypeAdapter[Any] | None = (
                None  # of any type at all, before it checks one
            )
        else:
            self._adapter = _adapter_of(output)
            self._plain = _described(self._adapter, output)
        self._is_wrapped = self._plain.get("type") != "object"
        self.json_schema: Mapping[str, Json] = (
            _wrapped(self._plain) if self._is_wrapped else self._plain
        )

    def parse(self, text: str) -> T:
        """Return the value in a model's text.

        The text may have words or a code fence around the JSON; the first JSON in it that is of the
        type counts.

        Raises:
            StructuredOutputError: There is none; it says what is wrong, without the text itself.
        """
        why = ""
        for found in self._candidates(text):
            try:
                return self._checked(found)
            except ValueError as exc:
                why = why or str(exc)
        raise StructuredOutputError(
            f"The answer is not of the type asked for: {why or 'there is no JSON in it'}.", raw=text
        )

    def _candidates(self, text: str) -> Iterator[str]:
        """The JSON texts that may be the answer: what is wrapped as it was asked for comes first."""
        found = list(_json_texts(text))
        if self._is_wrapped:
            for whole in found:
                outer = json.loads(whole)
                if isinstance(outer, dict) and list(cast("dict[str, Json]", outer)) == [_KEY]:
                    yield json.dumps(outer[_KEY])
        yield from found

    def instruction(self, examples: Iterable[T] = (), *, with_schema: bool) -> str:
        """Return what a model is told of the answer that it shall give.

        Args:
            examples: Answers as they could be.
            with_schema: Whether to show the schema; a provider that enforces it does not need that.
        """
        said: list[str] = []
        if with_schema:
            said.append(
                "Answer with JSON that follows the JSON schema below, and with nothing else: no "
                f"explanation and no code fence.\n\nJSON schema:\n{_json(self.json_schema)}"
            )
        shown = [self._shown(example) for example in examples]
        if shown:
            said.append("Examples of valid answers:\n" + "\n".join(shown))
        return "\n\n".join(said)

    async def parse_or_repair(
        self, text: str, *, retries: int, ask: Callable[[str], Awaitable[str]]
    ) -> T:
        """Return the value in a model's text, or in what `ask` makes of it in up to `retries` tries.

        Raises:
            StructuredOutputError: None of the texts was of the type; `raw` is the first one.
        """
        answer = text
        for left in range(retries, -1, -1):
            try:
                return self.parse(answer)
            except StructuredOutputError as exc:
                if not left:
                    tries = f" after {retries} retries" if retries else ""
                    error = f"Unable to parse structure{tries}: {exc}"
                    raise StructuredOutputError(error, raw=text) from exc
                answer = await ask(self._repair_request(answer, exc))
        raise AssertionError("a range ends with its last value")

    def _repair_request(self, text: str, error: StructuredOutputError) -> str:
        return (
            "The answer below should be JSON that follows the JSON schema, and is not. Write it anew, "
            "with the same content, so that it follows the schema. Answer with the JSON only.\n\n"
            f"What is wrong: {error}\n\nJSON schema:\n{_json(self.json_schema)}\n\nAnswer:\n{text}"
        )

    def _checked(self, text: str) -> T:
        """The value of one JSON text; raises `ValueError` with the reason."""
        if self._adapter is None:
            return _valid(json.loads(text), self._validator)
        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(_utf8(text))
        except ValidationError as exc:
            raise ValueError(explained(exc)) from exc

    def _shown(self, example: T) -> str:
        try:
            if self._adapter is not None:
                plain = _dumped(self._adapter, example)
            else:
                plain = _valid(cast("Json", example), self._validator)
            return _json({_KEY: plain} if self._is_wrapped else plain)
        except (ValueError, TypeError) as exc:
            raise InvalidValueError(
                f"An example of type {type(example).__name__} is no answer of the type asked for; "
                "give another."
            ) from exc

    @cached_property
    def _validator(self) -> Any:  # jsonschema has no types
        return _validator_of(self._plain)


def _adapter_of(output: object) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(cast("type[object]", output))
    except (PydanticUserError, NameError) as exc:
        raise _no_type(output, exc) from exc


def _described(adapter: TypeAdapter[Any], output: object) -> dict[str, Json]:
    from pydantic.errors import PydanticUserError

    try:
        return json_schema_of(adapter)
    except PydanticUserError as exc:
        raise _no_type(output, exc) from exc


def _no_type(output: object, error: Exception) -> InvalidValueError:
    name = output.__name__ if isinstance(output, type) else repr(output)
    why = str(error).partition("\n")[0].rstrip(".")
    return InvalidValueError(f"Answers cannot be asked for as {name}: {why}.")


def _validator_of(schema: dict[str, Json]) -> Any:
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry

    cls = validator_for(schema)
    try:
        cls.check_schema(schema)
    except SchemaError as exc:
        raise InvalidValueError(f"This is no JSON schema: {exc.message}; correct it.") from exc
    return cls(schema, registry=Registry())  # one that fetches nothing from the network


def _dumped(adapter: TypeAdapter[Any], example: object) -> Json:
    """An example as JSON; raises `ValueError` when it is not of the type, or cannot be JSON."""
    checked = adapter.validate_python(example)
    return adapter.dump_python(checked, mode="json", by_alias=True, warnings="error")


def _utf8(text: str) -> bytes:
    """JSON that pydantic can read: half a character, written out or escaped, becomes '?'."""
    if _SURROGATE.search(text):
        text = json.dumps(json.loads(text), ensure_ascii=False)
    return text.encode("utf-8", "replace")


def _valid(value: Json, validator: Any) -> Any:
    from referencing.exceptions import Unresolvable

    try:
        problem = next(iter(validator.iter_errors(value)), None)
    except Unresolvable as exc:
        raise ValueError(f"the schema refers to {exc.ref!r}, which it does not hold") from exc
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc
    if problem is not None:  # the library's own sentence may repeat the value
        raise ValueError(f"{problem.json_path}: it breaks the rule {problem.validator!r}")
    return value


def _wrapped(schema: Mapping[str, Json]) -> dict[str, Json]:
    """An object with the value under one key; what belongs to the root stays there."""
    root = {key: value for key, value in schema.items() if key in ("$defs", "$schema", "$id")}
    inner = {key: value for key, value in schema.items() if key not in root}
    return {
        **cast("dict[str, Json]", _rebased(root)),
        "type": "object",
        "properties": {_KEY: _rebased(inner)},
        "required": [_KEY],
        "additionalProperties": False,
    }


def _rebased(schema: Json) -> Json:
    """A schema whose references find what has moved under the key."""
    if isinstance(schema, list):
        return [_rebased(item) for item in cast("list[Json]", schema)]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _rebased(value) for key, value in cast("dict[str, Json]", schema).items()}
    target = moved.get("$ref")
    if isinstance(target, str) and target.startswith("#") and not target.startswith("#/$defs/"):
        moved["$ref"] = f"#/properties/{_KEY}{target[1:]}"
    return moved


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _json_texts(text: str) -> Iterator[str]:
    """The JSON texts in a text: itself, what is in code fences, then whatever begins with a bracket."""
    for whole in (text, *_FENCE.findall(text)):
        try:
            json.loads(whole)
        except (ValueError, RecursionError):
            continue
        yield whole
    decoder = json.JSONDecoder()
    end = tries = 0
    for place in re.finditer(r"[{\[]", text):
        if place.start() < end:
            continue  # inside one that was found
        if tries == _MOST_TRIES:
            return
        tries += 1
        try:
            _, end = decoder.raw_decode(text, place.start())
        except (ValueError, RecursionError):
            continue
        yield text[place.start() : end]
