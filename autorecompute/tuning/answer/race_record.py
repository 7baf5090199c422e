"""``race.json``: the rounds of the last race, so that whoever was interrupted after them need not run them again."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.studies.race import FILE, RaceRecord, StandingRecord
from autorecompute.tuning.answer.race import Raced
from autorecompute.tuning.answer.standings import Heat, Standing

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Config
    from autorecompute.studies import StudyFolder


def keep_race(folder: StudyFolder, raced: Raced, trials: int) -> None:
    """Writes down how far a race has come.

    Args:
        folder: The study.
        raced: The race.
        trials: How many trials the study has.

    Raises:
        SetupError: the folder cannot be written.
    """
    runners = (
        StandingRecord(
            trial=entry.trial.number,
            description=entry.trial.description,
            peak_bytes=entry.peak_bytes,
            rounds=entry.heats,
        )
        for entry in raced.standings
    )
    record = RaceRecord(
        ranking=raced.ranking,
        standings=tuple(runners),
        over_limit=tuple(entry.trial.number for entry in raced.over_limit),
        failed=tuple(entry.trial.number for entry in raced.failed),
        trials=trials,
    )
    folder.write(FILE, codec.to_plain(record))


def known_race(folder: StudyFolder, trials: Sequence[Trial]) -> Raced | None:
    """The race that was held among these trials; ``None`` where none was.

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
    numbers = [runner.trial for runner in record.standings]
    if not numbers or not fitting.keys() >= {*numbers, *record.over_limit, *record.failed}:
        return None
    return Raced(
        standings=tuple(
            Standing(trial=fitting[runner.trial], heats=tuple(Heat(**asdict(heat)) for heat in runner.rounds))
            for runner in record.standings
        ),
        ranking=record.ranking,
        over_limit=tuple(Standing(trial=fitting[number]) for number in record.over_limit),
        failed=tuple(Standing(trial=fitting[number]) for number in record.failed),
    )


def race_winner(folder: StudyFolder, trials: Sequence[Trial], rejected: Collection[Config]) -> Trial | None:
    """Who came first in it, of those that may be the answer; ``None`` where there is no race, or it is not over.

    Args:
        folder: The study.
        trials: All that was measured.
        rejected: The configs that cannot be the answer.

    Raises:
        SetupError: the file cannot be read.
    """
    raced = known_race(folder, trials)
    if raced is None or not raced.is_over:
        return None
    return next((entry.trial for entry in raced.standings if entry.trial.config not in rejected), None)
