"""Plain PyTorch as the controller sees it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.backends.interface import Emission, Knob
from autorecompute.backends.torch.forecast import cards, records
from autorecompute.backends.torch.forecast.compiled_peaks import CompiledPeaks, code_of_blocks
from autorecompute.backends.torch.forecast.forecast import TorchMemoryModel
from autorecompute.backends.torch.forecast.plans_file import VARIABLE, PlansFile, requested
from autorecompute.backends.torch.head_source import CHUNK_SOURCE
from autorecompute.errors import SetupError, UsageError
from autorecompute.plans import Choice, Config, Offer
from autorecompute.plans.savings import BATCH, explain_worthless
from autorecompute.training_job import CHECKPOINTING, REPLACED, allocator_of
from autorecompute.units import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from autorecompute.memory import MemoryModel, PeakForecaster
    from autorecompute.plans import Lengths, Plan
    from autorecompute.training_job import Detection


SOURCE = '''
import functools
import hashlib
import re
import weakref

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

MODEL = {model!r}
CHECKPOINTED = {groups}  # groups of modules: how many of each from the first on, None for all, and in which steps
_CHOSEN = weakref.WeakSet()


def apply_recompute(model):
    """Has the model checkpoint its modules, from the next step on. Call it once, before it trains."""
    if name_of(model) != MODEL:
        raise ValueError(f"this was made for another model ({{MODEL}}) than this one ({{name_of(model)}})")
    for group, (count, step) in CHECKPOINTED.items():
        path = re.compile(re.escape(group).replace(r"\\*", r"\\d+"))
        modules = [module for name, module in model.named_modules() if path.fullmatch(name)][:count:step]
        if not modules:
            raise ValueError(f"the model has no {{group}}")
        for module in modules:
            if any(isinstance(part, _NormBase) and part.track_running_stats for part in module.modules()):
                raise ValueError(f"{{group}} has running statistics, which need autorecompute.apply(model)")
            _CHOSEN.add(module)
            _checkpoint_class(type(module))


def _checkpoint_class(kind):
    original = kind.forward
    if hasattr(original, "checkpoints"):
        return

    @functools.wraps(original)
    def forward(self, *args, **kwargs):
        if self not in _CHOSEN or not torch.is_grad_enabled():
            return original(self, *args, **kwargs)
        places = {{part.layer_idx for part in self.modules() if getattr(part, "layer_idx", None) is not None}}

        positional, names = len(args), tuple(kwargs)

        def run(_, *given):
            given = [_emptied(value, ()) for value in given]
            return original(self, *given[:positional], **dict(zip(names, given[positional:])))

        # checkpoint() finds the device whose random numbers it draws again by what is given to it by position.
        device = next((one.device for one in self.parameters()), "cpu")
        values = [_emptied(value, places) for value in (*args, *kwargs.values())]
        return checkpoint(run, torch.empty(0, device=device), *values, use_reentrant=False)

    forward.checkpoints = True
    kind.forward = forward


def _emptied(value, places):
    """An empty cache in place of one that a module would fill twice; what is no cache stays itself."""
    kind = type(value)
    if kind.__name__ == "EncoderDecoderCache":
        parts = value.self_attention_cache, value.cross_attention_cache
        return kind(*(_emptied(part, places) for part in parts))
    if kind.__name__ != "DynamicCache":
        return value
    if any(value.get_seq_length(place) for place in places):
        raise ValueError("keys and values of an earlier call are given, which need autorecompute.apply(model)")
    return kind()


def name_of(model):
    """The model's class with a digest of its modules, parameters and buffers."""
    lines = []
    for path, module in model.named_modules():
        lines.append(f"{{path}} {{type(module).__module__}}.{{type(module).__qualname__}}")
        for name, one in module.named_parameters(recurse=False):
            lines.append(f"{{path}}.{{name}} {{one.dtype}} {{tuple(one.shape)}} {{one.requires_grad}}")
        for name, one in module.named_buffers(recurse=False):
            lines.append(f"{{path}}.{{name}} {{one.dtype}} {{tuple(one.shape)}}")
    return f"{{type(model).__name__}} {{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:12]}}"
