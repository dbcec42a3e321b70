"""Every error that tenure raises, in one tree.

    TenureError
    ├── UsageError                     your code or configuration: fix it and run again
    │   ├── InvalidValueError          an argument of the wrong value; a ValueError too
    │   ├── PromptError                messages that do not fit together
    │   ├── BudgetError                messages that cannot be left out cost too many tokens
    │   ├── SessionClosedError         an LLM session used after its block; a RuntimeError too
    │   ├── NestedSessionError         an LLM session opened inside another; a RuntimeError too
    │   ├── UnknownToolError           a tool that the agent was not given; a LookupError too
    │   ├── PreprocessorError          a pre-processor that returned something else than messages
    │   ├── UnknownModelError          a model name that nothing answers to
    │   ├── MissingExtraError          an optional package is not installed; an ImportError too
    │   ├── IterationLimitError        an agent that did not finish in `max_iterations` steps
    │   ├── StuckInNodeError           a graph with no way on from a node
    │   ├── UnknownNodeError           a graph has no node to go on from; a LookupError too
    │   ├── NothingToResumeError       `resume="require"`, and no run was left unfinished
    │   └── UndoFailedError            a rollback could not undo what a tool has done
    ├── StoreError                     the database
    │   ├── StoreOpenError             it cannot be opened: a directory, not SQLite, no permission
    │   ├── SchemaVersionError         it was written by a newer tenure
    │   ├── StoreClosedError           used after `close()`
    │   ├── ConflictError              somebody else appended first
    │   ├── UnknownConversationError   there is no conversation of this name
    │   ├── ConversationExistsError    there is one of this name already
    │   ├── ConversationBusyError      another run is using the conversation
    │   ├── LeaseLostError             another run has taken the conversation over
    │   └── HistoryNotStoredError      the answer exists, storing it failed; `.result` has the answer
    └── ModelError                     a model, or an embedder
        ├── ModelRequestError          the request failed; `.status_code` for HTTP answers
        ├── EmbeddingError             an embedder failed, or there is none
        ├── EmptyReplyError            the model answered with nothing
        └── StructuredOutputError      the answer is not of the type asked for; `.raw` has its text

A message says what happened, with which value, and what to do next. The docstring of a leaf is its
default message. Message bodies and secrets never appear in an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.events import RunResult


class TenureError(Exception):
    """The base of every error of tenure's own."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message if message is not None else (type(self).__doc__ or "").strip())


class UsageError(TenureError):
    """The calling code or its configuration is wrong."""


class InvalidValueError(UsageError, ValueError):
    """An argument has a value that cannot work."""


class PromptError(UsageError):
    """These messages do not fit together."""


class BudgetError(UsageError):
    """The messages that have to be sent cost more tokens than the budget allows."""


class SessionClosedError(UsageError, RuntimeError):
    """Cannot use session after it was closed"""


class NestedSessionError(UsageError, RuntimeError):
    """An LLM session cannot be opened inside another one of the same context."""


class UnknownToolError(UsageError, LookupError):
    """The agent has no such tool."""


class PreprocessorError(UsageError):
    """A chat memory pre-processor returned something else than a list of messages."""


class UnknownModelError(UsageError):
    """No model answers to this name."""


class MissingExtraError(UsageError, ImportError):
    """An optional package that this needs is not installed."""


class StuckInNodeError(UsageError):
    """No edge of a graph matches what a node returned; nothing of the run is stored."""


class UnknownNodeError(UsageError, LookupError):
    """The graph has no such node."""


class NothingToResumeError(UsageError):
    """There is no unfinished run to resume."""


class UndoFailedError(UsageError):
    """The tool that undoes another has failed; the rollback is not complete."""


class IterationLimitError(UsageError):
    """The agent did not finish in the allowed number of model calls."""


class StoreError(TenureError):
    """The database could not do what was asked."""


class StoreOpenError(StoreError):
    """The database cannot be opened."""


class SchemaVersionError(StoreOpenError):
    """The database was written by a newer version of tenure."""


class StoreClosedError(StoreError):
    """Cannot use a store after it was closed."""


class ConflictError(StoreError):
    """The conversation has changed since it was read.

    Attributes:
        expected_revision: What the caller had read.
        revision: What the conversation is at now.
    """

    def __init__(self, message: str, *, expected_revision: int, revision: int) -> None:
        super().__init__(message)
        self.expected_revision = expected_revision
        self.revision = revision


class UnknownConversationError(StoreError):
    """There is no conversation of this session id."""


class ConversationExistsError(StoreError):
    """There is a conversation of this session id already."""


class ConversationBusyError(StoreError):
    """Another run is using this conversation."""


class LeaseLostError(StoreError):
    """The lease on this conversation was lost, so this write was refused."""


class HistoryNotStoredError(StoreError):
    """The answer was produced but could not be stored.

    Attributes:
        result: The whole `RunResult` of the run whose messages were not stored.
    """

    def __init__(self, message: str | None = None, *, result: RunResult) -> None:
        super().__init__(message)
        self.result = result


class ModelError(TenureError):
    """The model could not answer."""


class ModelRequestError(ModelError):
    """The request to the model failed.

    Attributes:
        status_code: The HTTP status of the provider's answer, or None when there was no answer.
    """

    def __init__(self, message: str | None = None, *, status_code: int | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code


class EmptyReplyError(ModelError):
    """The model's reply has no text, no tool call and nothing else in it."""


class StructuredOutputError(ModelError):
    """The model's answer is not of the type that was asked for.

    Attributes:
        raw: The text of the answer.
    """

    def __init__(self, message: str | None = None, *, raw: str = "") -> None:
        super().__init__(message)
        self.raw = raw


class EmbeddingError(ModelError):
    """The embedder failed."""
