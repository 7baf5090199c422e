"""Workers of one study: real commands on the fake backend, each in a folder and on a device of its own."""

import functools
from pathlib import Path

import optuna
from optuna.trial import TrialState

from fake_backend import program
from fake_backend.trainer import launcher
from workplace import QUICK, Workplace

ROOT = Path(__file__).parents[2]
STUDY = "shared"
ENVIRONMENT = {
    # Threads of several workers that wait for each other on two cores take ten times as long as one each.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # None takes another one for dead that has beaten within half an hour, however busy the machine is.
    "FAKE_GRACE": "1800",
}
TUNING = ("tune", "train.py", *QUICK, "--memory-limit", "750MiB", "--sampler", "random", "--study", STUDY, "--json")


class Worker(Workplace):
    def __init__(self, storage, folder, *options, **variables):
        # Two in one temporary folder would wait for each other's device.
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        super().__init__(folder, str(folder / "tmp"), **{**ENVIRONMENT, **variables})
        (folder / "train.py").touch()
        self.process = self.start(program.__file__, *TUNING, "--launcher", launcher(), "--storage", storage, *options)

    @property
    def configs(self):
        """Return what it measured itself."""
        return self.study(STUDY).configs

    @functools.cached_property
    def finished(self):
        """How it ended, once it has; what it said is kept in a file, as all else that may hold a password."""
        finished = self.finish(self.process)
        (self.path / "said").write_text(finished.stdout + finished.stderr)
        return finished

    @property
    def answer(self):
        assert self.finished.code == 0, self.finished.stderr
        return self.finished.answer

    def await_trial(self, number):
        """Waits until it hangs in its nth trial, counted from 0."""
        self.wait_until(lambda: self.process.poll() is not None or self.has_printed(f"hang at {number}"))
        assert self.process.poll() is None, self.finished.stderr

    def has_printed(self, word):
        return any(word in log.read_text() for log in self.path.glob("studies/*/workers/*/*.log"))

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def go_on(self):
        (self.path / "go").touch()


def essence(answer):
    """What the workers of one study have to agree on: all but the folder that the emitted files lie in."""
    best = {name: value for name, value in answer["best"].items() if name != "env"}
    return answer | {"best": best, "wall_seconds": None}


def stored(storage):
    opened = optuna.storages.RDBStorage(storage.replace("postgresql://", "postgresql+psycopg://"))
    trials = optuna.load_study(study_name=STUDY, storage=opened).get_trials(deepcopy=False)
    opened.remove_session()
    opened.engine.dispose()
    return trials


def assert_nothing_is_lost_or_doubled(storage, configs, *, interrupted=0):
    """Every config was measured once and is kept, but for so many whose worker was killed in the middle; none hangs.

    Gives the hashes of these.
    """
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
    return {trial.user_attrs["hash"] for trial in lost}
