"""Profiles of single training steps, and models of the memory that steps hold."""

from autorecompute.memory.model import (
    Effect,
    Estimate,
    Forecast,
    Machine,
    MemoryModel,
    PeakForecaster,
    PeakView,
    RankPeak,
    Simulated,
    Simulator,
)
from autorecompute.memory.step import (
    Chain,
    Operation,
    Phase,
    StepProfile,
    StepProfiles,
    Tensor,
    Timeline,
    find_chain,
    trace,
)

__all__ = [
    "Chain",
    "Effect",
    "Estimate",
    "Forecast",
    "Machine",
    "MemoryModel",
    "Operation",
    "PeakForecaster",
    "PeakView",
    "Phase",
    "RankPeak",
    "Simulated",
    "Simulator",
    "StepProfile",
    "StepProfiles",
    "Tensor",
    "Timeline",
    "find_chain",
    "trace",
]
