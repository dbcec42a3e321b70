"""What a chat memory does to histories besides keeping them: windows, filters, compression.

`ChatMemory` has these methods. Each adds something and returns the object, so that one can follow another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Self

from tenure.compression import HistoryCompression
from tenure.errors import InvalidValueError
from tenure.features.preprocessing import (
    AnyPreprocessor,
    FilterMessagesPreprocessor,
    Moment,
    Preprocessor,
    WindowSizePreprocessor,
    WindowTokensPreprocessor,
)
from tenure.messages import Message
from tenure.tokens import TokenCounter, TokenEstimator
from tenure.triggers import CompressionRule, compress_when
from tenure.windows import TokenBudget, WindowOptions


class ChatOptions:
    """The pre-processors, the budget and the compression of a chat memory."""

    def __init__(self) -> None:
        self._preprocessors: list[tuple[AnyPreprocessor, tuple[Moment, ...]]] = []
        self._counter = TokenEstimator()  # where none is given
        self._budget: TokenBudget | None = None
        self._compression: CompressionRule | None = None

    def window_size(
        self,
        size: int,
        *,
        stride: int = 1,
        align_to_user: bool = False,
        keep_first_user: bool = False,
        keep_pinned: bool = False,
    ) -> Self:
        """Go on with only the last `size` messages; returns self. `windows.window` says the rest.

        Costs as much as the window is long. With `keep_first_user` or `keep_pinned` the whole history
        is read, and costs as much as it is long.

        Raises:
            InvalidValueError: `size` is negative, or `stride` does not fit it.
        """
        options = WindowOptions(
            align_to_user=align_to_user, keep_first_user=keep_first_user, keep_pinned=keep_pinned
        )
        return self.add_preprocessor(WindowSizePreprocessor(size, stride, options))

    def window_tokens(
        self,
        budget: int,
        *,
        counter: TokenCounter | None = None,
        align_to_user: bool = False,
        keep_first_user: bool = False,
        keep_pinned: bool = False,
    ) -> Self:
        """Go on with only the last messages that cost at most `budget` tokens; returns self.

        No request of the run costs more than `budget`, system prompt and tools included: when the run
        itself grows, the oldest messages are left out of the next request. Leave room for the reply.
        (Summaries are asked for with what they summarise, which the budget does not cut.)

        Args:
            budget: In tokens.
            counter: Counts the tokens of a message; by default a `TokenEstimator` of this memory's
                own, which learns from the usage that the model's provider reports, and which
                `compress_when` uses, too.
            align_to_user: See `windows.WindowOptions`.
            keep_first_user: The same. It, and `keep_pinned`, read the whole history.
            keep_pinned: The same.

        Raises:
            InvalidValueError: `budget` is less than 1.
        """
        options = WindowOptions(
            align_to_user=align_to_user, keep_first_user=keep_first_user, keep_pinned=keep_pinned
        )
        self._budget = TokenBudget(
            tokens=budget,
            counter=counter if counter is not None else self._counter,
            options=options,
        )
        return self.add_preprocessor(WindowTokensPreprocessor(self._budget, options))

    def compress_when(
        self,
        *,
        messages: int | None = None,
        tokens: int | None = None,
        fraction_of_context: float | None = None,
        strategy: HistoryCompression | None = None,
        retrieval_model: object = None,
        counter: TokenCounter | None = None,
    ) -> Self:
        """Compress what was loaded, before a run, when it reaches a limit; returns self.

        Whatever the strategy is: `Agent(compression=...)` does the same within the default one. Args
        and errors are those of `tenure.compress_when`. A store keeps the history as it was on the
        branch before.
        """
        self._compression = compress_when(
            messages=messages,
            tokens=tokens,
            fraction_of_context=fraction_of_context,
            strategy=strategy,
            retrieval_model=retrieval_model,
            counter=counter if counter is not None else self._counter,
        )
        return self

    def filter_messages(self, predicate: Callable[[Message], object]) -> Self:
        """Go on with only the messages for which `predicate` is true; returns self."""
        return self.add_preprocessor(FilterMessagesPreprocessor(predicate))

    def add_preprocessor(
        self,
        preprocessor: AnyPreprocessor,
        *,
        apply_on: Sequence[Moment] = ("load", "store"),
    ) -> Self:
        """Add a pre-processor behind those added before; returns self.

        Args:
            preprocessor: An object with `preprocess(messages)`, or a function of messages.
            apply_on: When it works: `"load"`, `"store"` or both.

        Raises:
            InvalidValueError: It is neither, or `apply_on` holds something else.
        """
        if not isinstance(preprocessor, Preprocessor) and not callable(preprocessor):
            raise InvalidValueError(
                f"{preprocessor!r} is no pre-processor; give a function of a list of messages, or "
                "an object with preprocess(messages)."
            )
        if not apply_on or any(moment not in ("load", "store") for moment in apply_on):
            raise InvalidValueError(f"apply_on={apply_on!r} must hold 'load', 'store' or both.")
        self._preprocessors.append((preprocessor, tuple(apply_on)))
        return self

    def _at(self, moment: Moment) -> Iterable[AnyPreprocessor]:
        return (p for p, moments in self._preprocessors if moment in moments)
