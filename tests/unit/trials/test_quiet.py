from pathlib import Path

from autorecompute.trials.process import FORGOTTEN, SWITCHES, quieten

REFERENCE = Path(__file__).parents[3] / "docs" / "environment.md"
FOLDER = Path("/tmp/worker")


def test_what_the_user_has_switched_on_is_switched_off():
    """MLflow has no switch: it writes to what goes away with the worker."""
    own = {"MLFLOW_TRACKING_URI": "http://there", "MLFLOW_RUN_ID": "7", "MLFLOW_EXPERIMENT_ID": "3"}
    quiet = quieten({"WANDB_MODE": "online", "MINE": "1", **own}, FOLDER)
    assert (quiet["WANDB_MODE"], quiet["MINE"]) == ("disabled", "1")
    assert SWITCHES.items() <= quiet.items()
    assert quiet["MLFLOW_TRACKING_URI"] == "file:///tmp/worker/mlruns"
    assert not set(FORGOTTEN) & set(quiet)


def test_every_variable_is_documented():
    reference = REFERENCE.read_text()
    for name in (*SWITCHES, *FORGOTTEN, "MLFLOW_TRACKING_URI"):
        assert f"`{name}`" in reference
    assert all(value in reference for value in SWITCHES.values())
