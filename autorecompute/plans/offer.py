"""What a model offers to recompute, beside what the environment of the script switches on already."""

from __future__ import annotations

from dataclasses import dataclass, field

from autorecompute.plans.config import Config
from autorecompute.plans.plan import Choice, Plan
from autorecompute.plans.saved import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The plans of a model as its training system would use them in this environment.

    Attributes:
        plans: What can be switched on, largest saving first.
        clusters: The activations that they are about.
        summary: A line about what is switched on.
        is_on: Whether the training system says that its recompute is on.
        config: What takes effect; nothing where nothing is switched on.
        requested: How many occurrences each choice is asked for, -1 for all.
        recomputed: How many occurrences of each choice the training system recomputes.
        unknown: What is asked for and not offered.
        problems: What is wrong with what is switched on, a sentence each.
        notes: What a reader of the plans has to know, a sentence each.
        stated_note: Why a stated saving may differ from ours; empty where the system states none.
        worthless: Why there is nothing worth recomputing; empty where there may be.
    """

    plans: tuple[Plan, ...]
    clusters: tuple[Cluster, ...] = ()
    summary: str = ""
    is_on: bool = False
    config: Config = field(default_factory=Config)
    requested: dict[Choice, int] = field(default_factory=dict)
    recomputed: dict[Choice, int] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stated_note: str = ""
    worthless: str = ""
