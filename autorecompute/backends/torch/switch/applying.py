"""Applies plans to the model that trains."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import logging
import os
import sys
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from autorecompute.backends.common import observe_batch, slice_batch
from autorecompute.backends.torch.compiled.forms import has_compiled, original_of, refusals_of_compiled
from autorecompute.backends.torch.fake.steps import FakeSteps
from autorecompute.backends.torch.find import own_checkpoints
from autorecompute.backends.torch.find.detection import Detected, detect
from autorecompute.backends.torch.find.heads import heads_in
from autorecompute.backends.torch.find.identity import name_of
from autorecompute.backends.torch.find.own_checkpoints import frozen_in, thawed
from autorecompute.backends.torch.find.refusals import is_transformed, refusals_of_model, unwrapped
from autorecompute.backends.torch.find.structure import is_sharded
from autorecompute.backends.torch.forecast.plans_file import PlansFile, read_plans_file, requested
from autorecompute.backends.torch.switch.intercepting import around_of, can_be_intercepted, put_around, release
from autorecompute.backends.torch.switch.lengths import ByLength
from autorecompute.backends.torch.switch.rewriting import Rewrite
from autorecompute.errors import UsageError
from autorecompute.meters.host import peak_of_process
from autorecompute.training_job import BATCH_VARIABLE, LIMIT_VARIABLE, PEAK_VARIABLE
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from autorecompute.backends.torch.fake.steps import Script
    from autorecompute.backends.torch.fake.tensors import FakeLiveBytes
    from autorecompute.backends.torch.switch.switchboard import Switchboard
    from autorecompute.plans import Choice, Config, Lengths


_LOG = logging.getLogger(__name__)

MOST_NAMED = 8
"""So many choices are named in a message."""


class Roots:
    """Follows the training calls of roots: of the outermost modules that hold parameters of an optimizer.

    ``DistributedDataParallel`` is none; the module in it is. Calls that are made by who is told are not followed.

    Args:
        about_to_run: Is told the arguments that a root is about to be called with.
        has_run: Is told what a root has returned.
        leaves: Tells modules that are none and hold none, whatever an optimizer has of them.

    Attributes:
        is_transformed: True once ``torch.func`` has called a module with weights that no optimizer holds.
        samples: Roots are called with so many of the samples that they are given; ``None`` for all.
    """

    def __init__(
        self,
        about_to_run: Callable[[Module, Sequence[Any], Mapping[str, Any]], None],
        has_run: Callable[[Module, Any], None] = lambda _root, _result: None,
        leaves: Callable[[Module], bool] = lambda _module: False,
    ) -> None:
        self._about_to_run, self._has_run, self._leaves = about_to_run, has_run, leaves
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._roots: weakref.WeakSet[Module] = weakref.WeakSet()
        self._others: weakref.WeakSet[Module] = weakref.WeakSet()
        self._is_inside = self._is_on = self.is_transformed = False
        self.samples: int | None = None
        self._on_failure: Callable[[Exception], None] = lambda _error: None
        self._put: list[tuple[Any, str, Any, Any]] = []

    def install(self, on_failure: Callable[[Exception], None] | None = None) -> None:
        """Follow the optimizers that are made from now on, and the calls of all modules.

        What a root raises is told to ``on_failure`` before its caller gets it.
        """
        self._on_failure = on_failure or self._on_failure
        call, add = Module.__call__, Optimizer.add_param_group

        @functools.wraps(call)
        def call_and_tell(module: Module, *args: Any, **kwargs: Any) -> Any:
            # First what the compiler takes for settled: it traces this, where nothing may be told and nothing guarded.
            if torch.compiler.is_compiling() or self._is_inside or not module.training:
                return call(module, *args, **kwargs)
            if not self._is_on or not torch.is_grad_enabled() or not self._is_root(module):
                return call(module, *args, **kwargs)
            return self._run(module, functools.partial(call, module), args, kwargs)

        @functools.wraps(add)
        def add_and_note(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            add(optimizer, *args, **kwargs)
            self.note(optimizer)

        self._is_on = True
        self._put = [(Module, "__call__", call, call_and_tell), (Optimizer, "add_param_group", add, add_and_note)]
        for owner, name, _, ours in self._put:
            setattr(owner, name, ours)

    def uninstall(self) -> None:
        """Follow nothing any more, so that a step costs what it always cost."""
        self._is_on = False
        for owner, name, theirs, ours in self._put:
            if getattr(owner, name) is ours:  # what the script has put there since stays, around ours
                setattr(owner, name, theirs)
        self._put = []

    def note(self, optimizer: Optimizer) -> None:
        """Note that an optimizer has got parameters; a module that was no root may be one now."""
        self._optimizers.add(optimizer)
        self._others.clear()

    def optimizers_of(self, root: Module) -> list[Optimizer]:
        """Return the optimizers that train parameters of a module."""
        own = {id(parameter) for parameter in root.parameters()}
        return [one for one in self._optimizers if not own.isdisjoint(_parameters_of(one))]

    def _is_root(self, module: Module) -> bool:
        if module in self._roots:
            return True
        # What a backward pass runs again is a part of a root.
        if module in self._others or torch._C._current_autograd_node() is not None:
            return False
        trained = {parameter for optimizer in self._optimizers for parameter in _parameters_of(optimizer)}
        is_trained = not trained.isdisjoint(map(id, module.parameters()))
        if not is_trained and is_transformed():
            self.is_transformed = True
            return False
        if isinstance(module, DistributedDataParallel) or not is_trained:
            self._others.add(module)
            return False
        if self._leaves(module):
            self._others.update(module.modules())
            return False
        self._roots.add(module)
        self._others.update(inner for inner in module.modules() if inner is not module)
        return True

    def _run(self, root: Module, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._is_inside = True
        if self.samples is not None:
            batch = observe_batch([*args, *kwargs.values()])
            args, kwargs = (slice_batch(given, batch, self.samples) for given in (tuple(args), dict(kwargs)))
        try:
            self._about_to_run(root, args, kwargs)
            try:
                result = call(*args, **kwargs)
            except Exception as error:
                self._on_failure(error)
                raise
            self._has_run(root, result)
        finally:
            self._is_inside = False
        return result


def _parameters_of(optimizer: Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


class Tuned(NamedTuple):
    """A model, which is not kept, with what a probe found in it and its switches."""

    reference: weakref.ref[Module]
    found: Detected
    board: Switchboard
    is_compiled: bool = False

    @classmethod
    def of(  # noqa: PLR0913  (a call, and what is known of it)
        cls,
        model: Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        calls: int = 1,
        *,
        is_exact: bool = False,
        known: Collection[Choice] = (),
    ) -> Self:
        """Look at a model that is about to be called with these arguments for training, so often in a step.

        Where it is to be exact, nothing changes the order of a sum. Logits that known choices make in chunks are made
        so here already: whole ones would be the peak of the process.

        Raises:
            RefusalError: nothing of it can be recomputed.
        """
        if has_compiled(model):
            from autorecompute.backends.torch.compiled.detection import detect_compiled

            found, board = detect_compiled(model, args, kwargs)
            return cls(weakref.ref(original_of(model)), found, board, is_compiled=True)
        found = detect(model, args, kwargs, calls, heads_in(known, model))
        found = found.exact() if is_exact else found
        return cls(weakref.ref(model), found, found.switchboard(model))

    @property
    def blocks(self) -> dict[str, Module]:
        """Return the repeated modules by their paths; none of a compiled model, whose graph has them all."""
        model = self.reference()
        if model is None or self.is_compiled:
            return {}
        return {path: model.get_submodule(path) for path in self.found.structure.units}

    def switch(self, config: Config) -> None:
        """Have the next forward pass recompute what the config says and nothing else, if the model offers that."""
        try:
            self.board.set(config.choices)
        except ValueError as error:
            raise UsageError(f"These plans are not for this model: {error}.") from error

    def follow_lengths(self, lengths: Lengths | None) -> None:
        """Have each call train with the config of its length from the next switch on; ``None`` ends that."""
        model = self.reference()
        assert model is not None, "a model that trains is there"
        self.board.follow(None if lengths is None else ByLength(model, self.board, lengths))

    def whole_step(self, config: Config, script: Script) -> FakeLiveBytes | None:
        """Return the bytes of a whole step on fake tensors; ``None`` if none runs."""
        model = self.reference()
        assert model is not None, "a model that is called is there"
        try:
            steps = FakeSteps(model, self.found.structure.units, script, self.found.values)
            return steps.run(self.board, config.choices)
        except Exception as error:  # noqa: BLE001  (the model's own code runs there on tensors without values)
            _LOG.debug("no whole step can be run: %s", error)
            return None

    @property
    def missed(self) -> tuple[str, ...]:
        """Paths of the units whose operators were kept in some calls, as their graph was another one there."""
        model = self.reference()
        if model is None:
            return ()
        around = {effect.path: around_of(model.get_submodule(effect.path)) for effect in self.board.effects}
        missed = (path for path, own in around.items() if any(isinstance(one, Rewrite) and one.missed for one in own))
        return tuple(sorted(missed))

    @property
    def looked_at(self) -> tuple[str, ...]:
        """Return the paths of the heads whose logits something else than a loss looked at in some calls."""
        return tuple(sorted(path for path, head in self.board.heads.items() if head.made))


ELSEWHERE = threading.Event()
"""Set once a tuner, or the environment, decides about this process's recompute: then :func:`apply` does nothing."""


