"""What the peak may reach where the user gives no limit."""

import pytest

from autorecompute.studies import Problem, Sizes, StudyFolder
from autorecompute.studies.problem import Head
from autorecompute.training_job import Device
from autorecompute.tuning.context import RESERVE_BYTES, available_bytes, choose_limit
from autorecompute.units import GIB, KIB, MIB
from stand_ins.studies import COMMAND


@pytest.fixture
def on_card(make_detection):
    """Detects on a card with 40 GiB, of which so much is in use outside of the allocator."""
    card = Device(kind="cuda", name="card", uuid="1", total_bytes=40 * GIB)
    return lambda outside: make_detection(device=card, outside_bytes=outside)


@pytest.fixture
def folder(tmp_path):
    folder = StudyFolder("study", tmp_path)
    folder.prepare()
    return folder


@pytest.mark.parametrize(
    ("outside", "available"),
    [
        (3 * GIB, 37 * GIB - RESERVE_BYTES),
        (3 * GIB + 1, 37 * GIB - RESERVE_BYTES - MIB),
        (40 * GIB, 0),
        (None, 36 * GIB),
    ],
    ids=["what is left", "whole MiB", "a full card", "a card that does not tell"],
)
def test_a_card_has_what_others_and_a_reserve_leave(on_card, folder, outside, available):
    assert available_bytes(on_card(outside)) == available
    assert choose_limit(on_card(outside), folder, pytest.fail) == available


def test_a_cpu_has_nine_tenths(make_detection):
    assert available_bytes(make_detection(device=Device(kind="cpu", name="cpu", total_bytes=10 * GIB))) == 9 * GIB


def test_a_restart_does_not_change_the_limit_of_a_cpu(make_detection, folder):
    """A kernel that keeps 12 KiB more gives the same limit, and a study with an odd one goes on without a warning."""
    machines = [Device(kind="cpu", name="cpu", total_bytes=25276514304 - less) for less in (0, 12 * KIB)]
    before, after = (make_detection(device=machine) for machine in machines)
    assert available_bytes(before) == available_bytes(after)
    folder.keep_head(Head.of(folder.name, COMMAND, Problem.of(before, int(25276514304 * 0.9)), Sizes()))
    assert choose_limit(after, folder, pytest.fail) == int(25276514304 * 0.9)


@pytest.mark.parametrize(
    ("outside", "said"), [(2 * GIB, []), (5 * GIB, ["warning: 2.00 GiB less is free than when the study began"])]
)
def test_a_study_that_was_begun_keeps_its_limit_and_a_shortage_is_told(on_card, folder, outside, said):
    limit = choose_limit(on_card(3 * GIB), folder, pytest.fail)
    folder.keep_head(Head.of(folder.name, COMMAND, Problem.of(on_card(3 * GIB), limit), Sizes()))
    heard = []
    assert choose_limit(on_card(outside), folder, heard.append) == limit
    assert heard == said
