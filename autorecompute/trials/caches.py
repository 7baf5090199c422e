"""Where the processes of one study keep what they compile, so that each finds what another one has compiled."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING

from autorecompute.backends import registry
from autorecompute.errors import SetupError
from autorecompute.trials.private import private_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DIGITS = 16


def compiled_code_of(study: Path) -> Path:
    """Return the folder for the compiled code of a study; whoever compiles makes it.

    It is not in the study's own folder, which may come from elsewhere: compilers run what they find in their caches.

    Raises:
        SetupError: this user can have no folder that others cannot write to.
    """
    digest = hashlib.sha256(str(study.absolute()).encode(errors="surrogateescape")).hexdigest()
    return private_folder() / f"compiled-{digest[:DIGITS]}"


def cache_variables(study: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return what has compilers keep their code in a study's folder, but for those that the user has given another one.

    Args:
        study: The study's own folder.
        inherited: The environment that a process starts from.

    Raises:
        SetupError: as above.
    """
    names = [name for name in registry.cache_variables() if name not in inherited]
    return {name: str(compiled_code_of(study)) for name in names}


def variables_of_known_code(study: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the same for a process that trains with a study's answer; nothing if the study has compiled nothing here.

    Raises:
        SetupError: as above.
    """
    return cache_variables(study, inherited) if compiled_code_of(study).is_dir() else {}


def forget_compiled_code(study: Path) -> None:
    """Remove the compiled code of a study, whose own folder is gone.

    Raises:
        SetupError: it cannot be removed.
    """
    folder = compiled_code_of(study)
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return  # nothing was compiled
    except OSError as error:
        raise SetupError(f"{folder} cannot be removed: {error.strerror}. Remove it by hand.") from error
