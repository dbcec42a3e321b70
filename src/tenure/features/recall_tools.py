"""Tools with which a model works on its agent's memories: `remember`, `recall` and `forget`.

Whose memories they are is bound when they are made, and no argument of theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.recalled import recalled_block
from tenure.tools import Tool, ToolError, tool

if TYPE_CHECKING:
    from tenure.features.recall import LongTermMemory

MOST_CHARS = 2_000
"""The longest text that a model may have remembered."""

MOST_FOUND = 10
MOST_TOKENS = 1_000
"""How many memories `recall` gives at most, and how many tokens they may cost together."""


def recall_tools_of(feature: LongTermMemory) -> list[Tool]:
    """Return the tools, for the memories of a feature."""

    @tool
    async def remember(text: str) -> str:
        """Remember something for later conversations, such as a fact about the user.

        Args:
            text: One statement that can be understood alone.
        """
        if not text.strip():
            raise ToolError("There is nothing to remember; give a text.")
        if len(text) > MOST_CHARS:
            raise ToolError(
                f"A memory may have {MOST_CHARS} characters, and this has {len(text)}; say it shorter."
            )
        if not feature.note(text):
            await feature.memories.add(text, {"type": "note"})
            return "It is remembered."
        return "It is remembered when this answer is complete."

    @tool
    async def recall(query: str) -> str:
        """Search what is remembered from earlier conversations.

        Args:
            query: What to look for.
        """
        found = await feature.memories.search(query, limit=MOST_FOUND)
        block = recalled_block(found, budget=MOST_TOKENS)
        if not block.memories:
            return "Nothing is remembered about that."
        ids = "\n".join(f"{number}. {m.id}" for number, m in enumerate(block.memories, 1))
        return f"{block.text}\nTheir ids, in this order:\n{ids}"

    @tool
    async def forget(memory_id: str) -> str:
        """Forget something for good, because the user asks for that.

        Args:
            memory_id: The id that `recall` gives.
        """
        if not await feature.memories.delete(memory_id.strip()):
            raise ToolError(f"There is no memory {memory_id[:64]!r}; find its id with recall.")
        return "It is forgotten."

    return [remember, recall, forget]
