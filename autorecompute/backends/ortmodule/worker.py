"""ORTModule inside the user's process: its sessions are built anew for each config."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import weakref
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autorecompute.backends import common
from autorecompute.backends.findings import blocking
from autorecompute.backends.interface import WorkerBackend
from autorecompute.backends.ortmodule.adapter import adapt, add_options, put_around
from autorecompute.backends.ortmodule.controller import CHOSEN, give, plans_file_text, probe_config_of
from autorecompute.backends.ortmodule.detection import detect, dims_of
from autorecompute.backends.ortmodule.diagnose import findings_for_training
from autorecompute.backends.ortmodule.exceptions import classify
from autorecompute.backends.ortmodule.profiling import follow_options, take_profile
from autorecompute.errors import SetupError
from autorecompute.files import write_whole
from autorecompute.measurement import UNCOMPARED
from autorecompute.plans import Config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from autorecompute.backends.interface import Listener
    from autorecompute.measurement import GradientCheck
    from autorecompute.memory import StepProfile


INEFFECTIVE = (
    "the model uses torch.utils.checkpoint, which does nothing in ORTModule: switch gradient checkpointing off, "
    "recompute plans take its place"
)
UNPAIRED = (
    "a forward in training mode has no backward of its own. Recomputed Dropout would give wrong gradients from there "
    "on: call the model under torch.no_grad() or model.eval() there."
)
OVERLAPPING = (
    "a forward in training mode begins before the last one's backward. Recomputed Dropout would give wrong gradients "
    "from there on: let each forward's backward come first."
)


def let_out() -> None:
    """Leave the process's output alone during exports, and show the exporter's graph at the loudest level only.

    Where the environment sets no level, a script's own ``DebugOptions`` decide about the graph.
    """
    from onnxruntime.training.ortmodule import _logger

    _logger._suppress_os_stream_output = lambda *_, **__: nullcontext()  # noqa: SLF001
    add_options(_verbosity)


def _verbosity() -> dict[str, bool]:
    level = os.environ.get("ORTMODULE_LOG_LEVEL")
    return {} if level is None else {"verbose": level == "VERBOSE"}


PACKAGE = str(Path(__file__).parents[2])
LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


def _line_of_user(frame: FrameType | None) -> str:
    """Return file and line of the innermost frame that is neither a library's nor ours."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((PACKAGE, *LIBRARIES, "<")):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return "the script"


STEPS, SEED = 3, 20_230


def check_gradients(
    manager: Any, config: Config, *, forward: Callable[[], Any], rebuild: Callable[[Config], None]
) -> GradientCheck:
    """Compare the config with no recompute over a few steps; the weights stay as they are.

    ``forward`` calls the model on the same batch, in training mode; ``rebuild`` builds the manager's session anew. The
    gradients without recompute are kept in the host's memory: several steps' would be more than a card has left.
    """
    every = manager._flattened_module.named_parameters()  # noqa: SLF001
    named = {name: parameter for name, parameter in every if parameter.requires_grad}
    parameters = list(named.values())
    with _seeded_dropouts(manager._onnx_models.optimized_model.graph):  # noqa: SLF001
        expected = [
            [None if gradient is None else gradient.cpu() for gradient in step]
            for step in _gradients(Config(), parameters, forward, rebuild)
        ]

        def compare(other: Config) -> dict[str, float]:
            differences = dict.fromkeys(named, 0.0)
            for theirs, ours in zip(expected, _gradients(other, parameters, forward, rebuild), strict=True):
                for name, one, another in zip(named, theirs, ours, strict=True):
                    differences[name] = max(differences[name], common.relative_difference(one, another))
            return differences

        found = compare(config)
        rounded = common.rounded_to(one for step in expected for one in step if one is not None)
        check = common.within(found, lambda name: rounded or str(named[name].dtype).removeprefix("torch."), STEPS)
        if check.agrees or all(parameter.device.type == "cpu" for parameter in parameters):
            return check
        return common.beside_noise(found, compare(Config()), check)


@contextmanager
def _seeded_dropouts(graph: Any) -> Iterator[None]:
    from onnx import helper

    dropouts = [
        node
        for node in graph.node
        if "Dropout" in node.op_type
        and "Grad" not in node.op_type
        and all(attribute.name != "seed" for attribute in node.attribute)
    ]
    for number, node in enumerate(dropouts):
        node.attribute.append(helper.make_attribute("seed", SEED + number))
    try:
        yield
    finally:
        for node in dropouts:
            node.attribute.pop()


