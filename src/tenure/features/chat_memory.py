"""ChatMemory: the agent remembers its conversations.

Before a run it takes the lease of the conversation and loads the history into the prompt; after a run that
succeeded it stores what is new. The run is atomic: when it fails or is cancelled, the history is what it
was (unless `on_failure="keep"`). Runs on one conversation never overlap: they wait in line for each other.

Pre-processors see the whole list of messages, in the order in which they were added, when loading and when
storing; the agent's own system prompt is never among them. There are two kinds of place to keep history:

- **A store** (the default): a log that is only appended to. When storing, what the pre-processors do to
  *this run's* messages is written: a changed message is written changed, a dropped one is not written. What
  is stored already stays as it is, and a window hides messages from the model without removing any (unless
  `retention="delete"`). A run that rewrites its history in an LLM session starts a new branch at the last
  message that it left alone; the branch with the old history stays, and can be read by its number.
- **A provider of your own**, with just `load` and `store`: it is given the whole processed list each time,
  and keeps that instead of what it had. There a window does cut. Runs wait for each other within the
  process.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable
from types import NoneType
from typing import Literal, Protocol, TypeAlias, cast, runtime_checkable
from weakref import WeakValueDictionary

from tenure.errors import ConflictError, HistoryNotStoredError, InvalidValueError, TenureError
from tenure.events import RunResult
from tenure.feature import Feature
from tenure.features.chat_options import ChatOptions
from tenure.features.preprocessing import (
    WINDOWS,
    WindowSizePreprocessor,
    WindowTokensPreprocessor,
    Written,
    as_written,
    checked_messages,
    processed,
)
from tenure.features.sitting import (
    Sitting,
    as_loaded,
    branch_point,
    is_gone,
    of_others,
    removed_meanwhile,
    shared_length,
    whole_conversation,
)
from tenure.marks import is_summary
from tenure.memory import Owner
from tenure.messages import AssistantMessage, Message, UserMessage
from tenure.models import ModelRequest
from tenure.run import RunContext
from tenure.saying import user
from tenure.signatures import awaited
from tenure.stores import InMemoryStore, Store, open_store
from tenure.stores.base import Participant
from tenure.tokens import OVERHEAD

OnFailure: TypeAlias = Literal["discard", "keep"]
Retention: TypeAlias = Literal["keep", "delete"]

LONG_HISTORY = 1_000
"""How many messages a history may have before a memory without a window warns, once."""

_log = logging.getLogger(__name__)

_turns: WeakValueDictionary[int, InMemoryStore] = WeakValueDictionary()
"""By the id of a provider, whose memories keep both: all of them share one line."""


@runtime_checkable
class ChatHistoryProvider(Protocol):
    """Anybody's place to keep histories. Either method may be sync or async."""

    def load(
        self, session_id: str
    ) -> Iterable[Message] | Awaitable[Iterable[Message] | None] | None:
        """Return a conversation's messages in order; nothing or None when there is none."""
        ...

    def store(self, session_id: str, messages: list[Message]) -> object:
        """Keep these messages as the whole conversation, in place of what was kept before."""
        ...


