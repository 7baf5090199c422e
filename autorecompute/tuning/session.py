"""One command that tunes: its study opened, alone or with other workers, and tuned at one batch or at several."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.backends.registry import AUTO
from autorecompute.result import Result
from autorecompute.studies import StudyFolder
from autorecompute.studies.batch_studies import require_names_of_batches
from autorecompute.studies.plain import require_plain
from autorecompute.studies.shared_folder import required_of
from autorecompute.studies.shared_study import SharedStudy, StorageUrl
from autorecompute.studies.tuned import require_own
from autorecompute.studies.use import using
from autorecompute.studies.writing import make_folder
from autorecompute.trials import Bench, Job
from autorecompute.tuning.batches.batch_tuner import BatchTuner
from autorecompute.tuning.context import Progress, TuningContext, TuningSettings
from autorecompute.tuning.explanations import explain_interrupted_batches, explain_interruption
from autorecompute.tuning.tuner import Tuner
from autorecompute.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TAG_LENGTH = 6
REPLACE_CHECKPOINTING = "--replace-checkpointing"
LONGEST_WORDS = 80
"""Bytes of the script's name in that of its study."""

_UNFIT_FOR_NAMES = re.compile(r"[^\w.-]")


@dataclass(slots=True, kw_only=True, eq=False)
class TuningSession:
    """What one command tunes.

    Attributes:
        job: What is trained.
        folder: Where the study is kept.
        settings: What was asked for.
        batches: The batches to compare, none of them to look for the best; ``None`` for one batch alone.
        storage: Where the study is shared with other workers; ``None`` where it is not.
        debugs: Whether the first worker keeps the terminal and has all the time it wants.
        so_far: The answer that an interruption leaves.
    """

    job: Job
    folder: StudyFolder
    settings: TuningSettings
    batches: tuple[int, ...] | None = None
    storage: StorageUrl | None = None
    debugs: bool = False
    so_far: Result | None = None

    def require_own(self) -> None:
        """Check that the study, where there is one, can be read and was not imported.

        Raises:
            SetupError: it cannot be read.
            UsageError: it was imported.
        """
        if self.folder.exists():
            self.folder.head()
        require_own(self.folder)

    def run(self, progress: Progress) -> Result:
        """Return the study's answer; see :meth:`Tuner.run` and :meth:`BatchTuner.run` for what is raised."""
        if self.batches is not None:
            require_names_of_batches(self.folder, self.batches)
        with self._opened(progress.note) as shared:
            limit_bytes = self._enforced_bytes()

            def open_bench(batch: int | None, study: StudyFolder) -> Bench:
                logs = study.workers if shared is None else study.workers / shared.session
                make_folder(logs)
                debugs = self.debugs and study is self.folder
                path = self.folder.path
                return Bench(self.job, batch, logs, limit_bytes=limit_bytes, debugs=debugs, study=path)

            context = TuningContext(
                job=self.job,
                bench=open_bench(self.settings.batch, self.folder),
                folder=self.folder,
                settings=self.settings,
                progress=progress,
                shared=shared,
            )
            tuner = Tuner(context) if self.batches is None else BatchTuner(context, self.batches, open_bench)
            try:
                return tuner.run()
            finally:
                context.bench.close()
                self.so_far = tuner.so_far

    def _enforced_bytes(self) -> int | None:
        """Return what a trial may take of a card: the limit that is given, or that the study was begun with."""
        given = self.settings.limit_bytes
        return self.folder.problem().limit_bytes if given is None and self.folder.exists() else given

    def explain_interruption(self) -> str:
        """Return what is kept, and what there is of an answer."""
        explain = explain_interruption if self.batches is None else explain_interrupted_batches
        return explain(self.folder, self.so_far)

    @contextmanager
    def _opened(self, note: Callable[[str], None]) -> Iterator[SharedStudy | None]:
        """Have the study ready, in its folder and where it is shared."""
        folder = self.folder
        if self.storage is None:
            folder.prepare()
            with using(folder):
                note(f"study {folder.path}")
                yield None
            return
        require_plain(folder)
        # Before there is anything in the folder, which other workers may have, too: a failure leaves nothing behind.
        shared = SharedStudy(self.storage, folder.name)
        shared.require(required_of(folder))
        folder.prepare()
        note(f"study {folder.path}")
        note(f"shared in {shared.place}: {_describe_state(shared)}")
        yield shared


def default_name(job: Job, batch: int | str | None, limit_bytes: int | None, graph: str = "") -> str:
    """Return a study's name, the same for the same command: ``bert_mlm-train-b32-1f3a5c``.

    Args:
        job: The command.
        batch: The batch that was asked for.
        limit_bytes: The limit that was asked for.
        graph: Digest of what it trains, where a command may train one thing after another.
    """
    script = job.script.resolve()
    parts = [str(script), *job.arguments, job.batch_flag, job.launcher, batch, limit_bytes]
    parts += [job.backend] if job.backend != AUTO else []
    parts += [REPLACE_CHECKPOINTING] if job.replaces_checkpointing else []
    parts += [graph] if graph else []
    tag = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:TAG_LENGTH]
    words = _UNFIT_FOR_NAMES.sub("_", f"{script.parent.name}-{script.name.removesuffix('.py')}").strip("_-.")
    words = words.encode()[:LONGEST_WORDS].decode(errors="ignore")
    return f"{words or 'study'}{f'-b{batch}' if batch else ''}-{tag}"


def _describe_state(shared: SharedStudy) -> str:
    if shared.answer is not None:
        return "answered"
    return "new" if shared.tuned is None else f"{format_count(len(shared.trials), 'trial')} so far"
