"""How many tokens a message costs: what the provider counted where that is known, else an estimate.

A counter is any function of a message that returns a number of tokens. `TokenEstimator` is the one that
needs nothing: it counts characters by script, and calibrates itself on the usage that providers report
with their replies. Somebody who has the model's own tokenizer gives a function with it instead.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tenure.messages import (
    AssistantMessage,
    Media,
    Message,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)

if TYPE_CHECKING:
    from tenure.messages import Usage
    from tenure.tools import ToolSpec

TokenCounter: TypeAlias = Callable[[Message], int]
"""Returns how many tokens a message costs in a request; at least `OVERHEAD`."""

OVERHEAD = 4
"""Tokens that any message costs beside its content, for its role and its borders.

Source: OpenAI's own counting of chat messages (3 and its role); others are alike.
"""

_ASCII_CHARS = 4.0  # characters in a token of English; the rule of thumb of OpenAI and Anthropic
_OTHER_CHARS = 2.0  # in other alphabets; a guess, tokenizers differ between 1.5 and 3
_WIDE_CHARS = 1.0  # of Chinese, Japanese and Korean; a guess, between 0.7 and 1.5
_WIDE = re.compile("[\u1100-\u11ff\u2e80-\U0010ffff]+")
_MEDIA_TOKENS = 1_000  # an image of some size at OpenAI, Anthropic and Google; a guess for the rest
_LEAST, _MOST = 0.5, 4.0  # how far calibration may move an estimate; a guess
_FADING = 0.9  # what an observation still weighs at the next one; a guess


class TokenEstimator:
    """Counts tokens without a tokenizer. One object learns from all requests that it is told of.

    Attributes:
        factor: By what estimates are multiplied: 1 at first, and then what providers counted, divided
            by what was estimated: over the requests so far, the latest weighing most, or in the last
            one, whichever is more.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._counted = 0.0
        self._estimated = 0.0

    def __call__(self, message: Message) -> int:
        """Return the tokens of a message: those that the provider counted for a reply, if it did."""
        if isinstance(message, AssistantMessage) and message.usage is not None:
            counted = message.usage.output_tokens
            if counted:
                return counted + OVERHEAD
        return math.ceil(_estimate(message.parts) * self.factor) + OVERHEAD

    def tools(self, tools: Iterable[ToolSpec]) -> int:
        """Return the tokens of what a model is told of these tools."""
        return math.ceil(sum(map(_estimate_of_tool, tools)) * self.factor)

    def learn(self, messages: Sequence[Message], tools: Iterable[ToolSpec], usage: Usage) -> None:
        """Take in what a provider counted for a request with these messages and tools."""
        if not usage.input_tokens:
            return
        overhead = OVERHEAD * len(messages)
        estimate = sum(_estimate(m.parts) for m in messages) + sum(map(_estimate_of_tool, tools))
        self._counted = self._counted * _FADING + max(usage.input_tokens - overhead, 0)
        self._estimated = self._estimated * _FADING + estimate
        if self._estimated and estimate:
            # Rather too much than too little: a request over the budget may be refused.
            latest = max(usage.input_tokens - overhead, 0) / estimate
            factor = max(self._counted / self._estimated, latest)
            self.factor = min(max(factor, _LEAST), _MOST)


def _estimate(parts: Iterable[Part]) -> float:
    total = 0.0
    for part in parts:
        match part:
            case Text() | Reasoning():
                total += _tokens_of(part.text)
            case ToolCall():
                total += _tokens_of(part.name) + _tokens_of(part.args)
            case ToolResult():
                total += _tokens_of(part.name) + _estimate(part.parts)
            case Media():
                total += _MEDIA_TOKENS
            case Opaque():
                total += _tokens_of(json.dumps(part.data, default=str))
    return total


def _estimate_of_tool(tool: ToolSpec) -> float:
    schema = json.dumps(tool.parameters, default=str)
    return OVERHEAD + _tokens_of(tool.name) + _tokens_of(tool.description) + _tokens_of(schema)


def _tokens_of(text: str) -> float:
    if text.isascii():
        return len(text) / _ASCII_CHARS
    narrow = sum(char < "\x80" for char in text)
    wide = sum(char >= "\u1100" for char in text if not "\u1200" <= char < "\u2e80")
    return narrow / _ASCII_CHARS + wide / _WIDE_CHARS + (len(text) - narrow - wide) / _OTHER_CHARS
