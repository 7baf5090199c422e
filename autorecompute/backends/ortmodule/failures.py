"""What an exception from ORTModule means. ORT raises plain RuntimeErrors: their texts are all there is to go by."""

from __future__ import annotations

import re

from autorecompute.errors import SetupError
from autorecompute.measurement import Outcome

OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "Failed to allocate memory",
    "bad_alloc",
    "can't allocate memory",
    "CUDA failure 2",
    "ALLOC_FAILED",
)
"""Seen from ORT's arena, its CUDA provider, the C++ runtime and torch's allocators."""

_OPERATORS = (
    re.compile(r"gradient builder has not been registered: (\w+)"),
    re.compile(r"[Oo]perator '([\w:.]+)'"),
    re.compile(r"Python operator (\w+)"),
    re.compile(r"\b((?:aten|prim)::\w+)"),
)
"""How ORT and torch's exporter name the operator they cannot take; the first that is found counts."""

_NO_KERNEL = re.compile(r"Could not find an implementation for (\w+)")
"""ORT knows the operator, and has it for other number types or on another device."""


def classify(error: BaseException) -> tuple[Outcome, str]:
    """The outcome that an exception stands for, and a sentence about it."""
    text = "\n".join(str(link) for link in _chain(error))
    if isinstance(error, MemoryError) or any(known in text for known in OUT_OF_MEMORY_TEXTS):
        return Outcome.OOM, f"out of memory: {_last_line(error)}"
    if found := _NO_KERNEL.search(text):
        return Outcome.EXPORT_ERROR, (
            f"ORTModule cannot take this model: it has no {found[1]} for the number type that the model uses on this "
            "device. A CPU has none for bfloat16: train in float32 or float16 there."
        )
    if _is_fallback(error) or _OPERATORS[0].search(text):
        operator = next((found[1] for pattern in _OPERATORS if (found := pattern.search(text))), None)
        if operator is None:
            return Outcome.EXPORT_ERROR, f"ORTModule cannot take this model: {_last_line(error)}"
        return Outcome.EXPORT_ERROR, (
            f"ORTModule cannot take this model: it has no way to train operator {operator}, so the script would go on "
            "in plain PyTorch. Replace it, or wrap only the part of the model without it."
        )
    return Outcome.SCRIPT_ERROR, f"{type(error).__name__}: {_last_line(error)}"


def require_ortmodule() -> None:
    """Checks that ORTModule can be used here.

    Raises:
        SetupError: something is missing; the message holds doctor's line about it.
    """
    from autorecompute.backends.ortmodule.diagnose import blocking, findings_for_training

    missing = blocking(findings_for_training())
    if missing:
        raise SetupError(" ".join(f"{finding.name}: {finding.found}. {finding.remedy}" for finding in missing))


def _chain(error: BaseException | None) -> list[BaseException]:
    links: list[BaseException] = []
    while error is not None and error not in links:
        links.append(error)
        error = error.__cause__ or error.__context__
    return links


def _is_fallback(error: BaseException) -> bool:
    from onnxruntime.training.ortmodule._fallback_exceptions import ORTModuleFallbackException

    return any(isinstance(link, ORTModuleFallbackException) for link in _chain(error))


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
