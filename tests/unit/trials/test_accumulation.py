import pytest

from autorecompute.errors import UsageError
from autorecompute.training_job import ACCUMULATION_VARIABLE
from autorecompute.trials import Job
from autorecompute.trials.accumulation import accumulating


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
