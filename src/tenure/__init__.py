"""tenure gives an LLM agent a memory that lasts.

An `Agent` answers with a `Model`, tools (`@tool`) and features. `ChatMemory` is the feature that keeps its
conversations, in a `Store` (`open_store`) or a provider of your own. Messages are plain values
(`user`, `assistant`, `system`, `tool_result`, and the classes behind them); a `Prompt` strings them
together. Code reads and changes a running agent's prompt in LLM sessions (`RunContext.llm`). `Memories` are
what is remembered across conversations, and found again by words, meaning and time. All errors are
`TenureError`s. `tenure.sync` has the same for code without async, `tenure.testing` a scripted model for
tests.
"""

from tenure.agent import Agent
from tenure.clock import Clock, SystemClock
from tenure.compression import (
    Chunked,
    FromLastNMessages,
    FromTimestamp,
    HistoryCompression,
    KeepLastN,
    NoCompression,
    WholeHistory,
    WholeHistoryMultipleSystemMessages,
    composed,
)
from tenure.embedding import Embedder
from tenure.errors import (
    BudgetError,
    ConflictError,
    ConversationBusyError,
    ConversationExistsError,
    EmbeddingError,
    EmptyReplyError,
    HistoryNotStoredError,
    InvalidValueError,
    IterationLimitError,
    LeaseLostError,
    MissingExtraError,
    ModelError,
    ModelRequestError,
    NestedSessionError,
    NothingToResumeError,
    PreprocessorError,
    PromptError,
    SchemaVersionError,
    SessionClosedError,
    StoreClosedError,
    StoreError,
    StoreOpenError,
    StructuredOutputError,
    StuckInNodeError,
    TenureError,
    UndoFailedError,
    UnknownConversationError,
    UnknownModelError,
    UnknownNodeError,
    UnknownToolError,
    UsageError,
)
from tenure.events import (
    CheckpointSaved,
    Event,
    MemoriesRecalled,
    MemoriesStored,
    ModelCallCompleted,
    ModelCallStarted,
    NodeCompleted,
    NodeStarted,
    RunCompleted,
    RunFailed,
    RunResult,
    RunResumed,
    RunStarted,
    ToolCallCompleted,
    ToolCallReused,
    ToolCallStarted,
)
from tenure.fact_compression import Concept, RetrieveFactsFromHistory
from tenure.feature import Feature
from tenure.features.chat_memory import ChatHistoryProvider, ChatMemory
from tenure.features.checkpoints import Checkpoint
from tenure.features.ingestion import Turn, facts
from tenure.features.ledger import RollbackToolRegistry
from tenure.features.own_storage import CheckpointStorage
from tenure.features.persistence import Persistence
from tenure.features.preprocessing import (
    FilterMessagesPreprocessor,
    Preprocessor,
    WindowSizePreprocessor,
    WindowTokensPreprocessor,
)
from tenure.features.recall import LongTermMemory
from tenure.generations import EmbeddingOutcome
from tenure.graph import Graph, Node
from tenure.idempotency import idempotency_key
from tenure.llm import LLMContext
from tenure.marks import as_memory, covered_ids, is_memory, is_pinned, is_summary, pinned
from tenure.memories import Memories
from tenure.memory import Memory, MemoryFilter, NewMemory, Owner, Provenance
from tenure.messages import (
    AssistantMessage,
    Media,
    Message,
    Opaque,
    Part,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
)
from tenure.models import (
    Model,
    ModelProfile,
    ModelRequest,
    PartEnd,
    ReasoningDelta,
    StreamEnd,
    StreamFrame,
    TextDelta,
    ToolCallDelta,
)
from tenure.prompt import LLMParams, NamedTool, Prompt, ToolChoice
from tenure.recorded import RecordedError
from tenure.run import RunContext
from tenure.run_stream import RunStream
from tenure.saying import assistant, system, tool_result, user
from tenure.sessions import ReadSession, WriteSession
from tenure.stores import Conversation, InMemoryStore, Store, open_store
from tenure.stores.base import Appended, Branch, Entry, Forgotten, Lease, Participant
from tenure.strategy import llm_compress_history, tool_loop
from tenure.structured import OutputSchema, StructuredResult
from tenure.summaries import Summarizer, transcript
from tenure.tokens import TokenCounter, TokenEstimator
from tenure.tools import Tool, ToolError, ToolOutcome, ToolRegistry, ToolSpec, tool
from tenure.triggers import CompressionRule, compress_when
from tenure.values import from_tagged, from_tagged_json, to_tagged, to_tagged_json
from tenure.views import valid_view
from tenure.windows import TokenBudget, WindowOptions, token_window, window

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Appended",
    "AssistantMessage",
    "Branch",
    "BudgetError",
    "ChatHistoryProvider",
    "ChatMemory",
    "Checkpoint",
    "CheckpointSaved",
    "CheckpointStorage",
    "Chunked",
    "Clock",
    "CompressionRule",
    "Concept",
    "ConflictError",
    "Conversation",
    "ConversationBusyError",
    "ConversationExistsError",
    "Embedder",
    "EmbeddingError",
    "EmbeddingOutcome",
    "EmptyReplyError",
    "Entry",
    "Event",
    "Feature",
    "FilterMessagesPreprocessor",
    "Forgotten",
    "FromLastNMessages",
    "FromTimestamp",
    "Graph",
    "HistoryCompression",
    "HistoryNotStoredError",
    "InMemoryStore",
    "InvalidValueError",
    "IterationLimitError",
    "KeepLastN",
    "LLMContext",
    "LLMParams",
    "Lease",
    "LeaseLostError",
    "LongTermMemory",
    "Media",
    "Memories",
    "MemoriesRecalled",
    "MemoriesStored",
    "Memory",
    "MemoryFilter",
    "Message",
    "MissingExtraError",
    "Model",
    "ModelCallCompleted",
    "ModelCallStarted",
    "ModelError",
    "ModelProfile",
    "ModelRequest",
    "ModelRequestError",
    "NamedTool",
    "NestedSessionError",
    "NewMemory",
    "NoCompression",
    "Node",
    "NodeCompleted",
    "NodeStarted",
    "NothingToResumeError",
    "Opaque",
    "OutputSchema",
    "Owner",
    "Part",
    "PartEnd",
    "Participant",
    "Persistence",
    "Preprocessor",
    "PreprocessorError",
    "Prompt",
    "PromptError",
    "Provenance",
    "ReadSession",
    "Reasoning",
    "ReasoningDelta",
    "RecordedError",
    "RetrieveFactsFromHistory",
    "RollbackToolRegistry",
    "RunCompleted",
    "RunContext",
    "RunFailed",
    "RunResult",
    "RunResumed",
    "RunStarted",
    "RunStream",
    "SchemaVersionError",
    "SessionClosedError",
    "Store",
    "StoreClosedError",
    "StoreError",
    "StoreOpenError",
    "StreamEnd",
    "StreamFrame",
    "StructuredOutputError",
    "StructuredResult",
    "StuckInNodeError",
    "Summarizer",
    "SystemClock",
    "SystemMessage",
    "TenureError",
    "Text",
    "TextDelta",
    "TokenBudget",
    "TokenCounter",
    "TokenEstimator",
    "Tool",
    "ToolCall",
    "ToolCallCompleted",
    "ToolCallDelta",
    "ToolCallReused",
    "ToolCallStarted",
    "ToolChoice",
    "ToolError",
    "ToolMessage",
    "ToolOutcome",
    "ToolRegistry",
    "ToolResult",
    "ToolSpec",
    "Turn",
    "UndoFailedError",
    "UnknownConversationError",
    "UnknownModelError",
    "UnknownNodeError",
    "UnknownToolError",
    "Usage",
    "UsageError",
    "UserMessage",
    "WholeHistory",
    "WholeHistoryMultipleSystemMessages",
    "WindowOptions",
    "WindowSizePreprocessor",
    "WindowTokensPreprocessor",
    "WriteSession",
    "__version__",
    "as_memory",
    "assistant",
    "composed",
    "compress_when",
    "covered_ids",
    "facts",
    "from_tagged",
    "from_tagged_json",
    "idempotency_key",
    "is_memory",
    "is_pinned",
    "is_summary",
    "llm_compress_history",
    "open_store",
    "pinned",
    "system",
    "to_tagged",
    "to_tagged_json",
    "token_window",
    "tool",
    "tool_loop",
    "tool_result",
    "transcript",
    "user",
    "valid_view",
    "window",
]
