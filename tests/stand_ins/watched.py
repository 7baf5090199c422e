"""The check of one site, to put around what recomputes it."""

from torch import nn

from autorecompute.backends.torch.check.recompute_check import Mode, RecomputeCheck


def watched(mode=Mode.ALL):
    return RecomputeCheck(nn.Identity(), mode).watch("a site", "a module")
