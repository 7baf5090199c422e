"""The training scripts beside the tests that plain PyTorch trains as they are, and how each is given to the tool."""

from pathlib import Path

from autorecompute.backends import registry
from autorecompute.trials import Job

SCRIPTS = Path(__file__).parent / "scripts"
STAND_IN = Path(__file__).parent / "stand_ins" / "plain"
"""Has an ORTModule that hands back the model: the scripts that use one train in plain PyTorch."""

WITH_A_LOADER = (
    "accelerated.py",
    "accumulating.py",
    "adversarial.py",
    "closures.py --optimizer lbfgs",
    "closures.py --optimizer sgd",
    "evaluating.py",
    "habits.py",
    "hf_trainer.py",
    "language_model.py --way trainer --bf16",
    "lightning_trainer.py",
    "mixed_precision.py --dtype bfloat16",
    "submodule.py",
)
WITH_A_FLAG = (
    "kinds.py --model lora",
    "kinds.py --model experts",
    "kinds.py --model function",
    "kinds.py --model unet",
    "kinds.py --model t5",
    "kinds.py --model plain --varied",
    "libraries.py --model diffusers",
    "libraries.py --model mixtral",
    "libraries.py --model peft",
    "plain_transformer.py --dropout 0.1",
    "plain_bert.py",
    "many_kinds.py",
)


def job_of(command, launcher=""):
    """A script with its arguments, as the tool is told to train it in plain PyTorch.

    Args:
        command: The name of the script, and its arguments.
        launcher: What starts its ranks.
    """
    script, *arguments = command.split()
    flag = "--bs" if command in WITH_A_FLAG else None
    return Job(
        script=SCRIPTS / script,
        arguments=tuple(arguments),
        batch_flag=flag,
        launcher=launcher,
        backend=registry.plain_name(),
    )
