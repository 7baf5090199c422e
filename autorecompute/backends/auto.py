"""Whichever training system a script uses: one trains every script, and each other one those that import it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from autorecompute.backends.imports import when_imported
from autorecompute.errors import OwnCheckpointingError
from autorecompute.plans import Config

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autorecompute.backends.interface import ControllerBackend, LiveMeter, WorkerBackend
    from autorecompute.backends.listener import Listener
    from autorecompute.measurement import GradientCheck, Outcome
    from autorecompute.memory import StepProfile
    from autorecompute.training_job import Detection


class AutoBackend:
    """Several training systems in one process, until one of them trains.

    Args:
        plain: The one that trains scripts which use no other; it can be taken out again.
        others: The others by the module whose import brings them in.
        make: Makes the half of a backend that runs in this process.
    """

    def __init__(
        self,
        plain: Any,
        others: Mapping[str, ControllerBackend],
        make: Callable[[ControllerBackend], WorkerBackend],
    ) -> None:
        self._plain, self._others, self._make = plain, others, make
        self._current: WorkerBackend = plain
        self._is_decided = False
        self._listener: Listener | None = None

    def install(self, listener: Listener) -> None:
        """Hooks into the plain one, and waits for the imports of the others."""
        self._listener = listener
        self._plain.install(_Told(listener, lambda: self._decide(self._plain)))
        for module, controller in self._others.items():
            when_imported(module, self._bring_in(controller, listener), _before(controller))

    def switch(self, config: Config, *, profiles: bool = False) -> None:
        """Do as the backend that trains does."""
        self._current.switch(config, profiles=profiles)

    def live_meter(self) -> LiveMeter | None:
        """Return that of the one that trains."""
        return self._current.live_meter()

    def take_profile(self) -> StepProfile | None:
        """Return that of the one that trains."""
        return self._current.take_profile()

    def take_compile_seconds(self) -> float:
        """Do as the backend that trains does."""
        return self._current.take_compile_seconds()

    @property
    def has_open_forward(self) -> bool:
        """Return what the backend that trains has."""
        return self._current.has_open_forward

    def end_step(self) -> tuple[str, ...]:
        """Ask the backend that trains."""
        return self._current.end_step()

    def wrong_recompute(self) -> str:
        """Ask the backend that trains."""
        return self._current.wrong_recompute()

    def why_nothing_trained(self) -> str:
        """Return what each of those says that the script has brought in."""
        plain: str = self._plain.why_nothing_trained()
        if self._current is self._plain:
            return plain
        return f"{self._current.why_nothing_trained()} {plain}"

    def classify(self, error: BaseException) -> tuple[Outcome, str]:
        """Return what the exception means to the one that trains, or that was brought in last."""
        return self._current.classify(error)

    def _bring_in(self, controller: ControllerBackend, listener: Listener) -> Callable[[Any], None]:
        def bring_in(_module: Any) -> None:
            if self._is_decided:
                return
            backend = self._make(controller)
            self._current = backend
            backend.install(_Told(listener, lambda: self._decide(backend)))

        return bring_in

    def _decide(self, backend: WorkerBackend) -> bool:
        """Tell whether this is the one that trains; the first to train is."""
        if not self._is_decided:
            self._is_decided, self._current = True, backend
            if backend is not self._plain:
                self._plain.uninstall()
                self._require_own_checkpoints()
        return self._current is backend

    def _require_own_checkpoints(self) -> None:
        if self._listener is not None and self._listener.replaces_checkpointing:
            self._listener.on_fault(
                OwnCheckpointingError(
                    "The script does not train with plain PyTorch alone, where its checkpointing could be replaced: "
                    "leave --replace-checkpointing out."
                )
            )


class _Told:
    """Passes on what one backend tells, as long as it is the one that trains."""

    def __init__(self, listener: Listener, decide: Callable[[], bool]) -> None:
        self._listener, self._decide = listener, decide

    @property
    def target_batch(self) -> int | None:
        return self._listener.target_batch

    @property
    def fake_card(self) -> str | None:
        return self._listener.fake_card

    @property
    def fake_ranks(self) -> int:
        return self._listener.fake_ranks

    @property
    def replaces_checkpointing(self) -> bool:
        return self._listener.replaces_checkpointing

    @property
    def is_trial(self) -> bool:
        return self._listener.is_trial

    def on_session(self, detect: Callable[[], Detection]) -> Config:
        return self._listener.on_session(detect) if self._decide() else Config()

    def on_forward(self, batch: int, check: Callable[..., GradientCheck]) -> None:
        if self._decide():
            self._listener.on_forward(batch, check)

    def on_several_models(self) -> None:
        if self._decide():
            self._listener.on_several_models()

    def on_fault(self, error: Exception) -> None:
        self._listener.on_fault(error)

    def on_failure(self, error: Exception) -> None:
        if self._decide():
            self._listener.on_failure(error)

    def on_fallback(self, message: str) -> None:
        if self._decide():
            self._listener.on_fallback(message)


def _before(controller: ControllerBackend) -> Callable[[], None]:
    """Return what has to be called before the module of a backend is imported."""
    hooks = [hook for hook in controller.import_hooks() if hook.comes_first]

    def call() -> None:
        for hook in hooks:
            name, _, function = hook.function.partition(":")
            getattr(importlib.import_module(name), function)()

    return call
