"""The folder of a study: the single owner of every file name in it.

``study.json`` (what it is about), ``study.db`` (its trials), ``trials/0007/`` (one trial each), ``workers/`` (output of
the processes), ``race.json`` (the finalists' rounds), ``rejected.json`` and ``confirmed.json`` (who was not confirmed,
and who was), ``best/`` (what the answer's variables name) and ``result.json`` (the answer); others have their names
beside this file.
"""

from __future__ import annotations

import json
import shlex
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from autorecompute import __version__, codec
from autorecompute.errors import SetupError, UsageError
from autorecompute.measurement import Trial
from autorecompute.paths import is_file, names_in
from autorecompute.result import Best, Rejection, Result
from autorecompute.studies.names import is_name, require_name
from autorecompute.studies.plain import require_plain
from autorecompute.studies.problem import Problem, Sizes
from autorecompute.studies.writing import saying_what_fails, write_atomically
from autorecompute.units import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

T = TypeVar("T")

FORMAT = 2
"""Counts up when an older autorecompute could no longer read a study, or a newer one would misread it."""

FIELDS = frozenset(
    {"format", "autorecompute", "study", "created", "command", "digest", "problem", "sizes", "is_imported"}
)
"""What ``study.json`` may hold."""

STUDIES = Path("studies")
PAGE = "report.html"
"""The page that ``autorecompute report`` makes."""

IN_PROGRESS = "in_progress.json"
REJECTED = "rejected.json"
CONFIRMED = "confirmed.json"


