"""Trains cases with every plan alone and all together beside none, and compares all bits: for ``harmless.py``."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import random
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import harmless_cases
import harmless_steps
import numpy as np
import torch

import autorecompute
from autorecompute.backends.torch.check.recompute_check import VARIABLE
from autorecompute.backends.torch.find.own_checkpoints import frozen_in, thawed
from autorecompute.backends.torch.find.refusals import RefusalError
from autorecompute.backends.torch.forecast.records import EVERY_2ND
from autorecompute.backends.torch.switch.applying import Tuned
from autorecompute.backends.torch.switch.intercepting import around_of, put_around, release

MOST_STEPS = 16
"""A difference has to be told within so many steps of its first one."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a training came to.

    Attributes:
        losses: Its losses.
        state: Weights, buffers, random numbers, and what else the case compares.
        error: What ended it; empty where nothing did.
        told: The steps in which its check found a difference.
    """

    losses: list[float]
    state: list[object]
    error: str = ""
    told: tuple[int, ...] = ()


CASES = {
    name: kind
    for module in (harmless_cases, harmless_steps)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, harmless_cases.Case) and kind is not harmless_cases.Case
}


class Told(logging.Handler):
    """Keeps what checks tell."""

    def __init__(self):
        super().__init__()
        self.steps: list[int] = []

    def emit(self, record):
        """Keep the step of a difference."""
        self.steps += [one.step for one in record.args or () if hasattr(one, "step")]


def train(kind, plans=None, looks=None):
    """Train a case; ``looks`` is called with the model and its first call's arguments."""
    random.seed(0)
    np.random.seed(0)  # what scripts draw from
    torch.manual_seed(0)
    case, told = kind(), Told()
    model = case.model().train()
    if looks:
        put_around(model, [looks])
    if plans:
        apply(model, plans)
    logger = logging.getLogger("autorecompute")
    logger.addHandler(told)
    losses, error = [], ""
    try:
        losses = case.train(model)
    except Exception as raised:  # noqa: BLE001  (whatever it is, it ends the training)
        error = "".join(traceback.format_exception_only(raised)).strip()
    finally:
        logger.removeHandler(told)
        is_on = any(around_of(one) for one in model.modules())
        release(model)
    if plans and not error and not is_on:
        error = "nothing was on"
    state = [*model.named_parameters(), *model.named_buffers(), torch.get_rng_state(), random.getstate()]
    return Trained(losses, [*state, np.random.get_state(), case.state()], error, tuple(told.steps))


def apply(model, plans):
    """Apply plans as a script does."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plans.json"
        file.write_text(json.dumps({"format": 1, "model": "", "torch": torch.__version__, "plans": plans}))
        autorecompute.apply(model, file)


def offered(kind):
    """Return the plans that a case's model offers, and why others are not."""
    found, why = [], []

    def look(forward, module, /, *args, **kwargs):
        release(module)
        try:
            with thawed(frozen_in(module, None)):
                found.append(Tuned.of(module, args, kwargs).found)
        except RefusalError as refused:
            why.append(str(refused))
        return forward(*args, **kwargs)

    train(kind, looks=look)
    sites = [site for one in found for site in one.sites]
    plans = [f"{site.name}:{option}" for site in sites for option in site.options if option != EVERY_2ND]
    return plans, [*why, *(str(refusal) for one in found for refusal in one.refusals)]


def configs_of(plans):
    """Every plan alone, and all together, with each of the options first."""
    yield from ([plan] for plan in plans)
    for option in ("checkpoint", "keep_matmul", "drop"):
        together = {plan.rpartition(":")[0]: plan for plan in plans}
        together |= {plan.rpartition(":")[0]: plan for plan in plans if plan.endswith(f":{option}")}
        mine = {site: plan for site, plan in together.items() if option != "drop" or plan.endswith(":drop")}
        if len(mine) > 1:
            yield sorted(mine.values())


def is_same(one, other):
    """Tell whether two states are the same, bit for bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        return same and one.detach().numpy().tobytes() == other.detach().numpy().tobytes()
    if isinstance(one, np.ndarray):
        return one.tobytes() == other.tobytes()
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other) or (one != one and other != other)  # noqa: PLR0124  (a loss that is no number)


def first_difference(plain, other):
    """Return the first step, from 1, whose losses differ; the one behind the last where states alone do; 0 for none."""
    pairs = zip(plain.losses, other.losses, strict=False)
    step = next((at for at, (one, two) in enumerate(pairs, 1) if not is_same(one, two)), 0)
    return step or (0 if is_same(plain.state, other.state) else len(plain.losses) + 1)


def verdict(plain, checked, unchecked):
    """Return what a config came to."""
    for one in (checked, unchecked):
        if one.error != plain.error:
            return f"ENDED: {one.error}"
    if not any(first_difference(plain, one) for one in (checked, unchecked)):
        return "equal" if not checked.told else f"DIFFERENT: told in step {checked.told[0]}, and nothing differs"
    if checked.told and checked.told[0] <= first_difference(plain, unchecked) + MOST_STEPS:
        return "found by the check"
    return f"DIFFERENT: from step {first_difference(plain, unchecked)}, checked {first_difference(plain, checked)}"


def hold(name):
    """Train a case all ways and print what came out; whether nothing of it is a fault."""
    kind = CASES[name]
    report = kind.__doc__.partition(":")[0]
    plain, again = train(kind), train(kind)
    assert not first_difference(plain, again), f"{name} is another training each time"
    assert not plain.error, plain.error
    plans, why = offered(kind)
    found = {}
    for config in configs_of(plans):
        ways = []
        for mode in ("all", "off"):
            os.environ[VARIABLE] = mode
            ways.append(train(kind, config))
        found.setdefault(verdict(plain, *ways), []).append(config)
    words = "; ".join(f"{word} ({len(configs)} configs)" for word, configs in found.items())
    print(f"{report:32} {name:24} {words or 'refused: ' + ' '.join(why)}", flush=True)
    faults = {word: configs for word, configs in found.items() if word.startswith(("DIFFERENT", "ENDED"))}
    for word, configs in faults.items():
        print(f"    {word}: {configs}")
    return not faults and bool(found or why)


def main():
    """Print one line for each case."""
    warnings.filterwarnings("ignore")
    logging.getLogger("autorecompute").propagate = False
    torch.set_num_threads(1)
    names = sys.argv[1:] or list(CASES)
    right = [hold(name) for name in names]
    print(f"{sum(right)} of {len(names)} cases without a fault")
    sys.exit(sum(right) != len(names))


if __name__ == "__main__":
    main()
