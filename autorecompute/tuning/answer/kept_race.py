"""The race in the study's folder: kept after each round, read by the next session and by the other workers."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.studies.race_record import FILE, RaceRecord, StandingRecord
from autorecompute.tuning.answer.finalists import Finalist, Round
from autorecompute.tuning.answer.race import RaceResult

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Config
    from autorecompute.studies import StudyFolder


def keep_race(folder: StudyFolder, raced: RaceResult, trials: int) -> None:
    """Write down how far a race has come.

    Args:
        folder: The study.
        raced: The race.
        trials: How many trials the study has.

    Raises:
        SetupError: the folder cannot be written.
    """
    record = RaceRecord(
        ranking=raced.ranking,
        standings=tuple(map(_record_of, raced.standings)),
        over_limit=tuple(map(_record_of, raced.over_limit)),
        failed=tuple(entry.trial.number for entry in raced.failed),
        trials=trials,
    )
    folder.write(FILE, codec.to_plain(record))


def _record_of(entry: Finalist) -> StandingRecord:
    return StandingRecord(
        trial=entry.trial.number,
        description=entry.trial.description,
        peak_bytes=entry.peak_bytes,
        rounds=entry.rounds,
    )


def read_race(folder: StudyFolder, trials: Sequence[Trial]) -> RaceResult | None:
    """Return the race that was held among these trials; ``None`` where none was.

    Args:
        folder: The study.
        trials: All that was measured.

    Raises:
        SetupError: the file cannot be read.
    """
    record = folder.read(FILE, RaceRecord)
    if record is None or record.trials != len(trials):
        return None
    fitting = {trial.number: trial for trial in trials if trial.fits}
    numbers = {runner.trial for runner in (*record.standings, *record.over_limit)}
    if not record.standings or not fitting.keys() >= {*numbers, *record.failed}:
        return None

    def finalist_of(runner: StandingRecord) -> Finalist:
        return Finalist(trial=fitting[runner.trial], rounds=tuple(Round(**asdict(run)) for run in runner.rounds))

    return RaceResult(
        standings=tuple(map(finalist_of, record.standings)),
        ranking=record.ranking,
        over_limit=tuple(map(finalist_of, record.over_limit)),
        failed=tuple(Finalist(trial=fitting[number]) for number in record.failed),
    )


def race_winner(folder: StudyFolder, trials: Sequence[Trial], rejected: Collection[Config]) -> Trial | None:
    """Return who came first in it, of those that may be the answer; ``None`` where there is no race, or it is not over.

    Args:
        folder: The study.
        trials: All that was measured.
        rejected: The configs that cannot be the answer.

    Raises:
        SetupError: the file cannot be read.
    """
    raced = read_race(folder, trials)
    if raced is None or not raced.is_over:
        return None
    return next((entry.trial for entry in raced.standings if entry.trial.config not in rejected), None)
