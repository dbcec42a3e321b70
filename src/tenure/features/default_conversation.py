"""An agent's default conversation, as its long-term memories see it: it forgets what they forget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from tenure.features.preprocessing import checked_messages
from tenure.features.sitting import is_gone
from tenure.signatures import awaited
from tenure.stores import Store

if TYPE_CHECKING:
    from tenure.features.chat_memory import ChatMemory
    from tenure.memory import Memory, Owner
    from tenure.messages import Message


def default_session_id(owner: Owner) -> str:
    """Return the session id of an agent's default conversation; of each of its users another one."""
    if owner.user_id is None:
        return f"agent:{owner.agent_id}"
    return f"user:{quote(owner.user_id, safe='')}:agent:{owner.agent_id}"


class DefaultConversation:
    """The `memories.Context` of an agent's memories."""

    def __init__(self, owner: Owner, chat_memory: Callable[[], ChatMemory]) -> None:
        """Name the owner, and where the conversation is kept when it is looked for."""
        self._session_id = default_session_id(owner)
        self._chat_memory = chat_memory

    async def clear(self) -> None:
        """Remove the conversation, for good; a run that is going on there cannot bring it back."""
        provider = self._chat_memory().provider
        if isinstance(provider, Store):
            await provider.delete(self._session_id)
        else:
            await awaited(provider.store(self._session_id, []))

    async def remove(self, memories: Sequence[Memory]) -> None:
        """Remove the messages that memories came from, others with their text, and summaries of them."""
        own = [m for m in memories if m.session_id == self._session_id and m.provenance.run_id]
        ids = {message_id for memory in own for message_id in memory.provenance.message_ids}
        texts = {memory.content for memory in own}  # said again, it was not remembered again

        def is_theirs(message: Message) -> bool:
            if message.role in ("user", "assistant") and message.text in texts:
                ids.add(message.id)
            return is_gone(message, ids)

        provider = self._chat_memory().provider
        if not own:
            return
        if not isinstance(provider, Store):
            loaded = await awaited(provider.load(self._session_id))
            messages = checked_messages(loaded or [], "The provider's load()")
            left = [message for message in messages if not is_theirs(message)]
            await awaited(provider.store(self._session_id, left))
        elif await provider.conversation(self._session_id) is not None:
            await provider.redact(self._session_id, lambda m: None if is_theirs(m) else m)
