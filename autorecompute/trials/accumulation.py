"""Finds how a script is told over how many passes it accumulates gradients."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.errors import UsageError
from autorecompute.training_job import ACCUMULATION_VARIABLE
from autorecompute.trials.job import ACCUMULATION

if TYPE_CHECKING:
    from autorecompute.trials.job import Job

_OWN_FLAG = re.compile(r"--[\w.-]*accum[\w.-]*")
_OF_LIBRARIES = {
    "HfArgumentParser": "--gradient_accumulation_steps",
    "LightningCLI": "--trainer.accumulate_grad_batches",
}
"""Flags that a parser makes of a library's own settings: no script has to write them."""

CANNOT = (
    "The script cannot be told over how many passes to accumulate. Write {accumulation} after -- where its arguments "
    "take it, name its flag with --accumulation-flag, or read "
    f"{ACCUMULATION_VARIABLE} in the script."
)


def accumulating(job: Job, global_batch: int, flag: str | None) -> Job:
    """Return the job that trains with so many samples a step, in whatever micro-batches.

    A flag that is not named is looked for among the arguments and in the script's text.

    Raises:
        UsageError: the number of passes cannot reach the script.
    """
    arguments = list(job.arguments)
    if flag is None and not any(ACCUMULATION in argument for argument in arguments):
        known = _flags_in(job)
        given = [place for place, one in enumerate(arguments) if one.partition("=")[0] in known]
        for place in given:
            name, equals, _ = arguments[place].partition("=")
            if equals:
                arguments[place] = f"{name}={ACCUMULATION}"
            elif place + 1 < len(arguments) and not arguments[place + 1].startswith("-"):
                arguments[place + 1] = ACCUMULATION
        if not any(ACCUMULATION in argument for argument in arguments):
            numbers = [name for name, takes_number in known.items() if takes_number]
            if len(numbers) == 1 and not given:
                flag = numbers[0]
            elif ACCUMULATION_VARIABLE not in _text_of(job):
                raise UsageError(CANNOT)
    return replace(job, arguments=tuple(arguments), accumulation_flag=flag, global_batch=global_batch)


def _flags_in(job: Job) -> dict[str, bool]:
    """Return flags of the script for a number of passes, by their names, and whether they are said to take a number."""
    text = _text_of(job)
    try:
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError):
        calls = []
    own = {
        one.value: _takes_number(call)
        for call in calls
        for one in call.args
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and _OWN_FLAG.fullmatch(one.value)
        if not any(keyword.arg == "action" for keyword in call.keywords)
    }
    return own | {flag: True for parser, flag in _OF_LIBRARIES.items() if parser in text}


def _takes_number(call: ast.Call) -> bool:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    kind, default = given.get("type"), given.get("default")
    is_number = isinstance(default, ast.Constant) and type(default.value) is int
    return is_number or (isinstance(kind, ast.Name) and kind.id == "int")


def _text_of(job: Job) -> str:
    if job.is_module:
        return ""
    try:
        return job.script.read_text(errors="replace")
    except OSError:
        return ""
