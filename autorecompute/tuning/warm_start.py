"""Starts a study from what another one knows: its answer where the problem is the same, else a prior."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.result import Transfer
from autorecompute.search import Prior
from autorecompute.search.searcher import slowness

if TYPE_CHECKING:
    from autorecompute.plans import Config
    from autorecompute.studies import StudyFolder
    from autorecompute.studies.storage import TrialStore
    from autorecompute.studies.transfer import Neighbour

FINALISTS = 3
"""So many of a stored study's fastest are taken for its finalists where it has raced none."""


IN_A_FOLDER = "shared, not in a folder of its own"
"""What a study that several workers share has otherwise than a stored one of the same problem."""

BEGUN_BEFORE = "this study had begun already"
"""What a study that is gone on with has otherwise: it takes over nothing."""


def start_from(
    neighbour: Neighbour, folder: StudyFolder, store: TrialStore | None, *, is_new: bool
) -> tuple[Transfer, Prior | None]:
    """Return what the nearest study has for a study; a new one takes over all of a study of the same problem.

    Args:
        neighbour: The nearest study.
        folder: The study.
        store: The trials of that study; ``None`` where others add to them, too, so that it takes over nothing.
        is_new: Whether the study has just begun.

    Raises:
        SetupError: the new study cannot be written.
    """
    if not neighbour.differences:
        if store is None:
            neighbour = replace(neighbour, differences=(IN_A_FOLDER,))
        elif is_new:
            adopt(neighbour, folder, store)
        elif not _has_adopted(neighbour, folder, store):
            neighbour = replace(neighbour, differences=(BEGUN_BEFORE,))
    return transfer_of(neighbour), prior_of(neighbour) if neighbour.differences else None


def transfer_of(neighbour: Neighbour) -> Transfer:
    """Return what the answer says of the study that a tuning starts from."""
    return Transfer(study=neighbour.name, differences=neighbour.differences)


def prior_of(neighbour: Neighbour) -> Prior:
    """Return what the search may know of the stored study."""
    problem, sizes = neighbour.tuned.problem, neighbour.tuned.sizes
    return Prior(
        source=neighbour.name,
        batch=problem.batch,
        limit_bytes=problem.limit_bytes,
        resting_bytes=sizes.resting_bytes,
        dims=sizes.dims,
        trials=neighbour.records.trials,
        answer=_answer_of(neighbour),
        finalists=_finalists_of(neighbour),
    )


def adopt(neighbour: Neighbour, folder: StudyFolder, store: TrialStore) -> None:
    """Take over all that a study of the same problem knows into one that has just begun.

    Raises:
        SetupError: the new study cannot be written, or the stored one cannot be read.
    """
    for trial in neighbour.records.trials:
        store.add(trial)
    folder.keep_rejections(neighbour.records.rejections)
    folder.keep_confirmed(neighbour.records.confirmed)
    result = neighbour.records.result
    if result is not None:
        folder.finish(replace(result, study=folder.name, transferred_from=transfer_of(neighbour)))


def _has_adopted(neighbour: Neighbour, folder: StudyFolder, store: TrialStore) -> bool:
    """Tell whether an earlier session took over all that the stored study knows."""
    known, own = list(neighbour.records.trials), folder.kept_trials()
    # Trials that are the same may have been taken over the other way round: what was measured here has a folder.
    return store.trials[: len(known)] == known and known[0].number not in own


def _answer_of(neighbour: Neighbour) -> Config | None:
    result = neighbour.records.result
    if result is None or result.best is None:
        return None
    config = result.best.config
    # What a knob made of the winner is not for those who do not turn it.
    return config if any(trial.config == config for trial in neighbour.records.trials) else None


def _finalists_of(neighbour: Neighbour) -> tuple[Config, ...]:
    result = neighbour.records.result
    raced = result.raced if result is not None else {}
    fitting = [trial for trial in neighbour.records.trials if trial.fits]
    if raced:
        fitting = [trial for trial in fitting if trial.config.hash in raced]
        fitting.sort(key=lambda trial: raced[trial.config.hash], reverse=True)
    else:
        fitting.sort(key=slowness)
    return tuple(trial.config for trial in fitting[:FINALISTS])
