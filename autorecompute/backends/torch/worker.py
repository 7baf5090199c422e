"""Plain PyTorch inside the user's process: what a model offers, and its switches between two steps."""

from __future__ import annotations

import functools
import os
import platform
from typing import TYPE_CHECKING, Any

import psutil
import torch

from autorecompute import codec
from autorecompute.backends.ortmodule.sessions import observe_batch
from autorecompute.backends.torch import failures
from autorecompute.backends.torch.applying import apply_now, decide_elsewhere
from autorecompute.backends.torch.controller import MODEL
from autorecompute.backends.torch.extra import TorchDetection
from autorecompute.backends.torch.fakes import Script
from autorecompute.backends.torch.gradients import check_gradients, few_samples
from autorecompute.backends.torch.identity import digest_of, name_of, sizes_of
from autorecompute.backends.torch.plans_file import requested
from autorecompute.backends.torch.roots import Roots
from autorecompute.backends.torch.space import space_of
from autorecompute.backends.torch.storages import tensors_in
from autorecompute.backends.torch.survey import survey_steps
from autorecompute.backends.torch.tuned import Tuned
from autorecompute.backends.torch.values import UnknownValueError
from autorecompute.measurement import Detection, Device
from autorecompute.plans import Config
from autorecompute.plans.dimensions import BATCH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.nn import Module

    from autorecompute.backends.interface import Listener
    from autorecompute.backends.torch.extra import Steps
    from autorecompute.measurement import GradientCheck, Outcome
    from autorecompute.memory import StepProfile

NAME = "torch"


class TorchBackend:
    """Plain PyTorch inside the user's process.

    The first module that trains is tuned. Others that are built like it (an ensemble's, those of the folds of a cross
    validation) get the same config, and whatever else trains is left as it is.

    Args:
        batch: Samples that a step is to have; ``None`` for those that the script gives.
    """

    def __init__(self, batch: int | None = None) -> None:
        self._batch = batch
        self._roots = Roots(self)
        self._listener: Listener | None = None
        self._name = ""
        self._tuned: dict[int, Tuned] = {}
        self._config = Config()
        self._leaves_alone = False
        self._open: set[object] = set()

    def install(self, listener: Listener) -> None:
        """Follows every optimizer that will be made, and the modules that they train."""
        self._listener = listener
        decide_elsewhere()
        self._roots.install()

    def uninstall(self) -> None:
        """Follows nothing any more."""
        self._roots.uninstall()

    def about_to_run(self, root: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A module is about to be called in training."""
        assert self._listener is not None, "nothing is followed before install()"
        if id(root) not in self._tuned and not self._leaves_alone:
            self._welcome(root, args, kwargs)
        if not self._name or name_of(root) == self._name:
            batch = observe_batch([*args, *kwargs.values()])
            check = functools.partial(self._check, root, batch, args, kwargs)
            self._listener.on_forward(batch, check)

    def has_run(self, root: Module, result: Any) -> None:
        """A module was called in training: its forward is open until gradients come back."""
        del root
        mark = object()
        self._open.add(mark)

        def close(_gradient: torch.Tensor) -> None:
            self._open.discard(mark)

        for tensor in tensors_in(result):
            if tensor.requires_grad:
                tensor.register_hook(close)

    def switch(self, config: Config, *, profiles: bool = False) -> None:
        """Trains with another config from the next forward on."""
        del profiles
        self._config = config
        for tuned in self._tuned.values():
            tuned.switch(config)

    def take_profile(self) -> StepProfile:
        """Never asked: fake steps have told what a profile would."""
        raise NotImplementedError

    @property
    def has_open_forward(self) -> bool:
        """Whether a training forward waits for its backward."""
        return bool(self._open)

    def end_step(self) -> tuple[str, ...]:
        """Told that a step has ended; what the script has done so far that recompute does not bear."""
        self._open.clear()
        missed = sorted({path for tuned in self._tuned.values() for path in tuned.missed})
        if not missed:
            return ()
        places = ", ".join(path or "the model" for path in missed)
        return (f"some calls of {places} made another graph than the first one: their operators were kept there",)

    def classify(self, error: BaseException) -> tuple[Outcome, str]:
        """What the exception that ended the script means, and a sentence about it."""
        return failures.classify(error)

    def _welcome(self, root: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A module trains for the first time."""
        assert self._listener is not None, "nothing is followed before install()"
        if self._name:
            if name_of(root) == self._name:
                self._tuned[id(root)] = tuned = Tuned.of(root, args, kwargs)
                tuned.switch(self._config)
            return
        config = self._listener.on_session(functools.partial(self._detect, root, args, kwargs))
        if not self._name:
            self._watch(root, args, kwargs)
            return
        self.switch(config)

    def _watch(self, root: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Trains as the environment says: nobody asked what there is."""
        self._name, self._leaves_alone = name_of(root), True
        wanted = requested(os.environ)
        if wanted is not None and not wanted.config.is_none:
            self._tuned[id(root)] = apply_now(wanted, root, args, kwargs)

    def _detect(self, root: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Detection:
        tuned = Tuned.of(root, args, kwargs)
        self._tuned[id(root)], self._name = tuned, name_of(root)
        found, batch = tuned.found, observe_batch([*args, *kwargs.values()])
        steps, no_steps = self._survey(tuned, batch, args, kwargs)
        space = space_of(found, tuned.board, steps)
        sizes = sizes_of(list(tensors_in((args, kwargs))), batch)
        refusals = tuple(map(str, found.refusals))
        return Detection(
            plans=space.plans,
            own_presets=space.own_presets,
            conflicts=space.conflicts,
            dims={BATCH: batch, **sizes},
            graph=digest_of(root, found, sizes),
            device=describe_device(root),
            versions={**read_versions(), MODEL: self._name},
            extra=codec.to_plain(TorchDetection(refusals=refusals, steps=steps, no_steps=no_steps)),
        )

    def _survey(
        self, tuned: Tuned, batch: int, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Steps | None, str]:
        """What steps take, or why nobody can tell."""
        sizes = (batch, self._batch) if self._batch is not None and self._batch != batch else None
        script = Script(args, kwargs, self._roots.optimizers_of(tuned.model), batch=sizes)
        try:
            return survey_steps(tuned.model, tuned.found, tuned.board, script), ""
        except (UnknownValueError, RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            # The model's own code runs there on tensors without values, and may do anything with them.
            return None, f"the model cannot be run on fake tensors ({_first_line(error)})"

    def _check(
        self, root: Module, batch: int, args: Sequence[Any], kwargs: Mapping[str, Any], config: Config
    ) -> GradientCheck:
        board = self._tuned[id(root)].board
        few_args, few_kwargs = few_samples(tuple(args), batch), few_samples(dict(kwargs), batch)
        return check_gradients(root, board, config.choices, few_args, few_kwargs)


def describe_device(model: Module) -> Device:
    """The device of the model's first parameter."""
    device = next(model.parameters()).device
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return Device(kind="cuda", name=properties.name, uuid=str(properties.uuid), total_bytes=properties.total_memory)
    name = platform.processor() or platform.machine()
    return Device(kind="cpu", name=f"{name}, {psutil.cpu_count()} cores", total_bytes=psutil.virtual_memory().total)


def read_versions() -> dict[str, str]:
    """The versions that plans and speed depend on."""
    return {"python": platform.python_version(), "torch": torch.__version__, "onnxruntime": "", "backend": NAME}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
