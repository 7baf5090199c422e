import time
from types import SimpleNamespace

import pytest

from autorecompute.studies import StudyFolder
from autorecompute.tuning.budget import Budget, Task
from autorecompute.tuning.step_profiles import analyse

START_SECONDS, TRIAL_SECONDS = 20.0, 2.0


@pytest.fixture
def make_context(tmp_path):
    def build(*, can_change_batch):
        folder = StudyFolder("bert", tmp_path)
        folder.prepare()
        notes = []
        closed = SimpleNamespace(can_change_batch=can_change_batch, close=lambda: notes.append("closed"))
        return SimpleNamespace(folder=folder, bench=closed, note=notes.append, notes=notes)

    return build


@pytest.fixture
def make_budget():
    def build(seconds):
        budget = Budget(seconds, time.monotonic())
        budget._seen[Task.START].append(START_SECONDS)
        budget._seen[Task.TRIAL].append(TRIAL_SECONDS)
        return budget

    return build


@pytest.mark.parametrize(("can_change_batch", "seconds"), [(False, 60.0), (True, 25.0)])
def test_without_time_for_an_answer_after_them_small_steps_are_left_out(
    make_context, make_budget, make_detection, can_change_batch, seconds
):
    context = make_context(can_change_batch=can_change_batch)
    context.detection, context.budget = make_detection(), make_budget(seconds)
    assert analyse(context) is None
    assert context.notes == ["no time to profile small steps, the search begins without"]