def _gradients(
    config: Config, parameters: list[Any], forward: Callable[[], Any], rebuild: Callable[[Config], None]
) -> Iterator[Sequence[Any]]:
    import onnxruntime
    import torch

    # ORT's random operators take their seed when the session is made.
    onnxruntime.set_seed(SEED)
    try:
        rebuild(config)
        for _ in range(STEPS):
            yield torch.autograd.grad(common.scalar_of(forward()), parameters, allow_unused=True)
    finally:
        onnxruntime.set_seed(torch.initial_seed() % sys.maxsize)


NOTHING_TRAINED = (
    "No ORTModule was trained. Wrap the model before training: from onnxruntime.training.ortmodule import ORTModule; "
    "model = ORTModule(model); or leave out --backend to tune it in plain PyTorch."
)


class OrtModuleBackend(WorkerBackend):
    """ORTModule inside the user's process.

    The first module that trains is tuned, with others that are built like it: those of other folds, or of an ensemble.
    Whatever else trains gets the same config, and is neither counted nor compared.

    Whoever gave the folder for plans files removes it, as this process can end at any moment.
    """

    def __init__(self, folder: Path) -> None:
        self._managers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._is_alike: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._build: tuple[object, ...] = ()
        self._has_told = False
        self._ran: Callable[[], Any] = lambda: None
        self._config, self._profiles = Config(), False
        self._open_lines: list[str] = []
        """Lines of the script whose forward has had no backward so far in this step."""
        self._overlapping: dict[str, str] = {}
        self._faults: dict[str, str] = {}
        """A warning for each line of the script that is at fault."""
        self._is_checkpointed = False
        self._folder = folder

    def install(self, listener: Listener) -> None:
        """Hook into every training session that ORTModule will create.

        Raises:
            SetupError: ORTModule is not installed, or its extensions are missing.
        """
        if missing := blocking(findings_for_training()):
            raise SetupError(" ".join(f"{finding.name}: {finding.found}. {finding.remedy}" for finding in missing))
        adapt()
        let_out()
        from onnxruntime.training.ortmodule._fallback import _FallbackManager
        from onnxruntime.training.ortmodule._training_manager import TrainingManager

        self._follow_pairs()
        self._follow_checkpointing()
        follow_options(TrainingManager, self._folder, lambda manager: self._profiles and self._is_tuned(manager))

        @put_around(TrainingManager, "_create_execution_agent")
        def create_and_tell(create: Callable[[Any], None], manager: Any) -> None:
            create(manager)
            if manager not in self._managers:
                self._managers.add(manager)
                if not self._has_told:
                    self._has_told = True
                    self._config = listener.on_session(functools.partial(detect, manager))
                if not self._config.is_none:
                    rebuild(manager, self._config, self._folder)

        @put_around(TrainingManager, "forward")
        def forward_and_tell(forward: Callable[..., Any], manager: Any, *inputs: Any, **kwargs: Any) -> Any:
            # A further model's first forward makes its session: nothing can be compared before, nor its time be used.
            if self._is_tuned(manager) and (manager in self._managers or not self._has_told):
                self._ran = weakref.ref(manager)
                run = functools.partial(forward, manager)
                check = functools.partial(self._check, manager, run, (inputs, kwargs))
                listener.on_forward(common.observe_batch([*inputs, *kwargs.values()]), check)
            try:
                return forward(manager, *inputs, **kwargs)
            except Exception as error:
                listener.on_failure(error)
                raise

        @put_around(_FallbackManager, "fallback")
        def tell_and_fall_back(fall_back: Callable[..., Any], manager: Any, *inputs: Any, **kwargs: Any) -> Any:
            # The call is handed back to PyTorch: a script may insist on that.
            listener.on_fallback(classify(manager._exception)[1])  # noqa: SLF001
            return fall_back(manager, *inputs, **kwargs)

    def _follow_pairs(self) -> None:
        from onnxruntime.training.ortmodule._execution_agent import TrainingAgent

        @put_around(TrainingAgent, "run_forward")
        def forward_and_count(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            line = _line_of_user(sys._getframe(1))  # noqa: SLF001  (documented, and no walk of all frames)
            if self._open_lines:
                self._overlapping[line] = f"{line}: {OVERLAPPING}"
            self._open_lines.append(line)
            return run(*args, **kwargs)

        @put_around(TrainingAgent, "run_backward")
        def backward_and_count(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if self._open_lines:
                self._open_lines.pop()
            return run(*args, **kwargs)

    def _follow_checkpointing(self) -> None:
        import torch
        from torch.utils import checkpoint

        # Scripts import checkpoint(..., use_reentrant=False) by its name: only what it calls can be followed.
        @put_around(checkpoint, "_checkpoint_without_reentrant_generator")
        def note_and_generate(generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            self._is_checkpointed = self._is_checkpointed or torch.jit.is_tracing()
            return generate(*args, **kwargs)

    def why_nothing_trained(self) -> str:
        """Return why a script may never have come to training, and what to do about it, in sentences."""
        return NOTHING_TRAINED

    def switch(self, config: Config, *, profiles: bool = False) -> None:
        """Rebuild every training session with another config; those that are tuned profiled, if that is wanted."""
        self._config, self._profiles = config, profiles
        for manager in list(self._managers):
            rebuild(manager, config, self._folder)

    def take_profile(self) -> StepProfile:
        """Return the last step that was tuned, which ends the profile of its session."""
        self._profiles, manager = False, self._ran()
        assert manager is not None, "it has just trained"
        return take_profile(manager, self._folder, dims_of(manager)[0])

    @property
    def has_open_forward(self) -> bool:
        """Tell whether a training forward waits for its backward; no config can be switched then."""
        return bool(self._open_lines)

    def end_step(self) -> tuple[str, ...]:
        """Note that a step has ended; return what the script has done so far that recompute does not bear."""
        if not self._open_lines:
            # Otherwise those that came later overlapped with the one that is at fault.
            self._faults |= self._overlapping
        self._faults |= {line: f"{line}: {UNPAIRED}" for line in self._open_lines}
        self._overlapping.clear()
        self._open_lines.clear()
        return (*self._faults.values(), *((INEFFECTIVE,) if self._is_checkpointed else ()))

    classify = staticmethod(classify)

    def _check(
        self, manager: Any, run: Callable[..., Any], call: tuple[Any, Any], config: Config, *, compares: bool = True
    ) -> GradientCheck:
        if not compares:
            return UNCOMPARED
        build = functools.partial(rebuild, manager, folder=self._folder)

        def compare(args: Any, named: Any) -> GradientCheck:
            try:
                check = check_gradients(manager, config, forward=lambda: run(*args, **named), rebuild=build)
            finally:
                build(self._config)
            if self._faults and any("Dropout" in on.site for on in config.choices):
                return replace(check, agrees=False, message=next(iter(self._faults.values())))
            return check

        inputs, kwargs = call
        return common.on_few_samples(
            compare, inputs, kwargs, common.observe_batch([*inputs, *kwargs.values()]), self.classify
        )

    def _is_tuned(self, manager: Any) -> bool:
        if manager not in self._is_alike:
            module = manager._original_module  # noqa: SLF001
            # The same for all modules that are built alike, whatever their weights are.
            build = (type(module), *((name, weight.shape) for name, weight in module.named_parameters()))
            self._build = self._build or build
            self._is_alike[manager] = build == self._build
        return self._is_alike[manager]


def rebuild(manager: Any, config: Config, folder: Path) -> None:
    """Build the manager's training session anew with the config; export and gradient graph stay as they are.

    Raises:
        UsageError: this version of ONNX Runtime cannot be given the config.
    """
    import onnxruntime

    level, plans = give_here(config, onnxruntime.__version__, folder)
    options, observer = manager._runtime_options, manager._runtime_inspector.memory_ob  # noqa: SLF001
    options.memory_optimization_level = level
    options.recompute_probe_config = probe_config_of(level, os.environ)
    has_file = hasattr(options, "memory_optimizer_config_file_path")  # since ORT 1.19
    setattr(options, "memory_optimizer_config_file_path" if has_file else "memory_optimizer_config", plans)
    # Only a level needs ORT to look for plans again; looking builds a second session and doubles the time.
    observer._is_enabled = level != CHOSEN  # noqa: SLF001
    observer.cluster_id_combination_to_saving_symbolics_map.clear()
    manager._execution_agent = None  # noqa: SLF001
    manager._create_execution_agent()  # noqa: SLF001


def give_here(config: Config, ort_version: str, folder: Path) -> tuple[int, str]:
    """Return a live ORTModule's level and plans for a config; write a plans file into the folder.

    Raises:
        UsageError: it cannot be given the config.
    """
    file = folder.absolute() / f"{config.hash}.json"
    level, plans = give(config, ort_version, file)
    if plans == str(file):
        # Ranks that train together switch at the same moment: one of them may be reading what another writes.
        write_whole(file, plans_file_text(config))
    return level, plans


make_backend = OrtModuleBackend
