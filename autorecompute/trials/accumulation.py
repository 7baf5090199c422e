"""Finds how a script is told over how many passes it accumulates gradients."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.errors import UsageError
from autorecompute.training_job import ACCUMULATION_VARIABLE
from autorecompute.trials.job import ACCUMULATION

if TYPE_CHECKING:
    from autorecompute.trials.job import Job

_OWN_FLAG = re.compile(r"""["'](--[\w.-]*accum[\w.-]*)["']""")
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
        place = next((place for place, one in enumerate(arguments) if one.partition("=")[0] in known), None)
        if place is not None and "=" in arguments[place]:
            arguments[place] = f"{arguments[place].partition('=')[0]}={ACCUMULATION}"
        elif place is not None and place + 1 < len(arguments):
            arguments[place + 1] = ACCUMULATION
        elif len(known) == 1:
            flag = known[0]
        elif ACCUMULATION_VARIABLE not in _text_of(job):
            raise UsageError(CANNOT)
    return replace(job, arguments=tuple(arguments), accumulation_flag=flag, global_batch=global_batch)


def _flags_in(job: Job) -> list[str]:
    text = _text_of(job)
    own = _OWN_FLAG.findall(text)
    libraries = [flag for parser, flag in _OF_LIBRARIES.items() if parser in text]
    return list(dict.fromkeys([*own, *libraries]))


def _text_of(job: Job) -> str:
    if job.is_module:
        return ""
    try:
        return job.script.read_text(errors="replace")
    except OSError:
        return ""
