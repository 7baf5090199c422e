"""The user's training command, and how the batch reaches it."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from autorecompute.backends.registry import AUTO
from autorecompute.errors import UsageError
from autorecompute.paths import is_file, shown
from autorecompute.worker.protocol import BATCH_VARIABLE

PLACEHOLDER = "{batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A script with its arguments.

    Attributes:
        script: The script's path.
        arguments: Its arguments; ``{batch}`` in them stands for the batch.
        batch_flag: A flag of the script that takes the batch.
        launcher: What stands before ``-m MODULE`` to start it, ``torchrun --nproc-per-node 1`` for instance; empty for
            this interpreter.
        backend: The training system, by its name; ``auto`` for the one that the script uses.
        wrap: Whether that system is to train the model of a script that does not ask for it.

    Raises:
        UsageError: there is no such script, or the launcher cannot be read.
    """

    script: Path
    arguments: tuple[str, ...] = ()
    batch_flag: str | None = None
    launcher: str = ""
    backend: str = AUTO
    wrap: bool = False

    def __post_init__(self) -> None:
        if not is_file(self.script):
            raise UsageError(f"There is no script {shown(self.script)}. Give the path of the training script.")
        try:
            shlex.split(self.launcher)
        except ValueError as error:
            raise UsageError(
                f"--launcher {self.launcher} cannot be read: {error}. Quote it as a shell would."
            ) from error

    @property
    def takes_batch(self) -> bool:
        """Whether the batch is among the arguments; if not, the DataLoader is told."""
        return self.batch_flag is not None or any(PLACEHOLDER in argument for argument in self.arguments)

    def script_arguments(self, batch: int | None) -> list[str]:
        """The script's arguments at this batch.

        Raises:
            UsageError: the arguments want a batch and none is given.
        """
        if batch is None and self.takes_batch:
            raise UsageError("The script's arguments take a batch and none is given. Add --target-batch N.")
        written = [argument.replace(PLACEHOLDER, str(batch)) for argument in self.arguments]
        return [*written, self.batch_flag, str(batch)] if self.batch_flag is not None else written

    def worker_command(self, batch: int | None) -> list[str]:
        """The command that runs the script inside a worker."""
        start = shlex.split(self.launcher) or [sys.executable]
        return [*start, "-m", "autorecompute.worker", str(self.script), *self.script_arguments(batch)]

    def plain_command(self, batch: int | None) -> list[str]:
        """The command a user would type, for people to read."""
        start = shlex.split(self.launcher) or ["python"]
        return [*start, str(self.script), *self.script_arguments(batch)]

    def command_of_any_batch(self) -> list[str]:
        """The same with the place for the batch left open."""
        flag = [self.batch_flag, PLACEHOLDER] if self.batch_flag is not None else []
        return [*(shlex.split(self.launcher) or ["python"]), str(self.script), *self.arguments, *flag]

    @staticmethod
    def batch_environment(batch: int | None) -> dict[str, str]:
        """The variable that scripts may read the batch from."""
        return {} if batch is None else {BATCH_VARIABLE: str(batch)}
