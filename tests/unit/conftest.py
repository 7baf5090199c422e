"""A small training graph and makers of what is measured on it, for every room's tests."""

from __future__ import annotations

import dataclasses

import pytest

from autorecompute.backends import ORTMODULE
from autorecompute.measurement import Detection, Device, Measurement, Outcome, Trial
from autorecompute.memory import Operation, Phase, StepProfile, Tensor
from autorecompute.plans import Config, Option, Plan, Row, Space
from autorecompute.result import Best, Figures, Result, SearchEnd, Verdict
from autorecompute.units import GIB, MIB

PHASES = {"f": Phase.FORWARD, "l": Phase.LOSS, "b": Phase.BACKWARD, "r": Phase.RECOMPUTE}
ROWS = ("Gelu+", "FusedMatMul+Add+", "Softmax+", "LayerNormalization+", "Dropout+")
BATCH = 32


def build_space(*, layers=()):
    """Five plans, the largest stated saving first; the subgraphs in ``layers`` have boundaries."""
    plans = tuple(
        Plan(rows=(Row(name, Option.RECOMPUTE),), frequency=6, saving_bytes=100 - index, saving_symbolic="d0")
        for index, name in enumerate(ROWS)
    )
    within = tuple(
        dataclasses.replace(plan, frequency=5) if plan.rows[0].subgraph in layers else plan for plan in plans
    )
    return Space(plans=plans, layer_plans=within)


def build_measurement(outcome=Outcome.OK, **changes):
    """A measurement with a peak and steps where the outcome has them."""
    figures = {"peak_bytes": 700 * MIB, "step_seconds": (0.5, 0.5, 0.5), "samples": BATCH, "batch": BATCH}
    return Measurement(outcome=outcome, **{**(figures if outcome.is_measured else {}), **changes})


def build_trial(config=None, *, number=0, reference_seconds=None, description=None, reason="why", **measured):
    """A trial of a config."""
    config = config or Config()
    return Trial(
        number=number,
        config=config,
        description=description or build_space().describe(config),
        reason=reason,
        measurement=build_measurement(**measured),
        reference_seconds=reference_seconds,
    )


def build_step(phases, *tensors, seconds=1.0, batch=2):
    """A profiled step: a letter for the phase of each operation, and tensors as ``(name, first, last, *shape)``."""
    return StepProfile(
        operations=tuple(
            Operation(name=f"/model/layer.{place}/{letter}", operator="Gelu", phase=PHASES[letter], seconds=seconds)
            for place, letter in enumerate(phases)
        ),
        tensors=tuple(
            Tensor(name=name, first=first, last=last, shape=tuple(shape), element_bytes=1)
            for name, first, last, *shape in tensors
        ),
        backward=phases.index("l"),
        dims={"batch": batch},
    )


def build_detection(space=None, **changes):
    """What a worker tells of the graph."""
    space = space or build_space()
    fields = {
        "plans": space.plans,
        "layer_plans": space.layer_plans,
        "dims": {"d0": BATCH, "d1": 128},
        "graph": "a1b2c3d4",
        "device": Device(kind="cpu", name="Some Processor", total_bytes=16 * GIB),
        "versions": {"python": "3.11.9", "torch": "2.13.0", "onnxruntime": "1.19.2", "backend": ORTMODULE},
        "batch": BATCH,
        "resting_bytes": 100 * MIB,
    }
    return Detection(**{**fields, **changes})


def build_result(best=None, **changes):
    """A study's answer: the config ``best`` was confirmed, the baseline ran out of memory."""
    detection = build_detection()
    confirmed = Best(
        config=best or build_space().all_on,
        description=build_space().describe(best or build_space().all_on),
        environment={"ORTMODULE_MEMORY_OPT_CONFIG": "/studies/bert/best/plans.json"},
        batch=BATCH,
        samples_per_second=51.25,
        relative_throughput=0.875,
        peak_bytes=700 * MIB,
        limit_bytes=900 * MIB,
        losses=(2.5, 2.25),
        confirmed=True,
    )
    fields = {
        "study": "bert",
        "problem": "0f1e2d3c",
        "verdict": Verdict.RECOMPUTE_PAYS,
        "best": confirmed,
        "baseline": Figures(outcome=Outcome.OOM, batch=BATCH),
        "presets": {"level_1": Figures(), "all_on": Figures(outcome=Outcome.OOM)},
        "trials": 14,
        "search_end": SearchEnd.NOTHING_LEFT,
        "wall_seconds": 321.5,
        "device": detection.device,
        "versions": detection.versions,
        "command": ["python", "train.py"],
        "command_gives_batch": True,
    }
    return Result(**{**fields, **changes})


@pytest.fixture(scope="session")
def make_space():
    """Builds a space."""
    return build_space


@pytest.fixture(scope="session")
def make_measurement():
    """Builds a measurement."""
    return build_measurement


@pytest.fixture(scope="session")
def make_trial():
    """Builds a trial."""
    return build_trial


@pytest.fixture(scope="session")
def make_detection():
    """Builds a detection."""
    return build_detection


@pytest.fixture(scope="session")
def make_step():
    """Builds a profiled step."""
    return build_step


@pytest.fixture(scope="session")
def make_result():
    """Builds an answer."""
    return build_result