class StudyFolder:
    """Paths and files of one study.

    Args:
        name: Its name.
        root: The folder of studies; ``./studies`` where none is given.
    """

    def __init__(self, name: str, root: Path | None = None) -> None:
        name = name.removesuffix("/")  # as a shell completes the name of a folder
        require_name(name)
        self.name = name
        self.path = (root or STUDIES).absolute() / name

    @property
    def database(self) -> Path:
        """The Optuna storage."""
        return self.path / "study.db"

    @property
    def best(self) -> Path:
        """The folder of files that the answer's variables name."""
        return self.path / "best"

    @property
    def workers(self) -> Path:
        """The folder of the workers' output."""
        return self.path / "workers"

    def trial(self, number: int) -> Path:
        """The folder of a trial."""
        return self.path / "trials" / f"{number:04d}"

    def exists(self) -> bool:
        """Whether a study was begun here."""
        return is_file(self.path / "study.json")

    @property
    def name_in_database(self) -> str:
        """Name of the Optuna study: that of the folder when it was begun, wherever it was moved since."""
        return str(self.provenance().get("study", self.name)) if self.exists() else self.name

    def prepare(self) -> None:
        """Makes the folders of the study.

        Raises:
            SetupError: they cannot be made, or something in the folder leads elsewhere.
        """
        require_plain(self)
        with saying_what_fails(self.path):
            for folder in (self.workers, self.best, self.path / "trials"):
                folder.mkdir(parents=True, exist_ok=True)
            # Logs and databases do not belong into the user's repository unless the user removes this file.
            if not (self.exists() or (self.path / ".gitignore").exists()):
                (self.path / ".gitignore").write_text("*\n", encoding="utf-8")

    def begin(self, problem: Problem, command: Sequence[str], sizes: Sizes | None = None) -> None:
        """Writes down what the study is about, in ``study.json``."""
        self.write(
            "study.json",
            {
                "format": FORMAT,
                "autorecompute": __version__,
                "study": self.name,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "command": list(command),
                "digest": problem.digest,
                "problem": codec.to_plain(problem),
                "sizes": codec.to_plain(sizes or Sizes()),
            },
        )

    def provenance(self) -> dict[str, Any]:
        """What ``study.json`` says.

        Raises:
            UsageError: there is no such study, or another version of autorecompute made it.
        """
        if not self.exists():
            raise UsageError(f"There is no study '{self.name}' in {self.path.parent}. List them: autorecompute show")
        provenance = self._read("study.json")
        with self._saying_what_is_wrong("study.json"):
            if provenance.get("format") == FORMAT and (strangers := sorted(set(provenance) - FIELDS)):
                raise codec.UnreadableError(f"'{strangers[0]}' is unknown")
        if provenance.get("format") != FORMAT:
            raise UsageError(
                f"Study '{self.name}' was made by autorecompute {provenance.get('autorecompute', '(unknown)')} "
                f"in a format this one cannot read. Use that version, or begin a new study with --study NAME."
            )
        return provenance

    def problem(self) -> Problem:
        """The problem the study is about."""
        with self._saying_what_is_wrong("study.json"):
            return codec.from_plain(self.provenance()["problem"], Problem)

    def sizes(self) -> Sizes:
        """The sizes that its figures were measured at."""
        with self._saying_what_is_wrong("study.json"):
            return codec.from_plain(self.provenance()["sizes"], Sizes)

    def command(self) -> list[str]:
        """The command that was tuned."""
        with self._saying_what_is_wrong("study.json"):
            return codec.from_plain(self.provenance()["command"], list[str])

    def keep_trial(self, trial: Trial, command: Sequence[str], environment: Mapping[str, str], output: str) -> None:
        """Fills the folder of a trial: what was run, under what, what it printed and what came of it."""
        folder = self.trial(trial.number)
        with saying_what_fails(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "command.txt", shlex.join(command) + "\n")
        write_atomically(folder / "environment.json", json.dumps(dict(environment), indent=2) + "\n")
        write_atomically(folder / "output.log", output)
        write_atomically(folder / "result.json", json.dumps(codec.to_plain(trial), indent=2) + "\n")

    def begin_trial(self, unless_ended: Trial) -> None:
        """Writes down what a trial that begins now is to be, should nobody be left to tell how it ended."""
        self.write(IN_PROGRESS, codec.to_plain(unless_ended))

    def end_trial(self) -> None:
        """Forgets that a trial was begun."""
        (self.path / IN_PROGRESS).unlink(missing_ok=True)

    def trial_in_progress(self) -> Trial | None:
        """The trial that was begun and never ended."""
        return self.read(IN_PROGRESS, Trial)

    def keep_rejections(self, rejections: Sequence[Rejection]) -> None:
        """Writes down which configs were not confirmed."""
        self.write(REJECTED, {"rejected": codec.to_plain(rejections)})

    def rejections(self) -> list[Rejection]:
        """The configs that were not confirmed, in the order they were found out."""
        if not (self.path / REJECTED).is_file():
            return []
        with self._saying_what_is_wrong(REJECTED):
            return codec.from_plain(self._read(REJECTED)["rejected"], list[Rejection])

    def keep_confirmed(self, confirmed: Sequence[Best]) -> None:
        """Writes down which configs were confirmed, and what that measured."""
        self.write(CONFIRMED, {"confirmed": codec.to_plain(confirmed)})

    def confirmed(self) -> list[Best]:
        """The configs that were confirmed, in the order they were."""
        if not (self.path / CONFIRMED).is_file():
            return []
        with self._saying_what_is_wrong(CONFIRMED):
            return codec.from_plain(self._read(CONFIRMED)["confirmed"], list[Best])

    def require_trials(self, count: int) -> None:
        """Checks that the storage still holds all trials that were kept here.

        Args:
            count: Trials in the storage.

        Raises:
            SetupError: trials are missing there.
        """
        kept = sum(1 for _ in self.path.glob("trials/*/result.json"))
        if count < kept:
            raise SetupError(
                f"{self.database} holds {count} trials of the {kept} that were kept: it was cut short or replaced. It "
                "was left as it is: restore it, or begin a new study with --study NAME."
            )

    def write(self, name: str, plain: object) -> None:
        """Writes a JSON file whole or not at all; a file that is there is replaced."""
        write_atomically(self.path / name, json.dumps(plain, indent=2) + "\n")

    def read(self, name: str, kind: type[T]) -> T | None:
        """What a JSON file holds; ``None`` where there is none."""
        if not (self.path / name).is_file():
            return None
        with self._saying_what_is_wrong(name):
            return codec.from_plain(self._read(name), kind)

    def finish(self, result: Result) -> None:
        """Writes down the answer."""
        self.write("result.json", codec.to_plain(result))

    def result(self) -> Result | None:
        """The answer, once there is one, under the name that the folder has now."""
        result = self.read("result.json", Result)
        return None if result is None else replace(result, study=self.name)

    def _read(self, name: str) -> dict[str, Any]:
        with self._saying_what_is_wrong(name):
            content = json.loads((self.path / name).read_text(encoding="utf-8", errors="surrogateescape"))
            if not isinstance(content, dict):
                raise TypeError("an object is written there")
        return content

    @contextmanager
    def _saying_what_is_wrong(self, name: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, KeyError, TypeError, OSError) as error:
            why = printable(str(error), "") if isinstance(error, codec.UnreadableError) else type(error).__name__
            raise SetupError(
                f"{self.path / name} cannot be read ({why}). It was left as it is: restore it, or begin a new study "
                "with --study NAME."
            ) from error


def list_studies(root: Path | None = None) -> list[StudyFolder]:
    """The studies there are, by name."""
    folders = (StudyFolder(name, root) for name in names_in(root or STUDIES) if is_name(name))
    return [folder for folder in folders if folder.exists()]


def load_result(name: str, root: Path | None = None) -> Result:
    """The answer of a study.

    Raises:
        UsageError: there is no such study, it has no answer yet, or another version made it.
    """
    folder = StudyFolder(name, root)
    folder.provenance()
    result = folder.result()
    if result is None:
        raise UsageError(f"Study '{name}' has no answer yet. Finish it: run its tune command again.")
    return result
