"""A tuning keeps to its time, of which it reserves some for the end; and it chooses a limit where none is given."""

import contextlib
import random
import shutil

import pytest

from autorecompute import waiting
from autorecompute.errors import NothingFitsError
from autorecompute.figures import Verdict
from autorecompute.plans import Config
from autorecompute.result import SearchEnd
from autorecompute.studies import Problem, Sizes, StudyFolder
from autorecompute.studies.problem import Head
from autorecompute.training_job import Device
from autorecompute.tuning.context import RESERVE_BYTES, available_bytes, choose_limit
from autorecompute.units import GIB, KIB, MIB
from stand_ins.formula import instead, stop
from stand_ins.studies import COMMAND
from unit.conftest import build_detection

START = 15.0


@pytest.fixture
def make_timed(make_tuning, make_timed_bench, clock):
    """Begins a session of one study that has so many seconds from now on."""

    def make(timeout, *, start_seconds=START, **settings):
        bench = make_timed_bench(start_seconds=start_seconds)
        return make_tuning(bench, timeout_seconds=timeout, began_seconds=clock.now, **settings)

    return make


@pytest.mark.parametrize(("timeout", "seed"), [(45.0, 0), (90.0, 1), (300.0, 0)])
def test_a_timeout_is_kept_and_ends_with_a_confirmed_answer(make_timed, clock, timeout, seed):
    """On a machine whose pace varies by a tenth."""
    chance, advance, began = random.Random(seed), clock.advance, clock.now
    clock.advance = lambda seconds: advance(seconds * chance.uniform(0.9, 1.1))
    result = make_timed(timeout, start_seconds=10.0).run()
    assert clock.now - began <= 1.1 * timeout
    assert result.best.confirmed
    assert result.best.peak_bytes <= 600 * MIB
    assert result.search_end is SearchEnd.TIME or result.best.ranking is not None


def test_the_least_timeout_confirms_the_first_config_that_fits(make_timed, make_timed_bench):
    bench = make_timed_bench()
    trial = bench.SWAP_SECONDS + 7 * bench.seconds(Config(), 32)
    assert make_timed(2 * (START + trial), limit_bytes=1000 * MIB).run().verdict is Verdict.NOT_NEEDED


@pytest.mark.parametrize(
    ("timeout", "advice"), [(5.0, "Give it --timeout 10s at least"), (20.0, "Give it --timeout 60s at least")]
)
def test_too_little_time_ends_at_once_and_says_so(make_timed, clock, timeout, advice):
    began, tuning = clock.now, make_timed(timeout)
    with pytest.raises(NothingFitsError, match=f"before the first trial.*{advice}"):
        tuning.run()
    assert clock.now - began <= 1.1 * timeout
    assert tuning.bench.measured == []


@pytest.mark.parametrize("timeout", [5.0, 20.0], ids=["while the script starts", "after it"])
def test_too_little_time_for_more_tells_what_is_kept(make_timed, make_tuning, clock, timeout):
    count = len(stop(make_tuning(limit_bytes=200 * MIB), interrupt_at=4).folder.kept_trials())
    again = make_timed(timeout, limit_bytes=200 * MIB)
    if timeout > START:
        again.bench.detect = lambda: clock.advance(1000.0)
    with pytest.raises(NothingFitsError, match=f"before another trial.*{count} trials kept in .*Rerun the command"):
        again.run()


def test_a_tuning_that_the_time_ended_goes_on_and_compares_with_more(make_timed):
    first, more = make_timed(60.0), make_timed(None)
    result = first.run()
    assert (result.rival, result.compared, result.search_end) == (None, False, SearchEnd.TIME)
    result = more.run()
    assert (result.compared, result.search_end) == (True, SearchEnd.NOTHING_LEFT)
    assert more.tried
    assert not set(more.tried) & set(first.tried)


