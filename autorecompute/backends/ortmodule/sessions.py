"""Follows the training sessions of a process and swaps the config of a live one.

All figures about swapping were measured on ORT 1.19.2: rebuilding the session takes about half a second, against 15 to
20 seconds for a new process, and leaves nothing of the old session behind once the last tensor it made is gone.
"""

from __future__ import annotations

import functools
import os
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autorecompute.backends.common.batches import observe_batch, on_few_samples
from autorecompute.backends.ortmodule import exceptions, logs
from autorecompute.backends.ortmodule.adapter import adapt
from autorecompute.backends.ortmodule.checkpointing import Checkpointing
from autorecompute.backends.ortmodule.detection import detect, name_dims
from autorecompute.backends.ortmodule.environment import Given, give, plans_file_text, probe_config_of
from autorecompute.backends.ortmodule.gradient_check import check_gradients
from autorecompute.backends.ortmodule.grammar import Level
from autorecompute.backends.ortmodule.pairing import ForwardPairing
from autorecompute.backends.ortmodule.profiling import Profiler
from autorecompute.files import write_whole
from autorecompute.measurement import UNCOMPARED
from autorecompute.plans import Config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autorecompute.backends.listener import Listener
    from autorecompute.measurement import GradientCheck, Outcome
    from autorecompute.memory import StepProfile


NOTHING_TRAINED = (
    "No ORTModule was trained. Wrap the model before training: from onnxruntime.training.ortmodule import ORTModule; "
    "model = ORTModule(model); or leave out --backend to tune it in plain PyTorch."
)


class OrtModuleBackend:
    """ORTModule inside the user's process.

    The first module that trains is tuned, with others that are built like it: those of other folds, or of an ensemble.
    Whatever else trains gets the same config, and is neither counted nor compared.

    Args:
        folder: Where plans files may be written; whoever gave it removes it, as this process can end at any moment.
    """

    def __init__(self, folder: Path) -> None:
        self._managers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._is_alike: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._build: tuple[object, ...] = ()
        self._has_told = False
        self._ran: Callable[[], Any] = lambda: None
        self._config, self._profiles = Config(), False
        self._pairing = ForwardPairing()
        self._checkpointing = Checkpointing()
        self._profiler = Profiler(folder)
        self._folder = folder

    def install(self, listener: Listener) -> None:
        """Hooks into every training session that ORTModule will create.

        Args:
            listener: Who is told of it.

        Raises:
            SetupError: ORTModule is not installed, or its extensions are missing.
        """
        exceptions.require_ortmodule()
        adapt()
        logs.let_out()
        from onnxruntime.training.ortmodule._training_manager import TrainingManager

        self._pairing.install()
        self._checkpointing.install()
        create, forward = TrainingManager._create_execution_agent, TrainingManager.forward  # noqa: SLF001

        @functools.wraps(create)
        def create_and_tell(manager: Any) -> None:
            create(manager)
            if manager not in self._managers:
                self._managers.add(manager)
                self._welcome(manager, listener)

        @functools.wraps(forward)
        def forward_and_tell(manager: Any, *inputs: Any, **kwargs: Any) -> Any:
            # A further model's first forward makes its session: nothing can be compared before, nor its time be used.
            if self._is_tuned(manager) and (manager in self._managers or not self._has_told):
                self._ran = weakref.ref(manager)
                run = functools.partial(forward, manager)
                check = functools.partial(self._check, manager, run, (inputs, kwargs))
                listener.on_forward(observe_batch([*inputs, *kwargs.values()]), check)
            try:
                return forward(manager, *inputs, **kwargs)
            except Exception as error:
                listener.on_failure(error)
                raise

        _follow_fallbacks(listener)
        self._profiler.install(TrainingManager, lambda manager: self._profiles and self._is_tuned(manager))
        TrainingManager._create_execution_agent = create_and_tell  # noqa: SLF001
        TrainingManager.forward = forward_and_tell

    def why_nothing_trained(self) -> str:
        """Return why a script may never have come to training, and what to do about it, in sentences."""
        return NOTHING_TRAINED

    def switch(self, config: Config, *, profiles: bool = False) -> None:
        """Rebuilds every training session with another config; those that are tuned profiled, if that is wanted."""
        self._config, self._profiles = config, profiles
        for manager in list(self._managers):
            rebuild(manager, config, self._folder)

    def live_meter(self) -> None:
        """None: ORT's arena holds the tensors of a step."""

    def take_profile(self) -> StepProfile:
        """Return the last step that was tuned, which ends the profile of its session."""
        self._profiles, manager = False, self._ran()
        assert manager is not None, "it has just trained"
        return self._profiler.take(manager, name_dims(manager))

    def take_compile_seconds(self) -> float:
        """None: sessions are made by a swap, before the first step with it."""
        return 0.0

    @property
    def has_open_forward(self) -> bool:
        """Tell whether a training forward waits for its backward; no config can be switched then."""
        return self._pairing.has_open_forward

    def end_step(self) -> tuple[str, ...]:
        """Told that a step has ended; what the script has done so far that recompute does not bear."""
        self._pairing.end_step()
        return (*self._pairing.warnings, *self._checkpointing.warnings)

    def wrong_recompute(self) -> str:
        """Return nothing: what ORT makes again is in its graph, and nobody sees it."""
        return ""

    def classify(self, error: BaseException) -> tuple[Outcome, str]:
        """Return what the exception that ended the script means, and a sentence about it."""
        return exceptions.classify(error)

    def _check(
        self, manager: Any, run: Callable[..., Any], call: tuple[Any, Any], config: Config, *, compares: bool = True
    ) -> GradientCheck:
        if not compares:
            return UNCOMPARED
        inputs, kwargs = call
        return on_few_samples(
            lambda args, named: self._compare(manager, config, lambda: run(*args, **named)),
            inputs,
            kwargs,
            observe_batch([*inputs, *kwargs.values()]),
            self.classify,
        )

    def _compare(self, manager: Any, config: Config, forward: Callable[[], Any]) -> GradientCheck:
        folder = self._folder
        try:
            check = check_gradients(
                manager, config, forward=forward, rebuild=lambda candidate: rebuild(manager, candidate, folder)
            )
        finally:
            rebuild(manager, self._config, folder)
        if self._pairing.warnings and any("Dropout" in on.site for on in config.choices):
            return replace(check, agrees=False, message=self._pairing.warnings[0])
        return check

    def _welcome(self, manager: Any, listener: Listener) -> None:
        config = self._config
        if not self._has_told:
            self._has_told = True
            config = listener.on_session(functools.partial(detect, manager))
        if not config.is_none:
            rebuild(manager, config, self._folder)
        self._config = config

    def _is_tuned(self, manager: Any) -> bool:
        if manager not in self._is_alike:
            build = _build_of(manager)
            self._build = self._build or build
            self._is_alike[manager] = build == self._build
        return self._is_alike[manager]


