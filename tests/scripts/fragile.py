"""Trains the plain transformer, and dies of a signal as soon as gradients are compared: of few samples, after steps."""

import os
import signal
import sys

from torch.optim.optimizer import register_optimizer_step_post_hook

import models
import plain_transformer

BATCH = int(sys.argv[sys.argv.index("--bs") + 1])
forward, steps = models.Encoder.forward, []


def forward_or_die(self, inputs):
    if steps and inputs.shape[0] < BATCH:
        os.kill(os.getpid(), signal.SIGSEGV)
    return forward(self, inputs)


register_optimizer_step_post_hook(lambda *_: steps.append(None))
models.Encoder.forward = forward_or_die
plain_transformer.main()