def test_a_hanging_script_does_not_outlast_the_time(make_timed, clock):
    began, tuning = clock.now, make_timed(800.0)
    tuning.bench.step_seconds = 1.0

    def hang_in_the_end(measure, *arguments):
        clock.advance(10_000.0 * bool(tuning.bench.watched))
        return measure(*arguments)

    instead(tuning.bench, "measure", hang_in_the_end)
    result = tuning.run()
    assert (result.search_end, result.best.confirmed) == (SearchEnd.TIME, True)
    assert clock.now - began <= 1.1 * 800.0


def test_a_wait_for_the_device_takes_nothing_of_the_time(make_timed, clock, monkeypatch):
    tried = []
    for waited_seconds in (0.0, 5000.0):

        @contextlib.contextmanager
        def hold_late(_device, _purpose, _on_wait, waited_seconds=waited_seconds):
            with waiting.standing():
                clock.advance(waited_seconds)
                waiting.raise_if_over()
            yield

        monkeypatch.setattr("autorecompute.tuning.context.hold_device", hold_late)
        tuning = make_timed(200.0, start_seconds=5.0)
        tuning.run()
        tried.append(tuning.tried)
        shutil.rmtree(tuning.folder.path)
    assert tried[0] == tried[1] != []


def test_time_that_ends_after_the_search_is_no_proof_that_nothing_fits(make_timed, clock):
    first, end_seconds = make_timed(90.0, start_seconds=5.0, max_trials=3), clock.now + 89.0

    def lose_time(keep_trial, trial, *args):
        keep_trial(trial, *args)
        if trial.number == 2:
            clock.now = end_seconds

    instead(first.folder, "keep_trial", lose_time)
    with pytest.raises(NothingFitsError, match=r"over before a config was confirmed.*not confirmed: .*--timeout"):
        first.run()
    assert (first.folder.result().search_end, first.folder.result().best) == (SearchEnd.TIME, None)
    assert (len(first.tried), first.bench.watched) == (3, [])
    second = make_timed(None, max_trials=3)
    assert (second.run().best.confirmed, second.tried) == (True, [])


def on_card(outside):
    """A detection on a card with 40 GiB, of which so much is in use outside of the allocator."""
    card = Device(kind="cuda", name="card", uuid="1", total_bytes=40 * GIB)
    return build_detection(device=card, outside_bytes=outside)


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
def test_a_card_has_what_others_and_a_reserve_leave(folder, outside, available):
    assert available_bytes(on_card(outside)) == available
    assert choose_limit(on_card(outside), folder, pytest.fail) == available


def test_a_cpu_has_nine_tenths_which_a_restart_does_not_change(folder):
    """A kernel that keeps 12 KiB more gives the same limit, and a study with an odd one goes on without a warning."""
    assert available_bytes(build_detection(device=Device(kind="cpu", name="cpu", total_bytes=10 * GIB))) == 9 * GIB
    machines = [Device(kind="cpu", name="cpu", total_bytes=25276514304 - less) for less in (0, 12 * KIB)]
    before, after = (build_detection(device=machine) for machine in machines)
    assert available_bytes(before) == available_bytes(after)
    folder.keep_head(Head.of(folder.name, COMMAND, Problem.of(before, int(25276514304 * 0.9)), Sizes()))
    assert choose_limit(after, folder, pytest.fail) == int(25276514304 * 0.9)


@pytest.mark.parametrize(
    ("outside", "said"), [(2 * GIB, []), (5 * GIB, ["warning: 2.00 GiB less is free than when the study began"])]
)
def test_a_study_that_was_begun_keeps_its_limit_and_a_shortage_is_told(folder, outside, said):
    limit = choose_limit(on_card(3 * GIB), folder, pytest.fail)
    folder.keep_head(Head.of(folder.name, COMMAND, Problem.of(on_card(3 * GIB), limit), Sizes()))
    heard = []
    assert choose_limit(on_card(outside), folder, heard.append) == limit
    assert heard == said
