"""What a training step holds in memory, and when: profiles of single steps and what can be told from them."""

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
