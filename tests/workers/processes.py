import json
import os
import subprocess
import sys
import time
from pathlib import Path

import optuna
from optuna.trial import TrialState

SCRIPT = Path(__file__).with_name("replayed.py")
ROOT = Path(__file__).parents[2]
STUDY = "shared"
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    # Threads of eight workers that wait for each other on two cores take ten times as long as one each.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
HANG_SECONDS = 1200
SLEEP_SECONDS = 0.02

BEGINS, MEASURED, CHECKED = "begins", "ended", "checked"
"""Tells of a config as a worker writes it down: a trial begins and is over, gradients are compared."""


class Worker:
    """One process of ``replayed.py`` in a folder of its own."""

    def __init__(self, storage, folder, *options, environment=None):
        self.folder = folder
        self._out, self._err = folder.with_suffix(".out"), folder.with_suffix(".err")
        command = [sys.executable, SCRIPT, "--storage", storage, "--study", STUDY, "--folder", folder]
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [*command, *map(str, options)],
                env=os.environ | ENVIRONMENT | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def talk(self):
        return self._err.read_text()

    @property
    def notes(self):
        """What it did, as pairs of what and the config."""
        file = self.folder / "measured.jsonl"
        lines = map(json.loads, file.read_text().splitlines() if file.exists() else [])
        return [(line["what"], tuple(line["config"])) for line in lines]

    def configs(self, what):
        return [config for done, config in self.notes if done == what]

    def wait(self):
        return self.process.wait(HANG_SECONDS)

    def answer(self):
        code = self.wait()
        assert code == 0, self.talk
        return json.loads(self._out.read_text())

    def tell(self, word):
        """Has it ``go`` on where it is held."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / word).touch()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def await_note(self, what, *, times=1):
        """Waits until it has done something so often."""
        self.await_that(lambda: len(self.configs(what)) >= times)

    def await_that(self, happened):
        """Waits for something, as long as the worker lives."""
        deadline = time.monotonic() + HANG_SECONDS
        while not happened():
            assert self.process.poll() is None, self.talk
            assert time.monotonic() < deadline, self.talk
            time.sleep(SLEEP_SECONDS)


def essence(answer):
    """What the workers of one study have to agree on: all but the folder that the emitted files lie in."""
    best = {name: value for name, value in answer["best"].items() if name != "env"}
    return answer | {"best": best, "wall_seconds": None}


def measured(workers):
    return [config for worker in workers for config in worker.configs(MEASURED)]


def stored(storage):
    opened = optuna.storages.RDBStorage(storage.replace("postgresql://", "postgresql+psycopg://"))
    trials = optuna.load_study(study_name=STUDY, storage=opened).get_trials(deepcopy=False)
    opened.remove_session()
    opened.engine.dispose()
    return trials


def assert_nothing_is_lost_or_doubled(storage, workers, *, interrupted=0):
    """Every config was measured once and is kept, but for so many whose worker was killed in the middle; none hangs."""
    configs = measured(workers)
    assert len(configs) == len(set(configs))
    trials = stored(storage)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert all(trial.state.is_finished() for trial in trials)
    told = [trial for trial in trials if trial.user_attrs.get("trial") is not None]
    kept = [trial for trial in told if "outcome" in trial.user_attrs]
    assert len({trial.user_attrs["hash"] for trial in kept}) == len(kept) == len(configs)
    lost = [trial for trial in told if trial not in kept]
    assert len(lost) == interrupted
    assert all(trial.state is TrialState.FAIL for trial in lost)