def _build_of(manager: Any) -> tuple[object, ...]:
    """Return the same for all modules that are built alike, whatever their weights are."""
    module = manager._original_module  # noqa: SLF001
    return type(module), *((name, weight.shape) for name, weight in module.named_parameters())


def _follow_fallbacks(listener: Listener) -> None:
    """Tell of each call of a model that ORTModule hands back to PyTorch: a script may insist on that."""
    from onnxruntime.training.ortmodule._fallback import _FallbackManager

    fall_back = _FallbackManager.fallback

    @functools.wraps(fall_back)
    def tell_and_fall_back(fallback_manager: Any, *inputs: Any, **kwargs: Any) -> Any:
        listener.on_fallback(exceptions.classify(fallback_manager._exception)[1])  # noqa: SLF001
        return fall_back(fallback_manager, *inputs, **kwargs)

    _FallbackManager.fallback = tell_and_fall_back


def rebuild(manager: Any, config: Config, folder: Path) -> None:
    """Build the manager's training session anew with the config; export and gradient graph stay as they are.

    Raises:
        UsageError: this version of ONNX Runtime cannot be given the config.
    """
    import onnxruntime

    level, plans = give_here(config, onnxruntime.__version__, folder)
    options, observer = manager._runtime_options, manager._runtime_inspector.memory_ob  # noqa: SLF001
    options.memory_optimization_level = int(level)
    options.recompute_probe_config = probe_config_of(level, os.environ)
    has_file = hasattr(options, "memory_optimizer_config_file_path")  # since ORT 1.19
    setattr(options, "memory_optimizer_config_file_path" if has_file else "memory_optimizer_config", plans)
    # Only a level needs ORT to look for plans again; looking builds a second session and doubles the time.
    observer._is_enabled = level is not Level.CHOSEN  # noqa: SLF001
    observer.cluster_id_combination_to_saving_symbolics_map.clear()
    manager._execution_agent = None  # noqa: SLF001
    manager._create_execution_agent()  # noqa: SLF001


def give_here(config: Config, ort_version: str, folder: Path) -> Given:
    """Return what a live ORTModule of this version is given for a config; a plans file is written into the folder.

    Raises:
        UsageError: it cannot be given the config.
    """
    file = folder.absolute() / f"{config.hash}.json"
    given = give(config, ort_version, file)
    if given.plans == str(file):
        # Ranks that train together switch at the same moment: one of them may be reading what another writes.
        write_whole(file, plans_file_text(config))
    return given
