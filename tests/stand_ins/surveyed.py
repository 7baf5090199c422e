"""A model that was looked at, and its steps on fake tensors."""

import torch

from autorecompute.backends.torch.fake.steps import FakeSteps, Script
from autorecompute.backends.torch.fake.survey import survey_steps
from autorecompute.backends.torch.find.detection import detect, space_of
from autorecompute.backends.torch.forecast.forecast import TorchMemoryModel
from tiny_models import call_of, make


def detect_in(training):
    return detect(training.model, *call_of(training))


class Surveyed:
    def __init__(self, model, script):
        self.model, self.script = model, script
        self.found = detect(model, script.args, script.kwargs)
        self.board = self.found.switchboard(model)
        self.steps = survey_steps(self.model, self.found, self.board, self.script)
        self.space = space_of(self.found, self.board, self.steps)
        self.memory = TorchMemoryModel(self.space, self.steps, resting_bytes=0, sizes={})

    @classmethod
    def of(cls, name, layers=3):
        training = make(name, layers=layers)
        return cls(training.model, Script(*call_of(training), (torch.optim.AdamW(training.model.parameters()),)))

    def peak_of(self, config):
        fakes = FakeSteps(self.model, self.found.structure.units, self.script, self.found.values)
        meter = fakes.run(self.board, config.choices)
        return meter.peak - meter.base
