"""A config of checkpoints as a file that imports torch alone. Imports no torch itself: the controller asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.backends.torch.options import BUDGET, CHECKPOINT, COMPILED, EVERY_2ND, KEEPING
from autorecompute.errors import UsageError
from autorecompute.units import printable

if TYPE_CHECKING:
    from autorecompute.plans import Config

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

STEPS = {CHECKPOINT: 1, EVERY_2ND: 2}
"""From one module to the next."""

OWN_CHECKPOINTING = """\
# Measured with the script's own checkpointing off: take gradient_checkpointing=True, activation_checkpointing=True or
# whatever else switches it on out of the script.
"""

INSTEAD = "Use 'autorecompute run', or autorecompute.apply(model) with the file of plans."


def write_script(config: Config, model: str, *, replaces_checkpointing: bool = False) -> str:
    """Python source with a function ``apply_recompute(model)``.

    Args:
        config: What to recompute.
        model: The model that it was measured on, as ``identity.name_of`` calls it.
        replaces_checkpointing: Whether the script's own checkpoints were off in that.

    Raises:
        UsageError: the config recomputes more than whole modules, or checkpoints a compiled model, or the model is not
            known.
    """
    if model.endswith(COMPILED):
        return _write_budget(config)
    others = sorted(str(on) for on in config.choices if on.option not in STEPS or not set("/(").isdisjoint(on.site))
    if others:
        first = printable(others[0], "")
        raise UsageError(f"torch alone cannot do {first}: only checkpoints of whole modules. {INSTEAD}")
    if not model:
        raise UsageError("The study does not say which model it measured, and the file could not check it. Tune again.")
    groups = {on.site: (on.count, STEPS[on.option]) for on in sorted(config.choices, key=str)}
    source = SOURCE.format(model=model, groups=groups).lstrip("\n")
    return f"{OWN_CHECKPOINTING}\n{source}" if replaces_checkpointing else source


def _write_budget(config: Config) -> str:
    options = [choice.option for choice in config.choices]
    if len(options) != 1 or not options[0].startswith(BUDGET) or KEEPING in options[0]:
        raise UsageError(f"torch alone can do a budget of its compiler only, and this is more. {INSTEAD}")
    return BUDGET_SOURCE.format(budget=float(options[0].removeprefix(BUDGET))).lstrip("\n")