class ChatMemory(ChatOptions, Feature):
    """Loads and stores the conversation of each run that has a session id."""

    def __init__(
        self,
        provider: Store | ChatHistoryProvider | str | None = None,
        *,
        on_failure: OnFailure = "discard",
        retention: Retention = "keep",
    ) -> None:
        """Say where histories are kept.

        Args:
            provider: A store or its URL, such as `"sqlite:///chat.db"`; or an object with `load` and
                `store`. Without one, the store of the agent that it is installed in; and if that has
                none, in RAM, until this object is gone.
            on_failure: What is stored of a run that failed or was cancelled: nothing, or (on a store)
                the user's message and whatever had finished, marked as failed.
            retention: What becomes of the messages that a window hides: on a store they are kept, or
                else removed for good after each run.

        Raises:
            InvalidValueError: It is none of these.
        """
        if isinstance(provider, str):
            provider = open_store(provider)
        # Users err: the types say that this cannot be.
        elif not isinstance(provider, (Store, ChatHistoryProvider, NoneType)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidValueError(
                f"{provider!r} cannot keep histories; give a URL such as 'sqlite:///chat.db', a "
                "store, or an object with load(session_id) and store(session_id, messages)."
            )
        if on_failure not in ("discard", "keep"):
            raise InvalidValueError(f"on_failure={on_failure!r} must be 'discard' or 'keep'.")
        if retention not in ("keep", "delete"):
            raise InvalidValueError(f"retention={retention!r} must be 'keep' or 'delete'.")
        self._given = provider
        self._on_failure = on_failure
        self._retention = retention
        super().__init__()
        # Where runs wait for each other when a provider is given.
        self._turns = _turns.setdefault(id(provider), InMemoryStore())
        self._has_warned = False

    @property
    def provider(self) -> Store | ChatHistoryProvider:
        """Where histories are kept."""
        if self._given is None:
            self._given = InMemoryStore()
        return self._given

    # --- hooks ---

    def on_install(self, store: Store | None, owner: Owner) -> None:
        """Take the agent's store when no other place was given."""
        if self._given is None:
            self._given = store

    async def on_run_start(self, ctx: RunContext) -> None:
        """Wait for the conversation, and load its history unless this is its first run."""
        if self._budget is not None:
            ctx.llm.limit(self._budget)
        if ctx.session_id is None:
            return
        turns = self.provider if isinstance(self.provider, Store) else self._turns
        sitting = Sitting(held=await ctx.hold(turns))
        ctx.storage[self] = sitting
        if self._retention == "delete" and isinstance(self.provider, Store):
            history = await self.provider.read(ctx.session_id, revision=ctx.revision)
            sitting.history = {message.id for message in history}
        loaded = await self._loaded(ctx.session_id, ctx.revision)
        if loaded is None:
            return
        sitting.is_first, sitting.loaded = False, loaded
        before = await self._before(ctx.session_id, loaded, ctx.revision)
        for number, preprocessor in enumerate(self._at("load")):
            if number == 0 and isinstance(preprocessor, WindowSizePreprocessor):
                left = preprocessor.preprocess(loaded, before=before)
            else:
                left = await processed(preprocessor, loaded)
            if isinstance(preprocessor, WINDOWS):
                sitting.hidden |= {m.id for m in loaded} - {m.id for m in left}
            loaded = left
        is_shared = ctx.ends_in is self.provider  # so that checkpoints need not have the history
        ctx.continue_from(loaded, stored=sitting.loaded if is_shared else ())
        sitting.shown = ctx.conversation
        if self._compression is not None and ctx.resumption is None:
            async with ctx.llm.write_session() as session:
                await self._compression.apply(session)

    async def on_run_end(self, ctx: RunContext, result: RunResult) -> None:
        """Store the run's messages, and the agent's initial ones with a conversation's first."""
        sitting = self._sitting(ctx)
        if ctx.session_id is None or sitting is None:
            return
        try:
            await self._store(ctx, ctx.session_id, sitting)
        except Exception as exc:
            why = str(exc) if isinstance(exc, TenureError) else f"{type(exc).__name__}: {exc}."
            raise HistoryNotStoredError(
                f"The answer in conversation {ctx.session_id!r} was produced but not stored: {why} "
                "The answer is this error's .result; the stored history is as it was.",
                result=result,
            ) from exc

    async def on_run_error(self, ctx: RunContext, error: BaseException) -> None:
        """Keep what there is of a failed run, if so configured and if it cannot be resumed."""
        sitting = self._sitting(ctx)
        if ctx.session_id is None or sitting is None or ctx.is_resumable:
            return
        if self._on_failure == "keep" and not isinstance(error, HistoryNotStoredError):
            await self._keep_failed(ctx, ctx.session_id, sitting)

    async def after_model_call(
        self, ctx: RunContext, request: ModelRequest, reply: AssistantMessage
    ) -> None:
        """Have this memory's own counter learn; a budget's learns where it is kept."""
        if self._budget is None and reply.usage is not None:
            self._counter.learn(request.messages, request.tools, reply.usage)

    # --- loading ---

    async def _loaded(self, session_id: str, revision: int | None) -> list[Message] | None:
        """The history before pre-processing; None when there is none."""
        if isinstance(self.provider, Store):
            last = self._leading_window()
            messages = await self.provider.read(session_id, last=last, revision=revision)
            if last is not None and any(map(_has_anonymous_result, messages)):
                # Which call a result without id belongs to, only the whole history can tell.
                messages = await self.provider.read(session_id, revision=revision)
            if not messages and not await _has_begun(self.provider, session_id, revision):
                return None
        else:
            found = await awaited(self.provider.load(session_id))
            if not found:
                return None
            name = type(self.provider).__name__
            messages = checked_messages(found, f"The provider {name}'s load()")
        self._warn_if_long(session_id, len(messages))
        return messages

    def _leading_window(self) -> int | None:
        """How much of the history can be of any use, when the first pre-processor is a window."""
        match next(iter(self._at("load")), None):
            case WindowSizePreprocessor(options=options) as first if not options.needs_all:
                return first.size
            case WindowTokensPreprocessor(options=options) as first if not options.needs_all:
                return first.budget.tokens // OVERHEAD
            case _:
                return None

    async def _before(self, session_id: str, loaded: list[Message], revision: int | None) -> int:
        """How many messages stand before those that were loaded; asked only where it matters."""
        match next(iter(self._at("load")), None):
            case WindowSizePreprocessor(size=size, stride=stride) if stride > 1:
                if not isinstance(self.provider, Store) or len(loaded) < size:
                    return 0
                found = await self.provider.conversation(session_id)
                if found is not None and revision not in (None, found.revision):
                    return len(await self.provider.read(session_id, revision=revision)) - size
                return found.message_count - size if found is not None else 0
            case _:
                return 0

    def _warn_if_long(self, session_id: str, count: int) -> None:
        has_window = any(isinstance(p, WINDOWS) for p in self._at("load"))
        if count > LONG_HISTORY and not has_window and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "The conversation %r has %d messages and its ChatMemory no window, so that every "
                "request sends all of them; add .window_size(n).",
                session_id,
                count,
            )

    # --- storing ---

    async def _store(self, ctx: RunContext, session_id: str, sitting: Sitting) -> None:
        if not isinstance(self.provider, Store):
            messages = whole_conversation(ctx.conversation, sitting)
            hidden: list[Message] = []
            for preprocessor in self._at("store"):
                before, messages = messages, await processed(preprocessor, messages)
                if isinstance(preprocessor, WINDOWS):
                    left = {message.id for message in messages}
                    hidden += [message for message in before if message.id not in left]
            await awaited(self.provider.store(session_id, messages))
            ctx.kept = (*hidden, *messages)
            return
        archive = await self._archive(ctx)
        if shared_length(ctx.conversation, sitting) == len(sitting.shown):
            new = ctx.conversation[len(sitting.shown) :]
            written = await as_written(self._at("store"), ctx.conversation, new=new)
            ctx.stored = await self.provider.append(
                session_id,
                written.messages,
                run_id=ctx.run_id,
                archive=archive,
                by=await ctx.participant(self.provider, [*archive, *written.messages]),
                lease=sitting.held.lease,
            )
        else:
            written = await self._rewrite(ctx, session_id, sitting, archive)
        if self._retention == "delete":
            await self._delete_hidden(session_id, sitting, written.hidden)

    async def _archive(self, ctx: RunContext) -> list[Message]:
        """What the run has said and then summarised: the summary's originals, which are in no history."""
        covered = [*ctx.covered_messages]
        if not covered or self._retention == "delete":
            return []
        return (await as_written(self._at("store"), covered, new=covered)).messages

    async def _rewrite(
        self, ctx: RunContext, session_id: str, sitting: Sitting, archive: list[Message]
    ) -> Written:
        """Make the history what the run has made of it; what others appended meanwhile comes last."""
        assert isinstance(self.provider, Store)
        shared = shared_length(ctx.conversation, sitting)
        by: Participant | None = None
        while True:
            found = await self.provider.conversation(session_id)
            entries = await self.provider.entries(session_id)
            conversation = as_loaded(ctx.conversation, sitting, entries)
            after, kept = branch_point(entries, ctx.conversation, shared)
            gone = await removed_meanwhile(self.provider, session_id, sitting, entries)
            left = [message for message in conversation[kept:] if not is_gone(message, gone)]
            written = await as_written(self._at("store"), conversation, new=left)
            if by is None:
                by = await ctx.participant(self.provider, [*archive, *written.messages])
            try:
                ctx.stored = await self.provider.start_branch(
                    session_id,
                    [*written.messages, *of_others(entries, sitting)],
                    after=after,
                    run_id=ctx.run_id,
                    expected_revision=found.revision if found is not None else 0,
                    archive=archive,
                    by=by,
                    lease=sitting.held.lease,
                )
            except ConflictError:  # somebody has appended since these entries were read
                continue
            return written

    async def _delete_hidden(
        self, session_id: str, sitting: Sitting, hidden: frozenset[str]
    ) -> None:
        """Remove what windows hid in this run, at either end, and what the run has rewritten.

        Only of what was there when the run began: others may have appended meanwhile.
        """
        assert isinstance(self.provider, Store)
        present = {entry.message.id for entry in await self.provider.entries(session_id)}
        unseen = sitting.history - {message.id for message in sitting.loaded}
        doomed = unseen | sitting.hidden | hidden | (sitting.history - present)
        if doomed:
            await self.provider.redact(session_id, lambda m: None if m.id in doomed else m)

    async def _keep_failed(self, ctx: RunContext, session_id: str, sitting: Sitting) -> None:
        if not isinstance(self.provider, Store):
            return
        # A summary stands for what is still there: the history stays as it was.
        said = [*ctx.covered_messages, *ctx.new_messages]
        finished = [message for message in said if not is_summary(message)]
        if not any(isinstance(message, UserMessage) for message in finished):
            finished.insert(0, user(ctx.input, clock=ctx.clock))
        new = [*ctx.initial_messages, *finished] if sitting.is_first else finished
        earlier = [m for m in ctx.conversation if m.id not in {n.id for n in new}]
        written = await as_written(self._at("store"), [*earlier, *new], new=new)
        await self.provider.append(
            session_id,
            written.messages,
            run_id=ctx.run_id,
            is_failed=True,
            by=Participant(owner=ctx.owner),
            lease=sitting.held.lease,
        )

    def _sitting(self, ctx: RunContext) -> Sitting | None:
        return cast("Sitting | None", ctx.storage.get(self))


def _has_anonymous_result(message: Message) -> bool:
    return any(result.call_id is None for result in message.tool_results)


async def _has_begun(store: Store, session_id: str, revision: int | None) -> bool:
    """Whether a conversation has ever had a message, be it hidden or removed by now."""
    if revision is not None:
        return revision > 0
    found = await store.conversation(session_id)
    return found is not None and found.revision > 0
