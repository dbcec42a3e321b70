"""Random conversations for property tests: the broken, the odd and the ordinary, from one seed.

`random_history(seed)` returns messages as a store may hold them after crashes, cut histories, other
writers and careless models. The same seed gives equal messages with the same ids and times, so a failing
test needs nothing but its seed. There is no other promise: what a seed gives may change with a release.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from random import Random

from tenure.marks import COVERS, as_memory, pinned
from tenure.messages import (
    AssistantMessage,
    AssistantPart,
    Media,
    Message,
    Opaque,
    Reasoning,
    ResultPart,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    ToolPart,
    ToolResult,
    Usage,
    UserMessage,
    UserPart,
)

_START = datetime(2026, 1, 1, tzinfo=UTC)
_ZONES = (UTC, timezone(timedelta(hours=-5)), timezone(timedelta(hours=5, minutes=45)))
_TOOLS = ("search", "add", "now")
_IDS = ("c1", "c2", "search", "call-0", "\U0001f527 odd id")
_TEXTS = (
    "",
    "hello",
    "two\nlines\r\n",
    "naïve ÅÄÖ 漢字 العربية",
    "\U0001f378 \U0001f468‍\U0001f469‍\U0001f467",
    "NUL \0 inside",
    "\ud83d high alone",
    "low alone \udf78.",
    '"}]\\ \u2028 </tool>',
    "e\u0301 is not \u00e9",
)


def random_history(seed: int, *, turns: int = 8) -> list[Message]:
    """Return a conversation of up to `turns` turns, a few messages each.

    In it are: several system messages, also in the middle; assistant turns with 0 to 3 tool calls, some
    without id, some with an id that was used before; results that are complete, missing, twice,
    before their call, for unknown ids, spread over several tool messages, or late, behind a user's
    message; tool messages that hold words too; reasoning, also at the end of a turn; summaries of
    earlier messages, memory messages and pinned ones; media, unknown parts and unknown fields; and
    texts with NUL and lone surrogates.
    """
    return _Writer(Random(seed)).history(turns)  # noqa: S311 # not a secret


class _Writer:
    """Writes one conversation."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._count = 0
        self._waiting: list[ToolResult] = []  # to come later

    def history(self, turns: int) -> list[Message]:
        random = self._random
        messages: list[Message] = [self._system()] if random.random() < 0.5 else []
        for _ in range(random.randint(0, turns)):
            if random.random() < 0.15:
                messages.append(self._system())
            if random.random() < 0.8:
                messages.append(self._user())
            messages += self._turn()
            if random.random() < 0.1:
                messages.append(self._summary(messages))
        if random.random() < 0.3:
            messages += self._results(self._waiting)
        messages = [self._marked(message) for message in messages]
        if messages and random.random() < 0.1:
            messages.insert(random.randrange(len(messages)), random.choice(messages))
        return messages

    def _turn(self) -> list[Message]:
        random = self._random
        calls = tuple(self._call() for _ in range(random.choice((0, 0, 1, 1, 2, 3))))
        turn = self._assistant(calls)
        results = [self._result(call.id, call.name) for call in calls]
        fate = random.choice(
            ("complete",) * 4 + ("late", "lost", "twice", "early", "stray", "mixed")
        )
        if fate == "late":
            waiting, self._waiting = self._waiting, results
            return [turn, *self._results(waiting)]
        if fate == "lost":
            return [turn, *self._results(results[1:])]
        if fate == "twice":
            return [turn, *self._results(results), *self._results(results)]
        if fate == "early":
            return [*self._results(results), turn]
        if fate == "stray":
            results.append(self._result(random.choice((None, *_IDS, "unknown")), "search"))
        if fate == "mixed":
            results += self._waiting
            self._waiting = []
        random.shuffle(results)
        return [turn, *self._results(results)]

    def _results(self, results: list[ToolResult]) -> list[Message]:
        """Pack results into tool messages, with words and whole messages in between."""
        random = self._random
        messages: list[Message] = []
        parts: list[ToolPart] = []
        for result in results:
            parts.append(result)
            if random.random() < 0.2:
                parts.insert(random.randrange(len(parts) + 1), random.choice(self._words()))
            if random.random() < 0.4:
                messages.append(self._tool(parts))
                parts = []
                if random.random() < 0.15:
                    messages.append(random.choice((self._user, self._system))())
        return [*messages, self._tool(parts)] if parts else messages

    # --- one message ---

    def _system(self) -> SystemMessage:
        parts = (Text(text=self._random.choice(_TEXTS)),)
        return SystemMessage(parts=parts, id=self._id(), created_at=self._time())

    def _user(self) -> UserMessage:
        parts: list[UserPart] = [*self._words()]
        return UserMessage(
            parts=tuple(parts), id=self._id(), created_at=self._time(), metadata=self._mapping()
        )

    def _assistant(self, calls: tuple[ToolCall, ...]) -> AssistantMessage:
        random = self._random
        parts: list[AssistantPart] = [*calls]
        if random.random() < 0.3:
            thought = Reasoning(text=random.choice(_TEXTS), provider={"signature": "c2lnbg=="})
            parts.insert(0, thought)
        if random.random() < 0.05:
            parts.append(Reasoning(text=random.choice(_TEXTS)))
        if not parts or random.random() < 0.4:
            parts.insert(random.randrange(len(parts) + 1), random.choice(self._words()))
        return AssistantMessage(
            parts=tuple(parts),
            id=self._id(),
            created_at=self._time(),
            usage=Usage(input_tokens=10, output_tokens=2, details={"cached": 3}),
            finish_reason=random.choice((None, "stop", "tool_call")),
            model=random.choice((None, "scripted")),
            provider=self._mapping(),
            extra=self._extra(),
        )

    def _summary(self, messages: list[Message]) -> AssistantMessage:
        covered = [message.id for message in messages[: self._random.randrange(len(messages)) + 1]]
        return AssistantMessage(
            parts=(Text(text="what was said"),),
            id=self._id(),
            created_at=self._time(),
            metadata={COVERS: covered},
        )

    def _marked(self, message: Message) -> Message:
        mark = self._random.random()
        if mark < 0.04:
            return as_memory(message)
        return pinned(message) if mark < 0.08 else message

    def _tool(self, parts: list[ToolPart]) -> ToolMessage:
        return ToolMessage(
            parts=tuple(parts), id=self._id(), created_at=self._time(), metadata=self._mapping()
        )

    # --- one part ---

    def _call(self) -> ToolCall:
        random = self._random
        call_id = random.choice((None, f"call-{self._count}-{random.randrange(99)}", *_IDS))
        args = random.choice(
            ("{}", "", "not JSON", json.dumps({"q": random.choice(_TEXTS)}), '{"q": [1, null]}')
        )
        return ToolCall(id=call_id, name=random.choice(_TOOLS), args=args, provider=self._mapping())

    def _result(self, call_id: str | None, name: str) -> ToolResult:
        random = self._random
        parts: tuple[ResultPart, ...] = tuple(self._words()) if random.random() < 0.8 else ()
        return ToolResult(
            call_id=call_id,
            name=name,
            parts=parts,
            is_error=random.random() < 0.2,
            extra=self._extra(),
        )

    def _words(self) -> list[Text | Media | Opaque]:
        random = self._random
        parts: list[Text | Media | Opaque] = [Text(text=random.choice(_TEXTS))]
        if random.random() < 0.1:
            parts.append(Media(media_type="image/png", data=random.randbytes(9), filename="x.png"))
        if random.random() < 0.05:
            parts.append(Media(media_type="audio/wav", url="https://example.org/a.wav"))
        if random.random() < 0.1:
            parts.append(Opaque(kind="video_call", data={"minutes": 3, "data": {"kind": "deep"}}))
        return parts

    # --- small things ---

    def _mapping(self) -> dict[str, object]:
        if self._random.random() < 0.7:
            return {}
        text = self._random.choice(_TEXTS)
        return {text: [None, True, 1.5, {"deep": text}], "id": "not an id"}

    def _extra(self) -> dict[str, object]:
        return {"added_later": {"by": ["a newer version"]}} if self._random.random() < 0.2 else {}

    def _id(self) -> str:
        self._count += 1
        return f"m-{self._count:04d}"

    def _time(self) -> datetime:
        zone = self._random.choice(_ZONES)
        return (_START + timedelta(seconds=self._count, microseconds=7)).astimezone(zone)
