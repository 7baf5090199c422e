from pathlib import Path

import pytest

from autorecompute.errors import UsageError
from autorecompute.training_job import ACCUMULATION_VARIABLE, Device
from autorecompute.trials import Job
from autorecompute.trials.accumulation import accumulating
from autorecompute.trials.job import begins_too_large, known_loader
from autorecompute.trials.process import FORGOTTEN, SWITCHES, quieten
from autorecompute.units import GIB


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("")
    return file


def test_a_module_is_started_as_python_starts_it_and_a_script_by_the_interpreter_that_it_names(tmp_path):
    job = Job(script=Path("package.train"), is_module=True, arguments=("--epochs", "1"), launcher="torchrun")
    assert job.plain_command(None) == ["torchrun", "-m", "package.train", "--epochs", "1"]
    assert job.worker_command(None)[1:] == ["-m", "autorecompute.worker", "-m", "package.train", "--epochs", "1"]
    (tmp_path / "train").write_text("#!/usr/bin/env python3\n")
    assert Job(script=tmp_path / "train").plain_command(None) == ["python", str(tmp_path / "train")]
    # Nobody starts an interpreter for what is typed into a notebook.
    assert Job(script=Path("Encoder"), is_typed=True).script_at == 0


@pytest.mark.parametrize("name", ["train.py", "a-b", "", "package..train"])
def test_what_is_no_name_of_a_module_is_a_wrong_usage(name):
    with pytest.raises(UsageError, match=r"-m package\.train"):
        Job(script=Path(name), is_module=True)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("", None, "no script"),
        ("train.ipynb", "{}", "notebook"),
        ("train", "#!/bin/bash\n", "shell script"),
        ("t.sh", "#!/usr/bin/env sh\n", "shell"),
    ],
)
def test_what_is_no_python_is_refused_by_what_it_is(tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=words):
        Job(script=tmp_path / name)


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        (
            {"arguments": ("--bs={batch}", '{"n": {batch}, "m": {}}', "{batches}", "plain")},
            ["--bs=32", '{"n": 32, "m": {}}', "{batches}", "plain"],
        ),
        ({"arguments": ("--epochs", "1"), "batch_flag": "--bs"}, ["--epochs", "1", "--bs", "32"]),
    ],
    ids=["placeholder", "flag"],
)
def test_the_batch_stands_where_it_is_wanted(script, given, arguments):
    job = Job(script=script, **given)
    assert job.takes_batch
    assert job.script_arguments(32) == arguments


def test_a_batch_has_to_be_given_to_who_wants_one_alone(script):
    with pytest.raises(UsageError, match="--target-batch"):
        Job(script=script, batch_flag="--bs").script_arguments(None)
    job = Job(script=script, arguments=("--epochs", "1"))
    assert not job.takes_batch
    assert job.script_arguments(None) == job.script_arguments(32) == ["--epochs", "1"]


def test_a_launcher_stands_in_front_if_a_shell_can_read_it(script):
    job = Job(script=script, launcher="torchrun --log-dir 'two words'")
    for command in (job.worker_command(None), job.plain_command(None)):
        assert command[:3] == ["torchrun", "--log-dir", "two words"]
        assert command[-1] == str(script)
    with pytest.raises(UsageError):
        Job(script=script, launcher="torchrun 'open").worker_command(None)


PLAIN = {"versions": {"torch": "2.13.0", "backend": "torch"}, "plan_versions": ("torch",)}
CARD = Device(kind="cuda", name="Some Card", total_bytes=80 * GIB)


def test_a_worker_that_exports_begins_with_the_scripts_own_batch(make_detection):
    """In plain PyTorch every later worker has the target from its first step on."""
    plain, exported = make_detection(**PLAIN, loader="a1"), make_detection(loader="b2")
    assert (known_loader(plain, is_watched=False), known_loader(plain, is_watched=True)) == ("a1", "a1")
    assert (known_loader(exported, is_watched=False), known_loader(exported, is_watched=True)) == ("", "b2")
    assert known_loader(None, is_watched=True) == ""


