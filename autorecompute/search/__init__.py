"""Chooses which config to measure next. Knows nothing of processes and training systems."""

from __future__ import annotations

from autorecompute.search.batch_choosers import BatchChooser, Listed
from autorecompute.search.choice import NAMES, make_searcher
from autorecompute.search.fastest_batch import Fastest
from autorecompute.search.first import InheritedFirst, PlannedFirst
from autorecompute.search.greedy import GreedySearcher
from autorecompute.search.growth import Limits
from autorecompute.search.model_searcher import ModelSearcher
from autorecompute.search.prior import Prior
from autorecompute.search.sampler import RecomputeSampler
from autorecompute.search.sampling import OptunaSearcher, require_installed
from autorecompute.search.searcher import Limit, Proposal, Searcher
from autorecompute.search.whole_steps import WholeStepSearcher, missing_in

__all__ = [
    "NAMES",
    "BatchChooser",
    "Fastest",
    "GreedySearcher",
    "InheritedFirst",
    "Limit",
    "Limits",
    "Listed",
    "ModelSearcher",
    "OptunaSearcher",
    "PlannedFirst",
    "Prior",
    "Proposal",
    "RecomputeSampler",
    "Searcher",
    "WholeStepSearcher",
    "make_searcher",
    "missing_in",
    "require_installed",
]
