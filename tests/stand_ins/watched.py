"""The check of one site, to put around what recomputes it."""

from torch import nn

from autorecompute.backends.torch.check.recompute_check import ALL, RecomputeCheck


def watched(mode=ALL):
    return RecomputeCheck(nn.Identity(), mode).watch("a site", "a module")