@pytest.mark.parametrize(
    ("own", "fields", "is_too_large"),
    [
        (8, {}, True),
        (2, {}, False),
        (8, {"loader": ""}, False),
        (8, {"device": Device(kind="cpu", name="Some Processor", total_bytes=GIB)}, False),
    ],
    ids=["more", "less", "a loader that is not known", "a processor"],
)
def test_a_card_may_not_hold_the_scripts_own_batch(make_detection, own, fields, is_too_large):
    found = {**PLAIN, "loader": "a1", "device": CARD, "dims": {"batch": own}, "batch": 4, **fields}
    assert begins_too_large(make_detection(**found)) is is_too_large


REFERENCE = Path(__file__).parents[3] / "docs" / "environment.md"
FOLDER = Path("/tmp/worker")


def test_what_the_user_has_switched_on_is_switched_off_by_documented_variables():
    """MLflow has no switch: it writes to what goes away with the worker."""
    own = {"MLFLOW_TRACKING_URI": "http://there", "MLFLOW_RUN_ID": "7", "MLFLOW_EXPERIMENT_ID": "3"}
    quiet = quieten({"WANDB_MODE": "online", "MINE": "1", **own}, FOLDER)
    assert (quiet["WANDB_MODE"], quiet["MINE"]) == ("disabled", "1")
    assert SWITCHES.items() <= quiet.items()
    assert quiet["MLFLOW_TRACKING_URI"] == "file:///tmp/worker/mlruns"
    assert not set(FORGOTTEN) & set(quiet)
    reference = REFERENCE.read_text()
    for name in (*SWITCHES, *FORGOTTEN, "MLFLOW_TRACKING_URI"):
        assert f"`{name}`" in reference
    assert all(value in reference for value in SWITCHES.values())


@pytest.fixture
def make_job(tmp_path):
    def make(text="", *arguments, flag=None, **options):
        script = tmp_path / "train.py"
        script.write_text(text)
        return accumulating(Job(script=script, arguments=arguments, **options), 64, flag)

    return make


WAYS = {
    "a place in the arguments": ("", ("--steps={accumulation}",), None, ["--steps=8"]),
    "a flag": ("", (), "--accum", ["--accum", "8"]),
    "the script's own flag": ("p.add_argument('--grad-accum-steps', type=int)", (), None, ["--grad-accum-steps", "8"]),
    "a flag with a default": ("click.option('--accum', default=1)", (), None, ["--accum", "8"]),
    "the Trainer's": ("HfArgumentParser(TrainingArguments)", (), None, ["--gradient_accumulation_steps", "8"]),
    "Lightning's": ("LightningCLI(Model)", (), None, ["--trainer.accumulate_grad_batches", "8"]),
    "a value that is given": ("add_argument('--accum')", ("--accum", "2", "--epochs", "1"), None, ["--accum", "8"]),
    "a value that is given twice": (
        "add_argument('--accum')",
        ("--accum", "4", "--accum=2"),
        None,
        ["--accum", "8", "--accum=8"],
    ),
    "with an equals sign": ("add_argument('--accum')", ("--accum=2",), None, ["--accum=8"]),
    "the variable": (f"os.environ['{ACCUMULATION_VARIABLE}']", (), None, []),
}


@pytest.mark.parametrize(("text", "arguments", "flag", "expected"), WAYS.values(), ids=WAYS)
def test_the_passes_of_a_step_reach_the_script(make_job, text, arguments, flag, expected):
    job = make_job(text, *arguments, flag=flag)
    assert job.script_arguments(8)[: len(expected)] == expected
    assert (job.passes(8), job.step_samples(8), job.step_samples(7)) == (8, 64, None)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", ()),
        ("add_argument('--accum-steps', type=int); add_argument('--log-accumulated', default=10)", ()),
        ("add_argument('--no-accum-dtype', action='store_true')", ()),
        ("add_argument('--no-accum-dtype', action='store_true')", ("--no-accum-dtype", "64")),
        ("add_argument('--accum-dtype')", ()),
        ("add_argument('--accum', nargs='?')", ("--accum", "--epochs", "2")),
        ("no Python", ()),
    ],
)
def test_a_script_that_cannot_be_told_is_refused(make_job, text, arguments):
    with pytest.raises(UsageError, match="--accumulation-flag"):
        make_job(text, *arguments)


def test_the_command_for_any_batch_keeps_both_places(make_job):
    job = make_job("", "--accum", "{accumulation}", batch_flag="--bs")
    assert job.plain_command(16)[2:] == ["--accum", "4", "--bs", "16"]
    assert job.command_of_any_batch()[2:] == ["--accum", "{accumulation}", "--bs", "{batch}"]
