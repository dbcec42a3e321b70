"""When to compress a history without being told: `compress_when`, for agents and for chat memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tenure.compression import HistoryCompression, KeepLastN, at_least, checked_strategy
from tenure.errors import InvalidValueError, ModelError
from tenure.messages import Message, SystemMessage, Usage
from tenure.models import Model, ModelRequest, resolve_model
from tenure.sessions import WriteSession
from tenure.tokens import TokenCounter, TokenEstimator

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionRule:
    """When to compress without being told, and how. Made by `compress_when`."""

    strategy: HistoryCompression
    messages: int | None
    tokens: int | None
    fraction_of_context: float | None
    retrieval_model: Model | None
    counter: TokenCounter

    async def apply(self, session: WriteSession, *, upcoming: Iterable[Message] = ()) -> None:
        """Compress a session's history if it is due, with the messages that are to be added next.

        When the model cannot write the summary, the history stays as it is, and a warning is logged.
        """
        messages = session.prompt.messages
        if not self.is_due([*messages, *upcoming], session.model.profile.context_window):
            return
        try:
            await session.replace_history_with_tldr(
                self.strategy, retrieval_model=self.retrieval_model
            )
        except ModelError as exc:
            _log.warning("The history could not be compressed, and goes on as it is: %s", exc)

    def learn(self, request: ModelRequest, usage: Usage) -> None:
        """Have the counter learn from what a request has cost, if it is one that can."""
        if isinstance(self.counter, TokenEstimator):
            self.counter.learn(request.messages, request.tools, usage)

    def is_due(self, messages: Sequence[Message], context_window: int | None) -> bool:
        """Whether a history has reached one of the limits, and there is something to compress."""
        limits = [self.tokens] if self.tokens is not None else []
        if self.fraction_of_context is not None and context_window is not None:
            limits.append(int(self.fraction_of_context * context_window))
        spoken = sum(not isinstance(message, SystemMessage) for message in messages)
        return (
            (self.messages is not None and spoken >= self.messages)
            or (bool(limits) and sum(map(self.counter, messages)) >= min(limits))
        ) and self.strategy.is_worthwhile(messages)


DEFAULT_KEPT = 10
"""How many messages the default strategy of `compress_when` keeps as they are; a guess."""


def compress_when(
    *,
    messages: int | None = None,
    tokens: int | None = None,
    fraction_of_context: float | None = None,
    strategy: HistoryCompression | None = None,
    retrieval_model: object = None,
    counter: TokenCounter | None = None,
) -> CompressionRule:
    """Say when a history shall be compressed: as soon as it reaches one of these limits.

    Args:
        messages: So many messages, system messages not counted.
        tokens: So many tokens, as a `TokenCounter` counts them.
        fraction_of_context: Such a part (0 to 1) of the model's context window; does nothing where
            the window is not known.
        strategy: How; `KeepLastN(10)` by default.
        retrieval_model: Who writes the summary; the run's own model by default.
        counter: Counts the tokens of a message; a `TokenEstimator` by default.

    Raises:
        UnknownModelError: `retrieval_model` is no model.
        InvalidValueError: No limit is given, one cannot be, or `KeepLastN` keeps as many messages as
            the limit allows, so that every request would compress.
    """
    chosen = checked_strategy(strategy if strategy is not None else KeepLastN(DEFAULT_KEPT))
    if messages is None and tokens is None and fraction_of_context is None:
        raise InvalidValueError("Give a limit: messages=, tokens= or fraction_of_context=.")
    at_least(1, **{k: v for k, v in (("messages", messages), ("tokens", tokens)) if v is not None})
    if fraction_of_context is not None and not 0 < fraction_of_context <= 1:
        raise InvalidValueError(
            f"fraction_of_context={fraction_of_context} cannot be; give more than 0, up to 1."
        )
    if messages is not None and isinstance(chosen, KeepLastN) and messages < chosen.n + 4:
        raise InvalidValueError(
            f"compress_when(messages={messages}) is too few for KeepLastN({chosen.n}), which leaves "
            f"that many and a few more; give messages={chosen.n + 4} or more."
        )
    return CompressionRule(
        strategy=chosen,
        messages=messages,
        tokens=tokens,
        fraction_of_context=fraction_of_context,
        retrieval_model=resolve_model(retrieval_model) if retrieval_model is not None else None,
        counter=counter if counter is not None else TokenEstimator(),
    )
