"""Doubles for tests of agents: public, deterministic, and without any model, embedder or clock.

`tenure.testing.conformance` has the tests that a store or a chat history provider of your own must pass;
it needs pytest, this package does not.
"""

import sys

from tenure.testing.clock import ManualClock
from tenure.testing.hashing import HashEmbedder
from tenure.testing.histories import random_history
from tenure.testing.scripted import ScriptedModel

__all__ = ["HashEmbedder", "ManualClock", "ScriptedModel", "random_history"]

# So that a failing conformance test shows its values: pytest then rewrites the asserts of these modules.
if pytest := sys.modules.get("pytest"):
    pytest.register_assert_rewrite(
        *(
            f"tenure.testing.conformance{family}"
            for family in (
                "", "_append", "_branches", "_catalog", "_conflicts", "_erasing", "_handles",
                "_leases", "_memories", "_memory_owners", "_memory_search", "_providers", "_runs", "_suite",
            )
        )
    )  # fmt: skip
