"""How long a training is followed whose steps tell nothing."""

from __future__ import annotations

from autorecompute.worker.protocol import BATCH_VARIABLE

STEPS_WITHOUT_SESSION = 10
"""So many optimizer steps without a training session mean that there is none to come."""

BACKWARDS_WITHOUT_OPTIMIZER = 20
"""So many backward passes of a script that has made no optimizer mean that it changes the weights by itself."""

MISSED_STEPS = 12
"""So many steps in a row may miss the target batch: loaders prefetch, and an epoch ends with a smaller batch."""

SKIPPED_STEPS = 50
"""So many steps in a row may be skipped by a GradScaler: it begins with a scale that is too large, and halves it."""

COMPILATIONS = 8
"""So often a model may be compiled in the steps of one config. Two are usual: batches of another length bring one that
holds for any length."""

NO_TORCH = "It never imported torch, so that there was nothing to tune. Give the script that trains."

PASSED_BY = (
    "The script changes how Python imports, and torch was imported unnoticed. Import torch before sys.meta_path is "
    "changed."
)

NO_OPTIMIZER = "No torch.optim optimizer was found, whose step() ends a training step. Train with one."

OTHER_BATCH = (
    "The model received a batch of {batch}, not {target}. Write {{batch}} where the script's arguments take it, name "
    f"its flag with --batch-flag, or read {BATCH_VARIABLE} in the script. The first dimension of the model's inputs is "
    "taken for the batch: where it is another one, leave --target-batch out."
)

NO_SESSION = f"The script took {STEPS_WITHOUT_SESSION} optimizer steps without training a model that can be tuned."

FELL_BACK = "The script goes on without the training system that is tuned, and nothing is recomputed."

STEPS_IN_BACKWARD = (
    "The optimizer's step() runs inside backward(), in a hook on a gradient, and a config can be swapped only between "
    "two steps. Call step() after backward() while you tune."
)

COMPILES_ON = (
    "The model recompiles in every step, so that no config could be measured: it is given tensors "
    "of other shapes each time. Pad its batches, or compile it with dynamic=True."
)

SKIPS_ON = (
    f"The GradScaler skipped more than {SKIPPED_STEPS} steps in a row: no gradients were finite. Begin with a smaller "
    "scale, or look for what is not finite in float16."
)
