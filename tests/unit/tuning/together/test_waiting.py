import fcntl

import pytest

from autorecompute.errors import LeftToOthers, TooLittleTimeError
from autorecompute.trials.lock import lock_file
from stand_ins.sharing import wait_until


@pytest.fixture
def hold():
    files = []

    def hold(tuning, purpose):
        files.append(lock_file(tuning.bench.detection.device).open("a"))
        fcntl.flock(files[-1], fcntl.LOCK_EX)
        files[-1].write(f"process 7 ({purpose})")
        files[-1].flush()

    yield hold
    for file in files:
        file.close()


@pytest.mark.parametrize(
    ("is_same", "words"),
    [
        (True, "another worker of this study is using this device, after .* of waiting for it"),
        (False, "another tuning is using this device, after .* of waiting for it.*--timeout"),
    ],
)
def test_a_device_that_was_not_free_in_time(work_in, root, hold, is_same, words):
    tuning = work_in("mine", timeout_seconds=1.0)
    hold(tuning, f"study 'bert' in journal:{root}/journal" if is_same else "study /elsewhere/bert")
    with pytest.raises(TooLittleTimeError, match=words):
        tuning.run()
    (note,) = [note for note in tuning.watcher.notes if "waiting for the device" in note]
    assert ("for this same study: it is taken over" in note) == is_same


def test_a_worker_says_which_study_it_measures_for(work_in, root):
    tuning, told = work_in("mine"), []
    watch = tuning.bench.watch
    tuning.bench.watch = lambda *args: told.append(lock_file(tuning.bench.detection.device).read_text()) or watch(*args)
    tuning.run()
    assert f"(study 'bert' in journal:{root}/journal)" in told[0]


def test_what_is_waited_for_is_told(work_in, partner, monkeypatch):
    monkeypatch.setattr("autorecompute.tuning.peers.QUIET_SECONDS", 0.1)
    tuning = work_in("mine", timeout_seconds=1.0)
    with pytest.raises(LeftToOthers):
        tuning.run()
    notes = tuning.watcher.notes
    assert sum(note.startswith("waiting for trial 0 of other workers") for note in notes) == 1
    assert "1 other worker may be there or gone: no sign of life was seen yet" in notes
    assert partner.view.running


@pytest.mark.usefixtures("short_lives")
def test_who_is_alive_is_counted(work_in, partner):
    tuning = work_in("mine")
    shared, measure = tuning.tuner._context.shared, tuning.bench.measure
    wait_until(lambda: shared.refresh() and shared.seen)
    partner.give_up()
    tuning.bench.measure = lambda *args: partner.leave() or measure(*args)
    tuning.run()
    assert "shares the study with 1 other worker" in tuning.watcher.notes
    assert not any("no sign of life" in note for note in tuning.watcher.notes)
