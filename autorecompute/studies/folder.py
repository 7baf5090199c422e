"""The folder of a study: its names, its files, and who is using it.

Whatever reads or writes files here raises ``SetupError``, with a next step, where that fails, and what reads a study
``UsageError`` where there is none, or another version of autorecompute made it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import platform
import re
import shlex
import stat
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

from autorecompute import codec
from autorecompute.codec import ABSENT, UnreadableError
from autorecompute.errors import SetupError, UsageError
from autorecompute.files import is_file, open_private, shown, walk, write_whole
from autorecompute.measurement import Trial
from autorecompute.result import NAME as EVIDENCE
from autorecompute.result import Best, Rejection, Result, read_evidence
from autorecompute.studies.problem import DIGEST_LENGTH, Head, Provenance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


IDENTITIES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


@functools.cache
def this_machine() -> str:
    """Return a digest of this machine, or of its host name in a container, that tells nothing of it."""
    identity = platform.node()
    for file in reversed(IDENTITIES):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            identity = file.read_text(encoding="ascii").strip() or identity
    return hashlib.sha256(f"autorecompute study on {identity}".encode()).hexdigest()[:DIGEST_LENGTH]


LONGEST_NAME = 200  # bytes; a file name may have 255, and drafts of files need a few

BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufffc"
"""Letters and marks that fonts draw as nothing, though Unicode counts them as printable."""


def is_name(name: str) -> bool:
    """Tell whether a study may have this name."""
    # What is not printable is a control character, a mark that steers the direction of reading, an invisible sign, a
    # space of another width, or a byte that is no UTF-8.
    is_visible = name.isprintable() and name == name.strip() != "" and not any(sign in BLANK for sign in name)
    return is_visible and len(name.encode()) <= LONGEST_NAME and "/" not in name and name[0] not in ".-"


def make_folder(path: Path) -> Path:
    """Make a folder of a study, with those above it, where there is none; give it."""
    with saying_what_fails(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def write_atomically(path: Path, text: str, *, is_durable: bool = False) -> None:
    """Write a text file of a study whole or not at all, also where the power fails if it is to be durable."""
    with saying_what_fails(path):
        write_whole(path, text, is_durable=is_durable)


def stale(files: Mapping[Path, str]) -> dict[Path, str]:
    """Return the files that do not hold their text."""
    return {path: text for path, text in files.items() if not _holds(path, text)}


def write_files(files: Mapping[Path, str]) -> None:
    """Write files, in folders that are made where there are none."""
    for path, text in files.items():
        make_folder(path.parent)
        write_atomically(path, text)


def _holds(path: Path, text: str) -> bool:
    content = text.encode()
    try:
        status = path.lstat()
        # A pipe would be waited for, and a link leads to a file of somebody else's.
        is_like_it = stat.S_ISREG(status.st_mode) and status.st_size == len(content)
        return is_like_it and path.read_bytes() == content
    except OSError:
        return False


@contextmanager
def saying_what_fails(path: Path) -> Iterator[None]:
    """Turn a failure to write into a sentence with a next step."""
    try:
        yield
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror}. Make it writable, or work in another folder."
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            what = (
                f"The disk is full at {path}. Trials so far are kept: free some space and run the same command again."
            )
        elif error.errno in {errno.ENOTDIR, errno.EEXIST}:
            place = "a file stands where a folder is needed. Move that file, or work elsewhere."
            what = f"{path} cannot be written: {place}"
        raise SetupError(what) from error


def require_plain(folder: StudyFolder) -> None:
    """Check that nothing in a study's folder leads elsewhere; the folder itself may be a link to a study."""
    if folder.path.is_symlink() and not folder.exists():
        raise SetupError(_describe(folder.path, "a link to what is no study"))
    for path in walk(folder.path) if folder.path.is_dir() else ():
        if path.is_symlink():
            raise SetupError(_describe(path, "a link"))
        if not path.is_file():
            raise SetupError(_describe(path, "a folder that cannot be read" if path.is_dir() else "no file"))


def _describe(path: Path, what: str) -> str:
    return (
        f"{path} is {what}: what is written there could end up elsewhere. Put a file or folder of its own there, or "
        "begin a new study with --study NAME."
    )


