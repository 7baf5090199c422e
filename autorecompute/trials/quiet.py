"""Keeps experiment trackers from taking trials for runs of the user's.

A trial is stopped in the middle, and there are dozens of them: a tracker would show as many failed runs. Trackers that
can be switched off are; MLflow cannot, and is given a folder that goes away with the worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SWITCHES = {
    "CLEARML_OFFLINE_MODE": "1",
    "COMET_AUTO_LOG_DISABLE": "1",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
    "WANDB_MODE": "disabled",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # MLflow 3 keeps nothing in a folder otherwise
}
"""What each tracker documents; not ``WANDB_DISABLED`` and the like, which make Hugging Face's Trainer raise."""

FOLDER_VARIABLE = "MLFLOW_TRACKING_URI"

FORGOTTEN = ("MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_ID")
"""What a tracker would look for in the store that it is kept from."""


def quieten(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment with every tracker switched off.

    Args:
        environment: What a worker would get.
        folder: What a tracker may write to; it is removed with the worker.
    """
    kept = {name: value for name, value in environment.items() if name not in FORGOTTEN}
    return {**kept, **SWITCHES, FOLDER_VARIABLE: (folder / "mlruns").as_uri()}
