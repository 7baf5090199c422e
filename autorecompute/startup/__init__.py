"""Prepares processes for a study's config whose script says nothing about it.

``autorecompute run`` puts this folder first on ``PYTHONPATH``. Every Python process below then loads the
``sitecustomize`` that lies here. It reads from a variable which function of ours to call when the process imports
which module, such as torch; a process that does not import it notices nothing. Children inherit the variables, so a
launcher such as torchrun passes them on. Nothing but ``sitecustomize`` may lie here: any other module would shadow one
of the user's.

The environment that trains must have autorecompute installed. An interpreter that is told to ignore ``PYTHONPATH``
(``-E``, ``-I``) or the ``site`` module (``-S``, ``-I``) is not reached.
"""

from __future__ import annotations

import os
from pathlib import Path

from autorecompute.startup.sitecustomize import HOOKS_VARIABLE

__all__ = ["FOLDER", "HOOKS_VARIABLE", "prepend_to_python_path"]

FOLDER = Path(__file__).parent


def prepend_to_python_path(inherited: str) -> str:
    """Return the value of ``PYTHONPATH`` that loads this folder's ``sitecustomize`` and keeps all that was there."""
    # An empty entry would mean the working directory: none may arise from joining.
    entries = inherited.split(os.pathsep) if inherited else []
    return os.pathsep.join([str(FOLDER), *(entry for entry in entries if entry != str(FOLDER))])
