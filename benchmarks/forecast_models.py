"""Hold forecasts beside real steps on the models that people train: ``make bench-forecast-models``.

Each model of ``droppable.py``, with random weights, in float32 and under autocast to bfloat16: without recompute, with
presets, and with mixes drawn by chance of plans in some or all of their places. The forecast adds up what each plan
changes. A whole step on fake tensors, as one runs for each config before its trial, adds nothing up. A line tells how
many of either are the bytes alive at the peak of a real step, and the largest difference. Arguments name models.
"""

from __future__ import annotations

import argparse
import warnings
from typing import TYPE_CHECKING, Any

import droppable
import torch
from forecast import draw_configs

from autorecompute.backends.torch.fake.live import LiveBytes, tensors_of
from autorecompute.backends.torch.fake.steps import FakeSteps, Script
from autorecompute.backends.torch.fake.survey import survey_steps
from autorecompute.backends.torch.find.detection import detect, space_of
from autorecompute.backends.torch.find.refusals import RefusalError
from autorecompute.backends.torch.forecast.forecast import TorchMemoryModel
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.nn import Module
    from torch.optim import Optimizer

CONFIGS, EXACT_BYTES = 24, 1024


def peak_of(model: Module, batch: dict[str, Any], optimizer: Optimizer, *, is_cast: bool) -> int:
    """Return the bytes above those before it that are alive at the peak of the second of two steps."""
    for _ in range(2):
        meter = LiveBytes(tensors_of(model, [optimizer], (batch,)))
        with meter:
            with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
                loss = loss_of(model(**batch))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        del loss
    return meter.peak - meter.base


def report(name: str, *, is_cast: bool) -> str:
    """Return what is told of a model."""
    model, batch = droppable.make(name)
    optimizer = torch.optim.AdamW(model.parameters())
    peak_of(model, batch, optimizer, is_cast=is_cast)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
        found = detect(model, (), batch)
        board = found.switchboard(model)
        script = Script((), batch, (optimizer,), loss=loss_of)
        steps = survey_steps(model, found, board, script)
    space = space_of(found, board, steps)
    memory = TorchMemoryModel(space, steps, 0, {})
    peaks, errors, whole_errors = [], [], []
    for config in draw_configs(space, CONFIGS):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
            fakes = FakeSteps(model, found.structure.units, script, found.values)
            whole = fakes.run(board, config.choices)
        board.set(config.choices)
        peaks.append(peak_of(model, batch, optimizer, is_cast=is_cast))
        board.set(())
        errors.append(memory.forecast(config, memory.dims).live_bytes - peaks[-1])
        whole_errors.append(whole.peak - whole.base - peaks[-1])
    told = f"{format_bytes(min(peaks))} to {format_bytes(max(peaks))}"
    return f"{told}; whole fake steps: {describe(whole_errors)}; forecasts: {describe(errors)}"


def loss_of(outputs: Any) -> Any:
    """Return the loss of a model, or one of what it returns."""
    return outputs.loss if hasattr(outputs, "loss") else outputs.square().mean()


def describe(errors: Sequence[int]) -> str:
    """Return how many are none, and the largest."""
    exact = sum(abs(error) <= EXACT_BYTES for error in errors)
    return f"{exact} of {len(errors)} within 1 KiB, worst {max(errors, key=abs):+} bytes"


def main() -> None:
    """Print a line for each model and type."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=list(droppable.MODELS), help="only these")
    warnings.simplefilter("ignore")
    for name in parser.parse_args().models:
        for is_cast in (False, True):
            try:
                line = report(name, is_cast=is_cast)
            except (AttributeError, ImportError, RefusalError) as error:
                line = f"not told: {error}"
            print(f"{name:10}  {'autocast' if is_cast else 'float32':8}  {line}", flush=True)


if __name__ == "__main__":
    main()