T = TypeVar("T")

FORMAT = 3  # counts up when an older autorecompute could no longer read a study, or a newer one would misread it
STUDIES = Path("studies")
PAGE = "report.html"  # the page that autorecompute report makes
STUDY = "study.json"
IN_PROGRESS = "in_progress.json"
REJECTED, IN_REJECTED = "rejected.json", "rejected"
CONFIRMED, IN_CONFIRMED = "confirmed.json", "confirmed"
IS_IMPORTED = "is_imported"
MACHINE = "machine"
_BESIDE_THE_HEAD = frozenset({"format", "digest", IS_IMPORTED, MACHINE})


class StudyFolder:
    """Paths and files of one study, in a folder of studies: ``./studies`` where none is given.

    Attributes:
        best: The folder of files that the answer's variables name.
        evidence: The file in which trainings tell what they found out about a config.
    """

    def __init__(self, name: str, root: Path | None = None) -> None:
        name = name.removesuffix("/")  # as a shell completes the name of a folder
        if not is_name(name):
            raise UsageError(
                f"{shown(name)} cannot name a study. Use up to {LONGEST_NAME} letters, digits, dots and dashes, "
                "without a slash, an invisible sign, a space at an end, or a dot or dash at the beginning."
            )
        self.name = name
        self.path = (root or STUDIES).absolute() / name
        self.database, self.evidence = self.path / "study.db", self.path / EVIDENCE
        self.best, self.workers = self.path / "best", self.path / "workers"

    @classmethod
    def at(cls, place: str) -> StudyFolder:
        """Return the study that a name in ``./studies``, or the path of its folder, stands for.

        Raises:
            UsageError: it can be neither.
        """
        path = Path(place).absolute()
        return cls(path.name, path.parent) if "/" in place.removesuffix("/") else cls(place)

    @property
    def place(self) -> str:
        """Return what a command names the study by, as ``at`` reads it."""
        return self.name if self.path.parent == STUDIES.absolute() else str(self.path)

    def trial(self, number: int) -> Path:
        """Return the folder of a trial."""
        return self.path / "trials" / f"{number:04d}"

    def exists(self) -> bool:
        """Tell whether a study was begun here."""
        return is_file(self.path / STUDY)

    @property
    def is_of_this_machine(self) -> bool:
        """Tell whether it was begun here, and not on another machine or in an archive."""
        return not self.is_imported and self._provenance().get(MACHINE) == this_machine()

    @property
    def name_in_database(self) -> str:
        """Return the name of the Optuna study: that of the folder when it was begun, wherever it was moved since."""
        return self.head().study if self.exists() else self.name

    def prepare(self) -> None:
        """Make the folders of the study, unless something in its folder leads elsewhere."""
        require_plain(self)
        for folder in (self.workers, self.best, self.path / "trials"):
            make_folder(folder)
        with saying_what_fails(self.path):
            # Logs and databases do not belong into the user's repository unless the user removes this file.
            if not (self.exists() or (self.path / ".gitignore").exists()):
                (self.path / ".gitignore").write_text("*\n", encoding="utf-8")

    def keep_head(self, head: Head, *, is_imported: bool = False) -> None:
        """Write down what the study is about, and whether it comes from an archive, in ``study.json``."""
        self.write(STUDY, _provenance_of(head, this_machine(), is_imported=is_imported))

    def provenance(self) -> Provenance:
        """Return the study's head, and its origin."""
        return _provenance_of(self.head(), self._provenance().get(MACHINE), is_imported=self.is_imported)

    def head(self) -> Head:
        """Return the study's head, as ``study.json`` has it."""
        plain = {name: value for name, value in self._provenance().items() if name not in _BESIDE_THE_HEAD}
        with self._saying_what_is_wrong(STUDY):
            return codec.from_plain(plain, Head)

    @property
    def is_imported(self) -> bool:
        """Tell whether the study comes from an archive, which somebody else may have made."""
        return self._provenance().get(IS_IMPORTED) is True

    def _provenance(self) -> dict[str, Any]:
        if not self.exists():
            raise UsageError(f"There is no study '{self.name}' in {self.path.parent}. List them: autorecompute show")
        provenance = self.read(STUDY, dict[str, Any]) or {}
        if provenance.get("format") != FORMAT:
            raise UsageError(
                f"Study '{self.name}' was made by autorecompute {provenance.get('autorecompute', '(unknown)')!s:.40} "
                f"in a format this one cannot read. Use that version, or begin a new study with --study NAME."
            )
        return provenance

    def keep_trial(self, trial: Trial, command: Sequence[str], environment: Mapping[str, str], output: str) -> None:
        """Fill the folder of a trial: what was run, under what, what it printed and what came of it."""
        folder = make_folder(self.trial(trial.number))
        write_atomically(folder / "command.txt", shlex.join(command) + "\n")
        write_atomically(folder / "environment.json", json.dumps(dict(environment), indent=2) + "\n")
        write_atomically(folder / "output.log", output)
        write_atomically(folder / "result.json", codec.write(trial, indent=2) + "\n")

    def begin_trial(self, unless_ended: Trial) -> None:
        """Write down what a trial that begins now is to be, should nobody be left to tell how it ended."""
        self.write(IN_PROGRESS, unless_ended)

    def end_trial(self) -> None:
        """Forget that a trial was begun."""
        with saying_what_fails(self.path):
            (self.path / IN_PROGRESS).unlink(missing_ok=True)

    def trial_in_progress(self) -> Trial | None:
        """Return the trial that was begun and never ended."""
        return self.read(IN_PROGRESS, Trial)

    def keep_rejections(self, rejections: Sequence[Rejection]) -> None:
        """Write down which configs were not confirmed."""
        self.write(REJECTED, {IN_REJECTED: rejections})

    def rejections(self) -> list[Rejection]:
        """Return the configs that were not confirmed, and those that trainings have disproved since."""
        own = (self.read(REJECTED, dict[str, list[Rejection]]) or {}).get(IN_REJECTED, [])
        return [*own, *(one for one in self.disproved() if all(one.config != other.config for other in own))]

    def disproved(self) -> list[Rejection]:
        """Return the configs whose gradients trainings found to be wrong."""
        with self._saying_what_is_wrong(EVIDENCE):
            return read_evidence(self.evidence)

    def keep_confirmed(self, confirmed: Sequence[Best]) -> None:
        """Write down which configs were confirmed, and what that measured."""
        self.write(CONFIRMED, {IN_CONFIRMED: confirmed})

    def confirmed(self) -> list[Best]:
        """Return the configs that were confirmed, in the order they were."""
        known = (self.read(CONFIRMED, dict[str, list[Best]]) or {}).get(IN_CONFIRMED, [])
        disproved = {rejection.config for rejection in self.disproved()}
        return [best for best in known if best.config not in disproved]

    def kept_trials(self) -> set[int]:
        """Return the numbers of the trials that have a folder with what came of them."""
        names = (file.parent.name for file in self.path.glob("trials/*/result.json"))
        return {int(name) for name in names if re.fullmatch("[0-9]{4,9}", name)}

    def require_trials(self, count: int) -> None:
        """Check that the storage, with ``count`` trials, still holds all that were kept here."""
        kept = len(self.kept_trials())
        if count < kept:
            raise SetupError(
                f"{self.database} holds {count} trials of the {kept} that were kept: it was cut short or replaced. It "
                "was left as it is: restore it, or begin a new study with --study NAME."
            )

    def write(self, name: str, value: object) -> None:
        """Write a JSON file whole or not at all, also where the power fails; a file that is there is replaced."""
        text = codec.write(value, indent=2)
        write_atomically(self.path / name, f"{text}\n", is_durable=True)

    def read(self, name: str, kind: type[T]) -> T | None:
        """Read a JSON file; return ``None`` where there is none."""
        if not (self.path / name).is_file():
            return None
        with self._saying_what_is_wrong(name):
            return codec.from_plain(codec.read_file(self.path / name), kind)

    def finish(self, result: Result) -> None:
        """Write down the answer."""
        self.write("result.json", result)

    def result(self) -> Result | None:
        """Return the answer, once there is one, under the folder's name of now, with what trainings say against it."""
        result = self.read("result.json", Result)
        if result is None:
            return None
        told = tuple(one.reason for one in self.disproved() if result.best and result.best.config == one.config)
        return replace(result, study=self.name, warnings=(*result.warnings, *told))

    def require_result(self) -> Result:
        """Return the answer; a ``UsageError`` says that the study has none yet."""
        self.head()
        if (result := self.result()) is None:
            raise UsageError(f"Study '{self.name}' has no answer yet. Finish it: run its tune command again.")
        return result

    @contextmanager
    def _saying_what_is_wrong(self, name: str) -> Iterator[None]:
        try:
            yield
        except (UnreadableError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else f"it {error}"
            raise SetupError(
                f"{self.path / name} cannot be read: {why}. It was left as it is: restore it, or begin a new study "
                "with --study NAME."
            ) from error


def _provenance_of(head: Head, machine: object, *, is_imported: bool) -> Provenance:
    return Provenance(
        format=FORMAT,
        digest=head.problem.digest,
        head=head,
        machine=machine if isinstance(machine, str) and not is_imported else ABSENT,
        is_imported=True if is_imported else ABSENT,
    )


def bind(folder: StudyFolder, head: Head, note: Callable[[str], None]) -> bool:
    """Begin the study with what is tuned, or check that it was begun with the same; tell whether it began."""
    require_own(folder)
    if not folder.exists():
        folder.keep_head(head)
        return True
    stored = folder.head()
    if conflicts := head.conflicts(stored):
        raise UsageError(
            f"Study '{folder.name}' holds another problem: here it is {'; '.join(conflicts)}. "
            "Begin a new study with --study NAME."
        )
    if others := head.differences(stored):
        note(f"study '{folder.name}' was begun with another first batch or command: here it is {'; '.join(others)}")
    return False


def require_own(folder: StudyFolder) -> None:
    """Check that a study, where there is one, was not imported: its figures are those of another machine."""
    if folder.exists() and folder.is_imported:
        raise UsageError(
            f"Study '{folder.name}' was imported, and what is measured here goes into a study of its own. Add --study "
            f"NAME: the tuning starts from what '{folder.name}' knows."
        )


def list_studies(root: Path | None = None) -> list[StudyFolder]:
    """Return the studies there are, by name."""
    place = root or STUDIES
    try:
        names = sorted(path.name for path in place.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise SetupError(
            f"The folder {shown(place)} cannot be read: {error.strerror}. Make it readable, or work in another one."
        ) from error
    return [folder for name in filter(is_name, names) if (folder := StudyFolder(name, root)).exists()]


LOCK = ".lock"


def find_user(folder: StudyFolder) -> int | None:
    """Return the process that has a file of the study open; ``None`` where none has that can be seen from here.

    A tuning keeps its lock or its database open, and its workers their logs, waiting or not. Seen are processes of this
    machine that belong to this user.
    """
    inside = f"{os.path.realpath(folder.path)}{os.sep}"
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and any(file.path.startswith(inside) for file in process.open_files()):
                return process.pid
    return None


def require_unused(folder: StudyFolder) -> None:
    """Check that no tuning of the study is under way: raises ``UsageError`` where a process uses it."""
    if (user := find_user(folder)) is not None:
        raise UsageError(_in_use(folder, user))


@contextmanager
def using(folder: StudyFolder) -> Iterator[None]:
    """Have the study to itself while the context lasts: two tunings would number their trials alike.

    The lock is the kernel's and goes with the process, however that ends. It is on a file that only this user can open:
    the folder itself could be locked by everybody who can read it.
    """
    file = folder.path / LOCK
    with saying_what_fails(file):
        descriptor = open_private(file)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(_in_use(folder, find_user(folder))) from None
        except OSError:
            require_unused(folder)  # a network's file system may have no locks
        yield
    finally:
        os.close(descriptor)


def _in_use(folder: StudyFolder, user: int | None) -> str:
    who = "Another process" if user is None else f"Process {user}"
    return f"{who} is using study '{folder.name}'. Wait for it, or end it with Ctrl-C."