'''

BUDGET_SOURCE = '''
# Of a model without dropout, or anything else that is drawn by chance, this is all that is needed:
#   import torch._functorch.config
#   torch._functorch.config.activation_memory_budget = {budget}
import torch
import torch._functorch.config
import torch._inductor.config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.utils.checkpoint import CheckpointPolicy


def apply_recompute(model):
    """Gives the compiler of the model its memory budget. Call it once, before the model trains."""
    if not any("_orig_mod" in part._modules or part._compiled_call_impl is not None for part in model.modules()):
        raise ValueError("a budget is for a compiled model: give this what torch.compile returned")
    torch._functorch.config.activation_memory_budget = {budget}
    torch._inductor.config.joint_custom_post_pass = KeepRandomNumbers()


class KeepRandomNumbers(CustomGraphPass):
    """Keeps the compiler from drawing the masks of a dropout a second time, which would be others."""

    def __call__(self, graph):
        for node in graph.nodes:
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE

    def uuid(self):
        return type(self).__qualname__
'''

STEPS = {records.CHECKPOINT: 1, records.EVERY_2ND: 2}  # from one module to the next

OWN_CHECKPOINTING = """\
# Measured with the script's own checkpointing off: take gradient_checkpointing=True, activation_checkpointing=True or
# whatever else switches it on out of the script.
"""

INSTEAD = "Use 'autorecompute run', or autorecompute.apply(model) with the file of plans."


NAME = "torch"
VARIABLES = (VARIABLE,)
TRIAL_VARIABLES: Mapping[str, str] = {}
CACHE_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR",)
REPAIR = ""
USUAL_PRESET = "blocks"
USED_BY = ""
IMPORT_HOOK = "after torch autorecompute.backends.torch.switch.applying:follow_environment nothing is recomputed"
memory_model = None  # the detection tells the memory of every config
READ_BY = "a script that calls autorecompute.apply(model) before it trains"
CARDS, find_card = tuple(cards.CARDS), cards.find_card

PLANS_FILE = "plans.json"
SWITCHED_OFF = "was off while this was measured; the plans file switches it off, in whichever script reads that"
MODEL = "model"  # under this name a detection's versions say which model it was

KNOBS: tuple[Knob, ...] = ()
HINTS: tuple[Knob, ...] = ()

ALL = -1

STATES = 2
"""Tensors of its size that an optimizer holds for each parameter, as a rule: Adam's. The first trial tells."""


def render(
    config: Config,
    *,
    knobs: Collection[str] = (),
    versions: Mapping[str, str],
    folder: Path,
    lengths: Lengths | None = None,
) -> Emission:
    """Render the config, with the allocator that it was measured with.

    Raises:
        UsageError: a knob is asked for.
    """
    if knobs:
        raise UsageError(f"This autorecompute knows no setting '{min(knobs)}'. Tune again without --knobs.")
    variables = allocator_of(versions)
    content = replace(_plans_file(config, versions), lengths=lengths)
    if content.does_nothing:
        return Emission(variables=variables)
    file = folder.absolute() / PLANS_FILE
    return Emission(
        variables={VARIABLE: str(file), **variables},
        files={file: content.text},
        notes={
            "plans file": "must be readable under the same path wherever the script trains",
            **({"the script's own checkpointing": SWITCHED_OFF} if content.replaces_checkpointing else {}),
        },
    )


def script(config: Config, versions: Mapping[str, str]) -> str:
    """Return Python source that imports torch alone, with a function ``apply_recompute(model)``.

    Raises:
        UsageError: the config recomputes more than whole modules, or checkpoints a compiled model, or the model is not
            known.
    """
    model = versions.get(MODEL, "")
    if model.endswith(records.COMPILED):
        return _write_budget(config)
    if config.choices and all(on.option == records.CHUNK for on in config.choices):
        heads = sorted(on.site.removesuffix(records.HEAD) for on in config.choices)
        return CHUNK_SOURCE.format(heads=heads).lstrip("\n")
    others = sorted(str(on) for on in config.choices if on.option not in STEPS or not set("/(").isdisjoint(on.site))
    if others:
        first = printable(others[0], "")
        raise UsageError(
            f"torch alone cannot do {first}: only checkpoints of whole modules, or chunks alone. {INSTEAD}"
        )
    if not model:
        raise UsageError("The study does not say which model it measured, and the file could not check it. Tune again.")
    groups = {on.site: (on.count, STEPS[on.option]) for on in sorted(config.choices, key=str)}
    source = SOURCE.format(model=model, groups=groups).lstrip("\n")
    return f"{OWN_CHECKPOINTING}\n{source}" if _is_replaced(versions) else source


def _write_budget(config: Config) -> str:
    options = [choice.option for choice in config.choices]
    if len(options) != 1 or not options[0].startswith(records.BUDGET) or records.KEEPING in options[0]:
        raise UsageError(f"torch alone can do a budget of its compiler only, and this is more. {INSTEAD}")
    return BUDGET_SOURCE.format(budget=float(options[0].removeprefix(records.BUDGET))).lstrip("\n")


def unmeasured(config: Config, versions: Mapping[str, str]) -> str:
    """Return a file of plans that says that nobody measured them."""
    return replace(_plans_file(config, versions), is_unmeasured=True).text


def _plans_file(config: Config, versions: Mapping[str, str]) -> PlansFile:
    return PlansFile(
        config=config,
        model=versions.get(MODEL, ""),
        torch=versions.get("torch", ""),
        replaces_checkpointing=_is_replaced(versions),
    )


def _is_replaced(versions: Mapping[str, str]) -> bool:
    return versions.get(CHECKPOINTING) == REPLACED


def planned(environment: Mapping[str, str]) -> Config | None:
    """Return the config in the file of plans, where that says that nobody measured it.

    Raises:
        UsageError: the file cannot be read.
    """
    wanted = requested(environment)
    return wanted.config if wanted is not None and wanted.is_unmeasured else None


def offer(detection: Detection, environment: Mapping[str, str], dims: Mapping[str, int]) -> Offer:
    """Return the offer at these dimensions, and the plans that these variables switch on.

    Raises:
        UsageError: the file that they name cannot be read.
    """
    wanted = requested(environment)
    config = wanted.config if wanted is not None else Config()
    occurrences = {choice: plan.occurrences for plan in detection.plans for choice in plan.choices}
    known = {on: occurrences.get(Choice(on.site, on.option)) for on in sorted(config.choices, key=str)}
    taken = {on: places for on, places in known.items() if places is not None}
    unknown = tuple(str(on) for on, places in known.items() if places is None)
    extra = records.TorchDetection.of(detection)
    is_replaced = extra.replaces_checkpointing
    own = tuple(records.describe_own(extra.own_checkpoints, is_replaced=is_replaced))
    file = environment.get(VARIABLE)
    summary = f"Recompute: {'ON' if taken else 'OFF'}" + (f"   {VARIABLE}={file}" if file else "")
    return Offer(
        plans=tuple(sorted(detection.plans, key=lambda plan: (-(plan.saving_bytes or 0), plan.id))),
        summary=summary,
        is_on=bool(taken),
        config=Config(frozenset(taken)),
        requested={on: ALL if on.count is None else on.count for on in taken},
        recomputed={on: places if on.count is None else min(on.count, places) for on, places in taken.items()},
        unknown=unknown,
        problems=(*(() if is_replaced else own), *(f"the model offers no plan {text}" for text in unknown)),
        notes=(*(own if is_replaced else ()), *_notes(extra, detection.plans)),
        worthless=explain_worthless(detection.plans, dims),
    )


def _notes(extra: records.TorchDetection, plans: Sequence[Plan]) -> Iterator[str]:
    if extra.steps is not None and not extra.steps.has_own_loss:
        yield "the model returns no loss: forecasts take the script's to be a cross entropy, and its copies come on top"
    if extra.steps is not None:
        known = {(option.site, option.option) for option in extra.steps.options}
        unknown = [plan.id for plan in plans if any((on.site, on.option) not in known for on in plan.choices)]
        if unknown:
            yield f"forecasts take these to change nothing, as no fake step was run with them: {', '.join(unknown)}"
    yield from (INEXACT.format(plan=one.id, share=one.equal_within) for one in plans if one.equal_within)
    if extra.no_steps:
        yield f"no peak is forecast: {extra.no_steps}"
    if extra.on_fakes:
        yield "the script ran on fake tensors: peaks are bytes of tensors, without interpreter and libraries"
    if extra.on_fakes and any(on.option == records.DROP for plan in plans for on in plan.choices):
        yield "single operators are offered by their form alone: tune verifies that they make the same bits again"
    if extra.is_apart:
        yield "neither DistributedDataParallel nor fully_shard joins the ranks: each holds the whole model"
    if extra.of_rank:
        yield "a batch is that of one rank; collectives take no time in what is estimated"
    yield from (f"{line} reads a value that a fake tensor does not have; 1 was assumed" for line in extra.assumed)
    if extra.is_thawed:
        yield records.FROZEN
    yield from extra.refusals


INEXACT = (
    "gradients with {plan} are equal within {share:.0e} of their largest, and not bit for bit: sums come in another "
    "order; --exact leaves it out"
)


def takes_turns(detection: Detection) -> bool:
    """Tell whether a swap takes no time: not where it compiles the model anew."""
    return not records.TorchDetection.of(detection).is_compiled


def needs_of(detection: Detection) -> Callable[[Config], frozenset[str]]:
    """Tell what has to be compiled: the model as a whole, or its blocks in each way in which a config runs them."""
    extra = records.TorchDetection.of(detection)
    if not extra.is_compiled:
        return lambda _config: frozenset()
    if extra.by_blocks:
        return lambda config: code_of_blocks(config, detection.plans)
    return lambda config: frozenset([config.hash])


def peaks_of(detection: Detection) -> PeakForecaster | None:
    """Return the peaks with which the search of a compiled model begins: guesses, which trials correct."""
    extra = records.TorchDetection.of(detection)
    if not extra.compiled_peaks:
        return None
    base_bytes = detection.resting_bytes + STATES * extra.trained_bytes
    return CompiledPeaks(detection.space, extra.compiled_peaks, base_bytes, detection.dims[BATCH])


def memory_of(detection: Detection) -> TorchMemoryModel | None:
    """Return the memory of every config; ``None`` where no step could be run on fake tensors."""
    return TorchMemoryModel.of(detection)


def memory_by_length(detection: Detection) -> Mapping[int, MemoryModel]:
    """Return the memory of shorter batches than the one that was detected, by their lengths in tokens."""
    return TorchMemoryModel.by_length(detection)


def rough_memory_of(detection: Detection) -> MemoryModel | None:
    """Return a memory model of every config from one forward pass; ``None`` where it tells nothing.

    Raises:
        SetupError: no peak is known beforehand, or a compilation would hold up the training for each config.
    """
    extra = records.TorchDetection.of(detection)
    if extra.is_compiled:
        raise SetupError(
            "the model is compiled, and the peaks of compiled code are known once it has run. Measure with "
            "'autorecompute tune SCRIPT', and train with 'autorecompute run STUDY -- python SCRIPT'"
        )
    if extra.steps is None and extra.rough_steps is None:
        raise SetupError(
            f"no peak is known before a step, as {extra.no_steps}. Measure with 'autorecompute tune SCRIPT'"
        )
    return TorchMemoryModel.of(detection, roughly=True)
