"""Says in a sentence why an ORTModule failed."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autorecompute.backends.common import describe_out_of_memory, is_out_of_memory
from autorecompute.errors import chain_of, last_line
from autorecompute.measurement import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import FrameType


ROOT = "_original_module"  # ORTModule's name of the model, in the names of all its parts

MAKING = frozenset({"get_post_processed_model", "_initialize_graph_builder", "_build_graph", "_create_execution_agent"})
"""The functions of ORTModule that make a training session: what they raise is about the model's export."""

CALLING_THE_MODEL = "parse_outputs_for_onnx_export_and_extract_schema"  # in plain PyTorch, before the export

_BETWEEN = (
    *(str(Path(sysconfig.get_path("purelib"), name)) for name in ("torch", "onnxruntime")),
    str(Path(__file__).parents[2]),
)
"""Folders of code between the script's lines and the exporter: libraries, and our own."""

_TRACED_CALL = re.compile(r"^(.+)\((\d+)\): ", re.MULTILINE)
_PYTHON_FUNCTION = re.compile(r'\^(\w+)\[[^\]]*onnx_name="([^"]+)"')
_NODE = re.compile(rf"(/{ROOT}/[\w./:-]+)")
_OPERATORS = (
    re.compile(r"gradient builder has not been registered: (\w+)"),
    re.compile(r"::Get(\w+)Gradient::"),
    re.compile(r"::Update(\w+)OutputShape"),
    re.compile(r"[Oo]perator '([\w:.]+)'"),
    re.compile(r"Python operator (\w+)"),
    re.compile(r"\b((?:aten|prim)::\w+)"),
)
"""Patterns by which ORT and torch's exporter name an operator where they name no node; the first that is found
counts."""

_MADE_OF_NODE = re.compile(r"(_Grad\b|_output_\d+|_BatchNormInternal).*")
"""Suffixes by which ORT and the exporter name nodes and values that they make for a node."""


def _describe(operator: str, module: str) -> str:
    return f"{operator}, called in {module}" if module else operator


def _why_refused(links: Iterable[BaseException]) -> str:
    """Return why an operator cannot be exported, where whoever refused it says more than its name; empty otherwise."""
    refusal = next((link for link in links if any(map(_is_exporter, _frames(link)))), None)
    if refusal is None or type(refusal).__name__ == "UnsupportedOperatorError":
        return ""
    # What follows is the exporter's graph, and where to file a bug.
    return re.split(r"\n| Please feel free| {2}\[Caused by", str(refusal), maxsplit=1)[0].strip()


def _uses_bfloat16(graph: Any) -> bool:
    from onnx import TensorProto

    values = [] if graph is None else [*graph.value_info, *graph.input, *graph.output]
    return any(value.type.tensor_type.elem_type == TensorProto.BFLOAT16 for value in values)


def _of_exporter(frames: Sequence[FrameType], model: Any) -> str:
    if (node := next((frame.f_locals["node"] for frame in reversed(frames) if _is_exporter(frame)), None)) is None:
        return ""
    # The scope has the class and the name of each module on the way: a.b.Net::/a.b.Linear::first
    names = [part.rpartition("::")[2] for part in node.scopeName().split("/")]
    operator = node.pyname() if node.kind() == "prim::PythonOp" else node.kind()
    # The innermost line of the script's own, or of a library of models, in the traced stack.
    traced = _TRACED_CALL.findall(node.sourceRange())
    lines = (f" ({Path(file).name}:{number})" for file, number in traced if not file.startswith(_BETWEEN))
    return _describe(operator, _describe_module(names, model)) + next(lines, "")


def _of_node(frames: Sequence[FrameType], text: str, model: Any) -> str:
    inferred = [frame.f_locals["node"] for frame in frames if frame.f_code.co_name == "_infer_impl"]
    function, node = _PYTHON_FUNCTION.search(text), _NODE.search(text)
    if function is not None and not inferred:
        return _describe(function[1], _describe_module(function[2].split("/")[:-1], model))
    name = inferred[-1].name if inferred else node[1] if node is not None else ""
    return _describe(*_read_node(name, model)) if name else ""


def _read_node(name: str, model: Any) -> tuple[str, str]:
    """Return the operator and the module that a node's name tells."""
    parts = [part for part in name.split("/") if part]
    at = next((place for place, part in enumerate(parts) if _MADE_OF_NODE.search(part)), len(parts) - 1)
    operator = re.sub(r"_\d+$", "", _MADE_OF_NODE.sub("", parts[at]))
    return operator, _describe_module(parts[:at], model)


