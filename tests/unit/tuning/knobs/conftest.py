"""Tunings with knobs that say what each of them does."""

from __future__ import annotations

import pytest

from autorecompute.backends.ortmodule import knobs as ortmodule_knobs
from stand_ins.knobs import knob


@pytest.fixture
def offer(monkeypatch):
    """Offers these knobs, whatever machine this is."""

    def offer(*knobs):
        monkeypatch.setattr(ortmodule_knobs, "knobs_for", lambda *_: knobs)

    return offer


@pytest.fixture
def turn(make_tuning, offer):
    """Tunes with knobs, given by variable what each does and how it is offered."""

    def turn(effects, *knobs, **settings):
        offer(*(knobs or [knob(variable) for variable in effects]))
        tuning = make_tuning(max_trials=8, turns_knobs=True, **settings)
        tuning.bench.knobs = effects
        return tuning, tuning.run()

    return turn


@pytest.fixture
def plain(make_root, tune_in):
    """The answer without knobs."""
    return tune_in(make_root(), max_trials=8).run()
