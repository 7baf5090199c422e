"""What the user asked of a tuning, and what it works with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autorecompute.backends.registry import render
from autorecompute.figures import Figures
from autorecompute.search.choice import MODEL
from autorecompute.studies import StudyFolder
from autorecompute.studies.sharing import SharedStudy
from autorecompute.studies.writing import write_files
from autorecompute.trials import Bench, Job
from autorecompute.trials.bench import Effort
from autorecompute.tuning.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from autorecompute.plans import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSettings:
    """What the user asked for.

    Attributes:
        limit_bytes: What the peak may reach; ``None`` takes what the device has to give (``tuning/limit.py``).
        max_trials: How many configs may be measured over the study's life.
        timeout_seconds: How long the command may take as a whole; ``None`` for no end.
        began_seconds: When the command began, on the monotonic clock; ``None`` for when it begins to tune.
        effort: How long each config is measured.
        batch: The target batch; ``None`` takes what the script gives.
        sampler: Who proposes configs, by one of the names in ``search/choice.py``.
        is_fresh: Whether nothing is taken over from other studies.
        rival: The largest batch that fits without recompute, where it was measured before.
        turns_knobs: Whether other settings are tried on the winner, each in fresh processes.
    """

    limit_bytes: int | None
    max_trials: int
    timeout_seconds: float | None
    began_seconds: float | None = None
    effort: Effort = field(default_factory=Effort)
    batch: int | None = None
    sampler: str = MODEL
    is_fresh: bool = False
    rival: Figures | None = None
    turns_knobs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """What every part of a tuning works with.

    Attributes:
        job: What is trained.
        bench: Where it is measured.
        folder: Where the study is kept.
        settings: What was asked for.
        progress: Who watches.
        shared: The study in the storage that other workers have it in as well; ``None`` for one in its folder alone.
    """

    job: Job
    bench: Bench
    folder: StudyFolder
    settings: TuningSettings
    progress: Progress
    shared: SharedStudy | None = None

    @property
    def logs(self) -> Path:
        """The folder of the output of this tuning's processes: workers that share a study may share its folder."""
        return self.folder.workers if self.shared is None else self.folder.workers / self.shared.session

    def emit(self, config: Config, versions: Mapping[str, str], knobs: Collection[str] = ()) -> dict[str, str]:
        """The variables for a fresh process that trains with a config; files that they name are written.

        Args:
            config: What it recomputes.
            versions: Versions of what trains, as a detection has them.
            knobs: Names of the other settings that are on.

        Raises:
            SetupError: a file cannot be written.
        """
        # Neither another tuning nor a verb that gives the answer out may write where a process reads.
        rendered = render(config, knobs, versions, self.logs / "emitted" / config.hash)
        write_files(rendered.files)
        return rendered.variables
