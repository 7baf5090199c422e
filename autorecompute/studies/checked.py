"""Checks and confirmations that were made on this machine."""

from __future__ import annotations

import enum
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from autorecompute.ranges import PositiveBytes, Rate, Ratio

if TYPE_CHECKING:
    from autorecompute.result import Best
    from autorecompute.studies.folder import StudyFolder


class CheckVerdict(enum.StrEnum):
    """Verdict of a line of a check."""

    OK = "ok"  # as it was stored, or as good
    DIFFERS = "differs"  # another than stored; the config may hold all the same
    NOT_CHECKED = "not_checked"  # not to be told here; the config may hold all the same
    NOT_COMPARED = "not_compared"
    """The config is called valid only once this is known, and what kept it from being found out may not last."""
    FAILS = "fails"  # the config is not valid here


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLine:
    """One thing that was checked."""

    what: Annotated[str, "Its name."]
    stored: Annotated[str, "What the study has, in words."]
    here: Annotated[str, "What was found now."]
    verdict: Annotated[CheckVerdict, "What that means."] = CheckVerdict.OK
    note: Annotated[str, "More about it; empty where there is nothing to say."] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All that a check found."""

    valid: Annotated[bool, "True if the config still holds here: no line fails, and its gradients were compared."]
    study: Annotated[str, "The study."]
    config: Annotated[str, "Its config in a few words."]
    command: Annotated[tuple[str, ...], "The command that was run."]
    lines: Annotated[tuple[CheckLine, ...], "What was checked, in order."]
    limit_bytes: Annotated[PositiveBytes, "What its peak may reach."]
    peak_bytes: Annotated[PositiveBytes | None, "Highest peak of the config's steps, if it was measured."] = None
    samples_per_second: Annotated[Rate | None, "Median throughput of its rounds, if it was measured."] = None
    relative_throughput: Annotated[Ratio | None, "Median of its rounds over those without recompute, if compared."] = (
        None
    )

    @property
    def failures(self) -> tuple[CheckLine, ...]:
        """Return the lines that speak against it."""
        return tuple(line for line in self.lines if line.verdict is CheckVerdict.FAILS)

    @property
    def open(self) -> tuple[CheckLine, ...]:
        """Return the lines that are still to be compared."""
        return tuple(line for line in self.lines if line.verdict is CheckVerdict.NOT_COMPARED)


CHECKED = "checked.json"


def keep_check(folder: StudyFolder, best: Best) -> None:
    """Write down that an answer was found valid here."""
    folder.write(CHECKED, _identity(best))


def is_confirmed_here(folder: StudyFolder, best: Best) -> bool:
    """Tell whether an answer may be trained with: its study was tuned, or its config was checked."""
    return not folder.is_imported or folder.read(CHECKED, dict[str, Any]) == _identity(best)


def _identity(best: Best) -> dict[str, Any]:
    shorter = {str(bucket.length): bucket.config.hash for bucket in best.buckets}
    return {"config": best.config.hash, "knobs": list(best.knobs), **({"lengths": shorter} if shorter else {})}


def describe_unconfirmed(name: str) -> str:
    """Explain why an imported study is not trained with, and the next step."""
    study = shlex.quote(name)
    return (
        f"Study '{name}' was imported and never confirmed on this machine. Run "
        f"'autorecompute check {study} -- train.py', or tune here: a tuning of the same script starts from it."
    )
