"""Where the trials of one tuning are kept when no other worker adds to the study."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from autorecompute.errors import SetupError, UsageError
from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.studies.shared_folder import shared_from
from autorecompute.studies.storage import TrialStore
from autorecompute.studies.tuned import bind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from contextlib import AbstractContextManager

    from autorecompute.plans import Config
    from autorecompute.result import Result
    from autorecompute.search import Proposal
    from autorecompute.studies import StudyFolder
    from autorecompute.tuning.context import TuningContext


class Ledger(Protocol):
    """What a tuning asks of the place where trials are kept."""

    @property
    def store(self) -> TrialStore | None:
        """Return the study's own database; ``None`` where other workers add trials, too."""
        ...

    @property
    def trials(self) -> list[Trial]:
        """Return all trials that ended, as of the last :meth:`refresh`."""
        ...

    @property
    def claimed(self) -> Collection[Config]:
        """Return what others measure at this moment."""
        ...

    @property
    def others(self) -> int:
        """Return how many others work on the study."""
        ...

    @property
    def is_closing(self) -> bool:
        """Tell whether another one makes the answer or has made it, so that there is nothing left to search for."""
        ...

    @property
    def is_confirming(self) -> bool:
        """Tell whether the answer is for this one to make."""
        ...

    @property
    def seconds(self) -> float:
        """Wall time spent on the study."""
        ...

    def begin(self) -> bool:
        """Ties the folder to the problem, and says whether the study is new. Workers agree on one problem.

        Raises:
            UsageError: the study holds another one.
        """
        ...

    def known_answer(self) -> Result | None:
        """Return the answer that there is."""
        ...

    def start(self) -> list[Trial]:
        """Trials are measured from now on. Gives those of earlier sessions whose folders are still to be filled."""
        ...

    def refresh(self) -> list[Trial]:
        """Look again; the trials of others that ended since."""
        ...

    def claim(self, proposal: Proposal, description: str) -> AbstractContextManager[int | None]:
        """Claim a config for the block, under a number; ``None`` where another one was first."""
        ...

    def keep(self, trial: Trial) -> Trial | None:
        """Keep a trial, and give it as it is kept; ``None`` where another one measured it meanwhile."""
        ...

    def wait(self) -> bool:
        """Wait where nothing is left to propose; tell whether others have changed that, else an answer is due."""
        ...

    def published_answer(self) -> Result | None:
        """Return the answer that another one made of this search, in this folder."""
        ...

    def resume(self) -> None:
        """Search for a better answer than the one that was published."""
        ...

    def publish(self, result: Result) -> Result:
        """Publish the answer. Return the one that stands: that of another worker, if that was first."""
        ...

    def close(self) -> None:
        """End; what was claimed is given back."""
        ...


class LocalLedger:
    """A study in its own folder, which one tuning at a time adds to.

    Args:
        context: What the tuning works with.
    """

    claimed: Collection[Config] = ()
    others = 0
    is_closing = False
    is_confirming = True

    def __init__(self, context: TuningContext) -> None:
        self._context, self._folder = context, context.folder
        self._opened: TrialStore | None = None

    @property
    def store(self) -> TrialStore:
        """Return its database."""
        assert self._opened is not None, "begin() opens it"
        return self._opened

    @property
    def trials(self) -> list[Trial]:
        """Return all trials that ended."""
        return self.store.trials

    @property
    def seconds(self) -> float:
        """Over all sessions."""
        return self.store.seconds

    def begin(self) -> bool:
        """Open the database, too."""
        problem, detection = self._context.problem, self._context.detection
        result = self.known_answer()
        if shared_from(self._folder) is not None and (
            result is None or result.can_go_on(self._context.settings.max_trials)
        ):
            raise UsageError(
                f"Study '{self._folder.name}' is shared with other workers: give the --storage that it is in, or begin "
                "another study with --study NAME."
            )
        is_new = bind(self._folder, self._context.tuned, self._context.note)
        self._opened = TrialStore(
            self._folder.database, self._folder.name_in_database, detection.space, problem.limit_bytes
        )
        self._folder.require_trials(len(self.trials))
        return is_new

    def known_answer(self) -> Result | None:
        """Return the answer of an earlier session; none where a training has disproved it."""
        result = self._folder.result()
        disproved = {rejection.config for rejection in self._folder.disproved()}
        return None if result is not None and result.best and result.best.config in disproved else result

    def start(self) -> list[Trial]:
        """Keep the trial that an earlier session took with it; only who holds the device knows it is over."""
        lost = self._trial_in_progress()
        # Between the database and the folder, too, a session may have gone away.
        last = self.trials[-1:]
        unwritten = [trial for trial in last if not (self._folder.trial(trial.number) / "result.json").is_file()]
        taken = [lost] if lost is not None and lost.number == self.store.next_number else []
        for trial in taken:
            self.store.add(trial)
        self._folder.end_trial()
        return unwritten + taken

    def _trial_in_progress(self) -> Trial | None:
        try:
            return self._folder.trial_in_progress()
        except SetupError:
            # What goes away with the machine may take the end of a file with it.
            self._context.note("the last run was interrupted while it measured a config; which one is not known")
            return None

    def refresh(self) -> list[Trial]:
        """Return no other worker adds a trial."""
        return []

    @contextmanager
    def claim(self, proposal: Proposal, description: str) -> Iterator[int | None]:
        """Leave a lost trial if this process dies before it can write down another one."""
        number = self.store.next_number
        with surviving_crash(self._folder, number, proposal, description):
            yield number

    def keep(self, trial: Trial) -> Trial:
        """On disk at once."""
        self.store.add(trial)
        return trial

    def wait(self) -> bool:
        """There is no other worker to wait for."""
        return False

    def published_answer(self) -> None:
        """There is no other worker."""

    def resume(self) -> None:
        """There is no published answer to improve."""

    def publish(self, result: Result) -> Result:
        """Return the folder has it."""
        return result

    def close(self) -> None:
        """Do nothing: nothing is held."""


LOSSES = 2
"""A machine may go away for reasons of its own, once; a config that it went away with twice is left alone."""


@contextmanager
def surviving_crash(folder: StudyFolder, number: int, proposal: Proposal, description: str) -> Iterator[None]:
    """Leave a trial with the outcome ``lost`` in the folder if this process dies in the block.

    Raises:
        SetupError: the folder cannot be written.
    """
    measurement = Measurement(outcome=Outcome.LOST, message="the machine or the tuner stopped while this was measured")
    folder.begin_trial(
        Trial(
            number=number,
            config=proposal.config,
            description=description,
            reason=proposal.reason,
            measurement=measurement,
        )
    )
    try:
        yield
    finally:
        folder.end_trial()


def settled(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials without the lost ones. A config that was lost too often keeps one lost trial."""
    losses: Counter[Config] = Counter()
    decided = []
    for trial in trials:
        losses[trial.config] += trial.measurement.outcome is Outcome.LOST
        if trial.measurement.outcome is not Outcome.LOST or losses[trial.config] == LOSSES:
            decided.append(trial)
    return decided
