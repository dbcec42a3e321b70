"""Doubles for tests of agents: public, deterministic, and without any model or clock."""

from tenure.testing.clock import ManualClock
from tenure.testing.histories import random_history
from tenure.testing.scripted import ScriptedModel

__all__ = ["ManualClock", "ScriptedModel", "random_history"]
