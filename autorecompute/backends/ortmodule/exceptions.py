"""What an exception from ORTModule means. ORT raises plain RuntimeErrors: their texts and frames are all there is."""

from __future__ import annotations

import re
import traceback
from typing import TYPE_CHECKING

from autorecompute.backends.common.failures import describe_out_of_memory, is_out_of_memory, last_line
from autorecompute.backends.ortmodule.operators import explanation_of, find_call, is_of_export, uses_bfloat16
from autorecompute.errors import SetupError, chain_of
from autorecompute.measurement import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

CHECKPOINTING_TEXTS = ("CheckpointFunction", "Model uses gradient checkpointing")
"""Torch's word for it, and ORT's where ORT exports custom functions."""

CANNOT = "ORTModule cannot take this model:"
CHECKPOINTED = (
    f"{CANNOT} it uses torch.utils.checkpoint. Switch gradient checkpointing off: recompute plans take its place."
)
COMPILED = f"{CANNOT} it is compiled, or a part of it. Leave torch.compile out: ORTModule makes a graph of it itself."
WAY_OUT = "Replace it, or wrap only the part of the model without it."
WITHOUT_BFLOAT16 = "A CPU has none: train in float32 or float16 there."
WAY_TO_FIND_OUT = "Wrap one part of the model after the other to find the operator; ORT's own words are in the output."

NO_KERNEL = "Could not find an implementation for"
VERBS = {
    "gradient builder has not been registered": "it has no gradient for",
    NO_KERNEL: "it has no kernel on this device for",
    "Non-zero status code returned while running": "it fails while it runs",
    "There was an error while exporting the PyTorch model": "it cannot export",
}
"""What ORTModule could not do, by what it says; the first that is found counts."""

_BEFORE_REASON = re.compile(r".*(?:was false\.|Status Message:|\) const )", re.DOTALL)
_LONGEST_REASON = 200
_INTERNAL = ("::", "onnxruntime_src", "gradient builder")


def classify(error: BaseException) -> tuple[Outcome, str]:
    """Return the outcome that an exception stands for, and a sentence about it."""
    links = chain_of(error)
    text = "\n".join(str(link) for link in links)
    if is_out_of_memory(error, text):
        return Outcome.OOM, describe_out_of_memory(error)
    if any(known in text for known in CHECKPOINTING_TEXTS):
        return Outcome.EXPORT_ERROR, CHECKPOINTED
    if "dynamo-optimized function" in text or _is_given_compiled(error):
        return Outcome.EXPORT_ERROR, COMPILED
    if isinstance(error, Exception) and (is_of_export(error) or _is_fallback(links) or any(map(text.count, VERBS))):
        return Outcome.EXPORT_ERROR, _explain(error, text)
    return Outcome.SCRIPT_ERROR, f"{type(error).__name__}: {last_line(error)}"


def require_ortmodule() -> None:
    """Check that ORTModule can be used here.

    Raises:
        SetupError: something is missing; the message holds doctor's line about it.
    """
    from autorecompute.backends.findings import blocking
    from autorecompute.backends.ortmodule.diagnose import findings_for_training

    missing = blocking(findings_for_training())
    if missing:
        raise SetupError(" ".join(f"{finding.name}: {finding.found}. {finding.remedy}" for finding in missing))


def _explain(error: Exception, text: str) -> str:
    call = find_call(error)
    if uses_bfloat16(error) and ("bfloat16" in text or NO_KERNEL in text):
        operator = "an operator" if call is None else call
        return f"{CANNOT} it has no bfloat16 on this device for {operator}. {WITHOUT_BFLOAT16}"
    reason = explanation_of(error) or _last_words(error)
    because = f": {reason.rstrip('.')}" if reason else ""
    if call is None:
        return f"{CANNOT} it fails while it builds the training graph{because}. {WAY_TO_FIND_OUT}"
    verb = next((verb for word, verb in VERBS.items() if word in text), "it fails on")
    return f"{CANNOT} {verb} {call}{because}. {WAY_OUT}"


def _last_words(error: Exception) -> str:
    """Return what ORT says in the end, unless that is about its own source."""
    found = _BEFORE_REASON.match(str(error))
    words = str(error)[found.end() :].strip() if found else ""
    return words if len(words) <= _LONGEST_REASON and not any(mark in words for mark in _INTERNAL) else ""


def _is_given_compiled(error: BaseException) -> bool:
    # ORTModule fails on a compiled module by chance, and says nothing of it.
    modules = (frame.f_locals.get("module") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(hasattr(module, "_orig_mod") for module in modules)


def _is_fallback(links: Sequence[BaseException]) -> bool:
    from onnxruntime.training.ortmodule._fallback_exceptions import ORTModuleFallbackException

    return any(isinstance(link, ORTModuleFallbackException) for link in links)
