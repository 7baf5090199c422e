"""The rival of recompute: a smaller batch without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.measurement import Measurement, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.studies import Problem
    from autorecompute.trials import Bench
    from autorecompute.trials.bench import Effort

ATTEMPTS = 3

CLEARLY_LARGER = 1.1
"""After a batch that fits, only one that is larger by this factor is worth another process."""


def measure_rival(  # noqa: PLR0913  (what its batch is guessed from, and whether there is time)
    bench: Bench,
    effort: Effort,
    problem: Problem,
    *,
    resting_bytes: int,
    peak_bytes: int | None,
    has_time: Callable[[], bool] = lambda: True,
) -> Measurement | None:
    """The largest batch found to fit without recompute, measured in a fresh process; ``None`` where none fits.

    Activations grow in proportion to the batch, so the first guess is near; each further one learns from the last.
    Where the baseline ran out of memory the first one is a mere half, and more than that may fit.

    Args:
        bench: Where it is measured.
        effort: How long.
        problem: The target batch, which does not fit without recompute, and the limit.
        resting_bytes: Memory without any activation.
        peak_bytes: Peak at the target batch without recompute; ``None`` where it ran out of memory.
        has_time: Whether there is time for another fresh process.
    """
    batch, limit_bytes = problem.batch, problem.limit_bytes
    guess = batch // 2 if peak_bytes is None else _largest(batch, limit_bytes, resting_bytes, peak_bytes)
    # A baseline whose steps fit, and whose whole process did not, lets the estimate reach the target itself.
    guess = min(guess, batch - 1)
    found, least, too_large = None, 1.0, batch
    for _ in range(ATTEMPTS):
        if guess < least or not has_time():
            break
        measurement = bench.watch({}, effort, guess)
        peak = measurement.peak_bytes
        if measurement.outcome is Outcome.OK and peak is not None and peak <= limit_bytes:
            found, least = measurement, guess * CLEARLY_LARGER
        else:
            too_large = guess
        fitting = guess // 2 if peak is None else _largest(guess, limit_bytes, resting_bytes, peak)
        guess = min(fitting, too_large - 1)
    return found


def _largest(batch: int, limit_bytes: int, resting_bytes: int, peak_bytes: int) -> int:
    bytes_per_sample = max(peak_bytes - resting_bytes, 1) / batch
    return int((limit_bytes - resting_bytes) / bytes_per_sample)
