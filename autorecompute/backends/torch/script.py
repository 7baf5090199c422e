"""A config of checkpoints as a file that imports torch alone. Imports no torch itself: the controller asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.backends.torch.options import CHECKPOINT, EVERY_2ND
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
        raise ValueError(f"this was measured on another model ({{MODEL}}) than this one ({{name_of(model)}})")
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
        return checkpoint(functools.partial(original, self), *args, use_reentrant=False, **kwargs)

    forward.checkpoints = True
    kind.forward = forward


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

STEPS = {CHECKPOINT: 1, EVERY_2ND: 2}
"""From one module to the next."""

INSTEAD = "Use 'autorecompute run', or autorecompute.apply(model) with the file of plans."


def write_script(config: Config, model: str) -> str:
    """Python source with a function ``apply_recompute(model)``.

    Args:
        config: What to recompute.
        model: The model that it was measured on, as ``identity.name_of`` calls it.

    Raises:
        UsageError: the config recomputes more than whole modules, or the model is not known.
    """
    others = sorted(str(on) for on in config.choices if on.option not in STEPS or not set("/(").isdisjoint(on.site))
    if others:
        first = printable(others[0], "")
        raise UsageError(f"torch alone cannot do {first}: only checkpoints of whole modules. {INSTEAD}")
    if not model:
        raise UsageError("The study does not say which model it measured, and the file could not check it. Tune again.")
    groups = {on.site: (on.count, STEPS[on.option]) for on in sorted(config.choices, key=str)}
    return SOURCE.format(model=model, groups=groups).lstrip("\n")
