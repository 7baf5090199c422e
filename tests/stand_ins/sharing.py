"""What tests of shared studies do to workers."""

import functools
import threading
import time

from autorecompute.studies.storage import read_trials
from autorecompute.units import MIB

LIMIT = 600 * MIB


def shorten_lives(monkeypatch):
    """Has workers beat often, and takes them for dead soon."""
    monkeypatch.setattr("autorecompute.studies.sharing.pulse.BEAT_SECONDS", 0.05)
    monkeypatch.setattr("autorecompute.studies.sharing.pulse.DEAD_SECONDS", 0.5)


def claim(worker, config, space):
    """The number under which a worker may measure a config."""
    return worker.claim(worker.new_claim(config, space.describe(config), "why"), space)


def die(worker):
    """Ends a worker as a kill would: its pulse stops, and it says nothing more."""
    worker._pulse.stop()
    worker.phases.clear()
    worker._held = None


def wait_until(condition, seconds=10.0):
    """Waits for what another worker's clock has to see."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


def run_all(tunings):
    """The answers of tunings that run at the same time."""
    answers = {}

    def run(place, tuning):
        answers[place] = tuning.run()

    run_together([functools.partial(run, *item) for item in enumerate(tunings)])
    return [answers[place] for place in range(len(tunings))]


def run_together(works):
    """Does several things at the same time."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measured(tuning):
    """What the folder of a worker knows of the whole study."""
    return read_trials(tuning.folder.database, tuning.folder.name_in_database)