def apply(model: Module, plans: str | os.PathLike[str] | None = None) -> None:
    """Recompute in the model what a file of plans says, from its first training call on.

    That call runs the model forward once more before it, to see what it computes; training goes on bit for bit as
    without.

    Args:
        model: The model, as it is called in training; one in ``DistributedDataParallel`` may be given with it.
        plans: The file. Without one ``AUTORECOMPUTE_PLANS`` names it, and where that names none, nothing is done: a
            script may call this and be tuned all the same.

    Raises:
        UsageError: the file cannot be read, or was measured on another model.
    """
    if ELSEWHERE.is_set():
        return
    wanted = requested(os.environ) if plans is None else read_plans_file(Path(plans))
    if wanted is None or wanted.does_nothing:
        return
    trained = unwrapped(model)
    require_model(wanted, trained)
    if has_compiled(trained):
        _apply_compiled(wanted, trained)
        return
    if not can_be_intercepted(trained):
        raise UsageError(f"{type(trained).__name__} has a forward set on the instance. Apply the plans before that.")
    _apply_at_first_call(wanted, trained)


def _apply_at_first_call(wanted: PlansFile, model: Module) -> None:
    lock, begun = threading.Lock(), threading.Event()

    def begin(forward: Callable[..., Any], module: Module, /, *args: Any, **kwargs: Any) -> Any:
        if not module.training or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        with lock:  # another thread of the script's may make its first call now
            if not begun.is_set():
                release(module)
                apply_now(wanted, module, args, kwargs)
                begun.set()
        return module.forward(*args, **kwargs)

    if not is_sharded(model):
        put_around(model, [begin])
        return

    def begin_sharded(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module.training and torch.is_grad_enabled():
            hook.remove()
            apply_now(wanted, module, args, kwargs)

    # Before its parameters are gathered for the call: a run that is forgotten makes shards of them again.
    hook = model.register_forward_pre_hook(begin_sharded, prepend=True, with_kwargs=True)


def require_model(wanted: PlansFile, model: Module) -> None:
    """Refuse a file of plans that is for another model, and a model of which nothing can be recomputed."""
    for refusal in refusals_of_model(model):
        raise UsageError(f"The plans cannot be applied: {refusal}")
    here = name_of(model)
    if wanted.model and wanted.model != here:
        raise UsageError(
            f"These plans were {'made for' if wanted.is_unmeasured else 'measured on'} another model "
            f"({wanted.model}) than this one ({here}). "
            "Tune this one: another size, another class of a module or torch.compile makes other plans."
        )


def apply_now(
    wanted: PlansFile,
    model: Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    optimizers: Sequence[Optimizer] | None = None,
) -> Tuned | None:
    """Recompute what a file of plans says, in a model that is about to be called with these arguments for training.

    What is switched has switches, but for a compiled model, which is run with what is on until it is gone. The
    optimizers are those that train it; ``None`` where nobody knows.

    Raises:
        RefusalError: nothing of the model can be recomputed.
        UsageError: the plans were measured on another model, or are not offered by this one, or take the place of
            checkpoints that cannot be switched off.
    """
    require_model(wanted, model)
    if has_compiled(model):
        _apply_compiled(wanted, model)
        return None
    if wanted.replaces_checkpointing:
        own_checkpoints.replace()
        own_checkpoints.prepare(model)
    # Where nobody knows the optimizers, what is frozen may train later. Another length may drop what is not there
    # beside chunks of logits: that look is the last, as it makes them whole.
    trained = [optimizers or (), *([None] if optimizers is None else [])]
    looks = [wanted.choices, ()] if heads_in(wanted.choices, model) else [()]
    for known, trainers in itertools.product(looks, trained):
        with thawed(frozen_in(model, trainers)):
            tuned = Tuned.of(model, args, kwargs, known=known)
        if not _missing(wanted, tuned.board):
            break
    if wanted.replaces_checkpointing:
        own_checkpoints.require_off(tuned.found.refusals)
    _accept(wanted, tuned.board)
    tuned.follow_lengths(wanted.lengths)
    tuned.switch(wanted.config)
    return tuned


def _apply_compiled(wanted: PlansFile, model: Module) -> None:
    """Look at nothing: it holds for what is compiled from now on."""
    from autorecompute.backends.torch.compiled.detection import board_of

    if wanted.replaces_checkpointing:
        own_checkpoints.prepare(model)
    for refusal in refusals_of_compiled(model):
        raise UsageError(f"The plans cannot be applied: {refusal}")
    board = board_of(model, wanted.config.choices)
    _accept(wanted, board)
    board.set(wanted.config.choices)


def _missing(wanted: PlansFile, board: Switchboard) -> list[str]:
    return sorted(
        str(choice)
        for choice in wanted.choices
        if choice.site not in board.sites or choice.option not in board.sites[choice.site].options
    )


def _accept(wanted: PlansFile, board: Switchboard) -> None:
    if missing := _missing(wanted, board):
        is_other = wanted.torch not in {"", torch.__version__}
        since = f", measured with torch {wanted.torch} and run with {torch.__version__}" if is_other else ""
        others = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        names = ", ".join(missing[:MOST_NAMED]) + others
        raise UsageError(f"The model does not offer {names}{since}. Tune it again here.")
    if wanted.is_unmeasured:
        _LOG.warning("these plans are unmeasured: whether they fit and what they cost is predicted, tune measures it")


def to_alike(
    wanted: PlansFile | None,
) -> Callable[[Module, Sequence[Any], Mapping[str, Any], Sequence[Optimizer]], Tuned | None]:
    """Return what applies plans to the first module that trains, and to others built like it: those that were measured.

    It is given a module that is about to be called, the arguments of that and the module's optimizers. It switches each
    module once, and returns ``None`` where nothing was switched.
    """
    met: weakref.WeakSet[Module] = weakref.WeakSet()
    names: list[str] = []

    def meet(
        root: Module, args: Sequence[Any], kwargs: Mapping[str, Any], optimizers: Sequence[Optimizer]
    ) -> Tuned | None:
        if wanted is None or wanted.does_nothing or root in met:
            return None
        met.add(root)
        names.append(name_of(root))
        return apply_now(wanted, root, args, kwargs, optimizers) if names[-1] == names[0] else None

    return meet


def apply_in_first_step(wanted: PlansFile, about_to_train: Callable[[int], None] = lambda _batch: None) -> Roots:
    """Apply plans in a process whose script says nothing of them, to all that trains in the first step.

    Return what follows that step. ``about_to_train`` is told the samples of the first training call.
    """
    meet, has_stepped, has_begun = to_alike(wanted), threading.Event(), threading.Event()

    def about_to_run(root: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if not has_begun.is_set():
            has_begun.set()
            about_to_train(observe_batch([*args, *kwargs.values()]))
        # Compiled code is not to see calls followed that later are not, and its plans hold for the whole process.
        if has_stepped.is_set() or has_compiled(root):
            roots.uninstall()
            handle.remove()
        meet(root, args, kwargs, roots.optimizers_of(root))

    roots = Roots(about_to_run)
    roots.install()
    handle = register_optimizer_step_post_hook(torch.compiler.disable(lambda *_: has_stepped.set()))
    return roots


def follow_environment() -> None:
    """Apply what ``AUTORECOMPUTE_PLANS`` names to the first module that trains; nothing where it names none."""
    wanted = requested(os.environ)
    if wanted is not None and not wanted.does_nothing:
        apply_in_first_step(wanted, hold_against_study)
        ELSEWHERE.set()


def hold_against_study(batch: int) -> None:
    """Tell where a training that ``run`` started has another batch than its study, and in the end its own peak."""
    tuned, peak, limit = (os.environ.get(name, "") for name in (BATCH_VARIABLE, PEAK_VARIABLE, LIMIT_VARIABLE))
    if os.environ.get("RANK", "0") != "0" or not (tuned.isdecimal() and peak.isdecimal()):
        return
    if batch != int(tuned):
        _say(f"this training has a batch of {batch}, and the study was tuned for {tuned}: with another batch its peak "
             "and its speed are not known")  # fmt: skip
    process = os.getpid()

    def tell_peak() -> None:
        if os.getpid() == process:  # and not one that was forked
            own = torch.cuda.max_memory_reserved() if torch.cuda.is_initialized() else peak_of_process()
            over = f", above the limit of {format_bytes(int(limit))}" if limit.isdecimal() and own > int(limit) else ""
            _say(f"the peak of this training was {format_bytes(own)}{over}, and {format_bytes(int(peak))} in its study")

    atexit.register(tell_peak)


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody may be there to read it
        sys.stderr.write(f"autorecompute: {text}\n")
        sys.stderr.flush()
