"""What a check of a stored config came to: what is stored, what is here now, and whether the config still holds."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from autorecompute.ranges import PositiveBytes, Rate, Ratio


class CheckVerdict(enum.StrEnum):
    """What a line of a check says."""

    OK = "ok"
    """As it was stored, or as good."""
    DIFFERS = "differs"
    """Another than stored; the config may hold all the same."""
    NOT_CHECKED = "not_checked"
    """Not to be told here; the config may hold all the same."""
    NOT_COMPARED = "not_compared"
    """The config is called valid only once this is known, and what kept it from being found out may not last."""
    FAILS = "fails"
    """The config is not valid here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLine:
    """One thing that was checked.

    Attributes:
        what: Its name.
        stored: What the study has, in words.
        here: What was found now.
        verdict: What that means.
        note: More about it; empty where there is nothing to say.
    """

    what: str
    stored: str
    here: str
    verdict: CheckVerdict = CheckVerdict.OK
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All that a check found.

    Attributes:
        study: The study.
        config: Its config in a few words.
        command: The command that was run.
        lines: What was checked, in order.
        limit_bytes: What its peak may reach.
        peak_bytes: The highest peak of the config's steps; ``None`` where it was not measured.
        samples_per_second: Median throughput of its rounds; ``None`` where it was not measured.
        relative_throughput: The median of its rounds, as a share of that without recompute beside it; ``None`` where
            the two were not compared.
    """

    study: str
    config: str
    command: tuple[str, ...]
    lines: tuple[CheckLine, ...]
    limit_bytes: PositiveBytes
    peak_bytes: PositiveBytes | None = None
    samples_per_second: Rate | None = None
    relative_throughput: Ratio | None = None

    @property
    def is_valid(self) -> bool:
        """Tell whether the config still holds here: all that it takes was found out, and nothing speaks against it."""
        return not self.failures and not self.open

    @property
    def failures(self) -> tuple[CheckLine, ...]:
        """Return what speaks against it."""
        return self._with(CheckVerdict.FAILS)

    @property
    def open(self) -> tuple[CheckLine, ...]:
        """Return what has to be known of it, and is not."""
        return self._with(CheckVerdict.NOT_COMPARED)

    def _with(self, verdict: CheckVerdict) -> tuple[CheckLine, ...]:
        return tuple(line for line in self.lines if line.verdict is verdict)
