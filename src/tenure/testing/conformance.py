"""The tests that every store and every chat history provider must pass, for yours too.

A store passes when it keeps each promise of `tenure.stores.base`; the drivers of tenure itself run the
whole suite, and so does a test class like this in your own project:

    from tenure.testing.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def store(self):
            store = MyStore()
            store.lease_ttl_s = 0.5
            yield store
            await store.close()

A store that is given its clock need not wait for leases to end: override `let_time_pass` and turn the
clock. It takes pytest, and the plugin that comes with anyio. The families of tests are in the files beside
this one; each can be run by itself while a driver grows.
"""

from __future__ import annotations

from tenure.testing.conformance_append import AppendConformance
from tenure.testing.conformance_archive import ArchiveConformance
from tenure.testing.conformance_branches import BranchConformance, ForkConformance
from tenure.testing.conformance_catalog import ListConformance, RenameConformance
from tenure.testing.conformance_checkpoints import (
    CallConformance,
    CheckpointConformance,
)
from tenure.testing.conformance_conflicts import ConflictConformance
from tenure.testing.conformance_endings import RunEndConformance
from tenure.testing.conformance_erasing import DeleteConformance, RedactConformance
from tenure.testing.conformance_handles import LifecycleConformance, TenantConformance
from tenure.testing.conformance_leases import LeaseConformance
from tenure.testing.conformance_memories import (
    MemoryAddConformance,
    MemoryDeleteConformance,
    MemoryListConformance,
    MemoryUpdateConformance,
)
from tenure.testing.conformance_memory_owners import MemoryOwnerConformance
from tenure.testing.conformance_memory_search import (
    MemorySearchConformance,
    MemoryVectorConformance,
)
from tenure.testing.conformance_owners import ForgetConformance, ParticipantConformance
from tenure.testing.conformance_providers import ChatHistoryProviderConformance
from tenure.testing.conformance_run_records import RunRecordConformance
from tenure.testing.conformance_runs import RunConformance

__all__ = [
    "AppendConformance",
    "ArchiveConformance",
    "BranchConformance",
    "CallConformance",
    "ChatHistoryProviderConformance",
    "CheckpointConformance",
    "ConflictConformance",
    "DeleteConformance",
    "ForgetConformance",
    "ForkConformance",
    "LeaseConformance",
    "LifecycleConformance",
    "ListConformance",
    "MemoryAddConformance",
    "MemoryDeleteConformance",
    "MemoryListConformance",
    "MemoryOwnerConformance",
    "MemorySearchConformance",
    "MemoryUpdateConformance",
    "MemoryVectorConformance",
    "ParticipantConformance",
    "RedactConformance",
    "RenameConformance",
    "RunConformance",
    "RunEndConformance",
    "RunRecordConformance",
    "StoreConformance",
    "TenantConformance",
]


class StoreConformance(
    AppendConformance,
    ArchiveConformance,
    ConflictConformance,
    BranchConformance,
    ForkConformance,
    RedactConformance,
    DeleteConformance,
    RenameConformance,
    ListConformance,
    RunConformance,
    RunRecordConformance,
    CheckpointConformance,
    CallConformance,
    RunEndConformance,
    LeaseConformance,
    MemoryAddConformance,
    MemoryListConformance,
    MemoryUpdateConformance,
    MemoryDeleteConformance,
    MemoryOwnerConformance,
    MemorySearchConformance,
    MemoryVectorConformance,
    ParticipantConformance,
    ForgetConformance,
    TenantConformance,
    LifecycleConformance,
):
    """Every test of a store. Override the fixture `store`; each test gets a new one."""