def _of_operator(text: str, nodes: Sequence[Any], model: Any) -> str:
    operator = next((found[1] for pattern in _OPERATORS if (found := pattern.search(text))), None)
    if operator is None:
        return ""
    named = [node.name for node in nodes if node.op_type == operator and _NODE.match(node.name)]
    modules = list(dict.fromkeys(_read_node(name, model)[1] for name in named))
    more = f" and {len(modules) - 1} more" if len(modules) > 1 else ""
    return _describe(operator, f"{modules[0]}{more}" if modules else "")


def _describe_module(names: Sequence[str], model: Any) -> str:
    """Return class and name of the module that a node belongs to.

    Of the names on the way to it, from ORTModule's own down, those of a container's parts hold its name.
    """
    path, above = [], ROOT
    for name in names[names.index(ROOT) + 1 :] if ROOT in names else ():
        path.append(name.removeprefix(f"{above}."))
        above = name
    traced = ".".join(path)
    if model is None:
        return f"'{traced}'" if traced else ""
    # A container that is not called itself, such as a ModuleDict, is missing on the way.
    modules = dict(model.named_modules())
    name = next((name for name in modules if f".{name}".endswith(f".{traced}")), "") if traced else ""
    return f"{type(modules[name]).__name__} '{name}'" if name else type(model).__name__


def _is_exporter(frame: FrameType) -> bool:
    return frame.f_code.co_name == "_run_symbolic_function"


def _frames(error: BaseException) -> Iterator[FrameType]:
    return (frame for frame, _ in traceback.walk_tb(error.__traceback__))


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
"""Verbs for ORTModule's failures, by its messages; the first that is found counts."""

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
    functions = {frame.f_code.co_name for frame in _frames(error)}
    # ORTModule raised it while it made a session, and neither the model nor the script did.
    is_of_export = bool(functions & MAKING) and CALLING_THE_MODEL not in functions
    if isinstance(error, Exception) and (is_of_export or _is_fallback(links) or any(map(text.count, VERBS))):
        return Outcome.EXPORT_ERROR, _explain(error, links, text)
    return Outcome.SCRIPT_ERROR, f"{type(error).__name__}: {last_line(error)}"


def _explain(error: Exception, links: Sequence[BaseException], text: str) -> str:
    frames = [frame for link in links for frame in _frames(link)]
    selves = (frame.f_locals.get("self") for frame in frames)
    manager = next((owner for owner in selves if hasattr(owner, "_graph_transition_manager")), None)
    transition = getattr(manager, "_graph_transition_manager", None)
    info = getattr(transition, "_post_export_processed_model_info", None)
    graph = None if info is None else info._post_export_processed_model.graph  # noqa: SLF001
    model, nodes = getattr(manager, "_original_module", None), () if graph is None else graph.node
    call = _of_exporter(frames, model) or _of_node(frames, text, model) or _of_operator(text, nodes, model)
    if _uses_bfloat16(graph) and ("bfloat16" in text or NO_KERNEL in text):
        return f"{CANNOT} it has no bfloat16 on this device for {call or 'an operator'}. {WITHOUT_BFLOAT16}"
    reason = _why_refused(links) or _last_words(error)
    because = f": {reason.rstrip('.')}" if reason else ""
    if not call:
        return f"{CANNOT} it fails while it builds the training graph{because}. {WAY_TO_FIND_OUT}"
    verb = next((verb for word, verb in VERBS.items() if word in text), "it fails on")
    return f"{CANNOT} {verb} {call}{because}. {WAY_OUT}"


def _last_words(error: Exception) -> str:
    """Return the end of ORT's message, unless it is about its own source."""
    found = _BEFORE_REASON.match(str(error))
    words = str(error)[found.end() :].strip() if found else ""
    return words if len(words) <= _LONGEST_REASON and not any(mark in words for mark in _INTERNAL) else ""


def _is_given_compiled(error: BaseException) -> bool:
    # ORTModule fails on a compiled module by chance, and says nothing of it.
    return any(hasattr(frame.f_locals.get("module"), "_orig_mod") for frame in _frames(error))


def _is_fallback(links: Sequence[BaseException]) -> bool:
    from onnxruntime.training.ortmodule._fallback_exceptions import ORTModuleFallbackException

    return any(isinstance(link, ORTModuleFallbackException) for link in links)
