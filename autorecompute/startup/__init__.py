"""Adapts ORTModule to a current PyTorch in processes whose script says nothing about it.

``autorecompute run`` puts this folder first on ``PYTHONPATH``. Every Python process below then loads the
``sitecustomize`` that lies here; a process that imports ORTModule is adapted at that moment, one that imports torch is
made to wrap its model if the study was tuned so, and any other notices nothing. Children inherit the variable, so a
launcher such as torchrun passes it on. Nothing but ``sitecustomize`` may lie here: any other module would shadow one of
the user's.

The environment that trains must have autorecompute installed. An interpreter that is told to ignore ``PYTHONPATH``
(``-E``, ``-I``) or the ``site`` module (``-S``, ``-I``) is not reached: there, the script imports
``autorecompute.compat`` and wraps its model itself.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent
WRAP_VARIABLE = "AUTORECOMPUTE_WRAP"
"""Set to anything, it makes ``sitecustomize`` have the model wrapped; spelt out there a second time."""


def prepend_to_python_path(inherited: str) -> str:
    """The value of ``PYTHONPATH`` that loads this folder's ``sitecustomize`` and keeps all that was there.

    Args:
        inherited: The value so far; empty where there was none.
    """
    # An empty entry would mean the working directory: none may arise from joining.
    entries = inherited.split(os.pathsep) if inherited else []
    return os.pathsep.join([str(FOLDER), *(entry for entry in entries if entry != str(FOLDER))])
