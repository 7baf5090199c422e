import pytest

from autorecompute.studies import Problem, StudyFolder
from autorecompute.training_job import Device
from autorecompute.tuning.resources import RESERVE_BYTES, available_bytes, choose_limit
from autorecompute.units import GIB, KIB, MIB


@pytest.fixture
def on_card(make_detection):
    card = Device(kind="cuda", name="card", uuid="1", total_bytes=40 * GIB)
    return lambda outside: make_detection(device=card, outside_bytes=outside)


def test_on_a_card_it_is_what_is_left(on_card):
    assert available_bytes(on_card(3 * GIB)) == 37 * GIB - RESERVE_BYTES


def test_it_is_whole_mib(on_card):
    assert available_bytes(on_card(3 * GIB + 1)) == 37 * GIB - RESERVE_BYTES - MIB


def test_a_full_card_leaves_nothing(on_card):
    assert available_bytes(on_card(40 * GIB)) == 0


def test_a_card_that_does_not_tell_is_taken_for_nine_tenths(on_card):
    assert available_bytes(on_card(None)) == 36 * GIB


def test_on_a_cpu_it_is_nine_tenths(make_detection):
    detection = make_detection(device=Device(kind="cpu", name="cpu", total_bytes=10 * GIB))
    assert available_bytes(detection) == 9 * GIB


def test_a_restart_does_not_change_the_limit_of_a_cpu(make_detection, folder):
    machines = [Device(kind="cpu", name="cpu", total_bytes=25276514304 - less) for less in (0, 12 * KIB)]
    before, after = (make_detection(device=machine) for machine in machines)
    assert available_bytes(before) == available_bytes(after)
    folder.prepare()
    folder.begin(Problem.of(before, int(25276514304 * 0.9)), ["python", "train.py"])
    assert choose_limit(after, folder, pytest.fail) == int(25276514304 * 0.9)


@pytest.fixture
def folder(tmp_path):
    return StudyFolder("study", tmp_path)


def test_a_new_study_takes_what_is_free(on_card, folder):
    assert choose_limit(on_card(3 * GIB), folder, pytest.fail) == 37 * GIB - RESERVE_BYTES


@pytest.mark.parametrize(
    ("outside", "said"), [(2 * GIB, []), (5 * GIB, ["warning: 2.00 GiB less is free than when the study began"])]
)
def test_a_study_that_was_begun_keeps_its_limit(on_card, folder, outside, said):
    limit = choose_limit(on_card(3 * GIB), folder, pytest.fail)
    folder.prepare()
    folder.begin(Problem.of(on_card(3 * GIB), limit), ["python", "train.py"])
    heard = []
    assert choose_limit(on_card(outside), folder, heard.append) == limit
    assert heard == said
