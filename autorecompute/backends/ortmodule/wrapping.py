"""Lets ORTModule train the model of a script that has none of its own, without a change to the model.

A script keeps its model under a name that nobody else can reach, so nothing is put in the model's place: calls of it
are led elsewhere. The first module on the way down that holds parameters of an optimizer gets an ORTModule, and each of
its training calls goes there. Every other call, an evaluation's for instance, runs as ever. The model keeps its class,
its ``state_dict`` and all else that a script may ask of it; copies and pickles of it know nothing of the ORTModule.
"""

from __future__ import annotations

import functools
import sys
import weakref
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from autorecompute.backends.ortmodule.first_call import FirstCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ORTMODULE = "onnxruntime.training.ortmodule"
ATTRIBUTE = "_autorecompute_session"
STEPS_WITHOUT_WRAPPING = 10
"""So many optimizer steps without a module to wrap mean that there is none to come."""


def install() -> None:
    """Follows the optimizers and modules of this process; torch gets imported. Calling it again changes nothing."""
    import torch

    if not hasattr(torch.nn.Module.__call__, "is_led_by_autorecompute"):
        _follow(torch, Wrapping())


class Session:
    """What a wrapped module carries: the ORTModule that trains it.

    Args:
        module: The script's module.
        ortmodule: Its ORTModule.
    """

    def __init__(self, module: Any, ortmodule: Any) -> None:
        # With the ORTModule kept here and nowhere else, both go when the script lets go of its model.
        self.module, self.ortmodule = module, ortmodule
        self.first_call: FirstCall | None = None

    @property
    def is_left_to_pytorch(self) -> bool:
        """Whether ORTModule has fallen back, and the module's own code runs in each call."""
        return bool(self.ortmodule._fallback_manager.is_pending())  # noqa: SLF001

    @property
    def inputs(self) -> Sequence[str]:
        """Names of the inputs of the graph that takes the place of the module's code; none where nothing does."""
        if self.is_left_to_pytorch:
            return ()
        manager = self.ortmodule._torch_module._execution_manager(True)  # noqa: SLF001
        return [value.name for value in manager._onnx_models.optimized_model.graph.input]  # noqa: SLF001

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        # In a copy of the module or a pickle of it stands None, which any process can read.
        return type(None), ()


class Wrapping:
    """Knows the optimizers of a process, and decides which modules ORTModule trains for them.

    Attributes:
        is_inside: Whether ORTModule is at work, which calls the module and its parts.
    """

    def __init__(self) -> None:
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._others: weakref.WeakSet[Any] = weakref.WeakSet()
        self.is_inside = self._has_wrapped = self._is_off = False
        self._steps = 0

    def note_optimizer(self, optimizer: Any) -> None:
        """Told that an optimizer has got parameters; a module that was none of ours may be now."""
        self._optimizers.add(optimizer)
        self._others.clear()

    def note_step(self) -> None:
        """Told that an optimizer has taken a step; says so if there seems to be nothing to wrap."""
        self._steps += not (self._has_wrapped or self._is_off)
        if self._steps == STEPS_WITHOUT_WRAPPING:
            _say(
                f"--wrap has found no module to wrap in {self._steps} optimizer steps: none that holds the optimizer's "
                "parameters was called in training mode. The script goes on in plain PyTorch."
            )

    def session_of(self, module: Any) -> Session | None:
        """The session that a training call of the module goes to, made now if it is due; ``None`` to call it as ever.

        Raises:
            SetupError: ORTModule cannot be used here.
        """
        if self._is_off or module in self._others:
            return None
        session = module.__dict__.get(ATTRIBUTE)
        if session is not None and session.module is module:
            return session  # type: ignore[no-any-return]
        if self._is_ours(module):
            return self._wrap(module)
        self._others.add(module)
        return None

    def train(self, session: Session, *inputs: Any, **kwargs: Any) -> Any:
        """The outputs of the session for one training call.

        Raises:
            WrappingError: ORTModule would train the module otherwise than PyTorch.
        """
        if session.first_call is None:
            return self._train_first(session, inputs, kwargs)
        if not session.is_left_to_pytorch and (difference := session.first_call.difference(inputs, kwargs)):
            raise WrappingError(
                f"--wrap: {difference}, and ORTModule goes on as in the first. Keep it as it was, or train in PyTorch, "
                "without --wrap."
            )
        with self._inside(), _keeping_modes(session.module):
            return session.ortmodule(*inputs, **kwargs)

    def _train_first(self, session: Session, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        module, call = session.module, FirstCall(session.module)
        with self._inside(), _keeping_modes(module), _refusing_evaluation(module), call.following():
            outputs = session.ortmodule(*inputs, **kwargs)
        call.keep(inputs, kwargs, session.inputs)
        session.first_call = call
        return outputs

    def _is_ours(self, module: Any) -> bool:
        if _holds_ortmodule(module):
            self._is_off = True
            _say("--wrap leaves the script as it is: it has an ORTModule of its own.")
            return False
        # The place of ORTModule is inside: DistributedDataParallel follows the parameters, whoever trains them.
        return not _is_distributed(module) and not self._parameters.isdisjoint(map(id, module.parameters()))

    @property
    def _parameters(self) -> set[int]:
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return {id(parameter) for group in groups for parameter in group["params"]}

    def _wrap(self, module: Any) -> Session:
        ORTModule = _load_ortmodule()  # noqa: N806  (its name, wherever it comes from)
        with self._inside(), _keeping_modes(module):
            session = Session(module, ORTModule(module))
        # Not by setattr: modules register what they are given.
        module.__dict__[ATTRIBUTE] = session
        self._has_wrapped = True
        _say(f"--wrap: {type(module).__name__} trains in ORTModule.")
        return session

    @contextmanager
    def _inside(self) -> Iterator[None]:
        # For the export, and where it falls back to PyTorch.
        self.is_inside = True
        try:
            yield
        finally:
            self.is_inside = False


class WrappingError(Exception):
    """ORTModule would train a module otherwise than PyTorch does."""


def _follow(torch: Any, wrapping: Wrapping) -> None:
    from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

    call, add = torch.nn.Module.__call__, Optimizer.add_param_group

    @functools.wraps(call)
    def call_or_train(module: Any, *inputs: Any, **kwargs: Any) -> Any:
        if wrapping.is_inside:
            return call(module, *inputs, **kwargs)
        if module.training and torch.is_grad_enabled():
            session = wrapping.session_of(module)
            if session is not None:
                return wrapping.train(session, *inputs, **kwargs)
        with _known_to_run(module):
            return call(module, *inputs, **kwargs)

    @functools.wraps(add)
    def add_and_note(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        add(optimizer, *args, **kwargs)
        wrapping.note_optimizer(optimizer)

    call_or_train.is_led_by_autorecompute = True  # type: ignore[attr-defined]
    torch.nn.Module.__call__ = call_or_train
    Optimizer.add_param_group = add_and_note
    register_optimizer_step_post_hook(lambda *_: wrapping.note_step())


def _known_to_run(module: Any) -> AbstractContextManager[None]:
    """What the code of a wrapped module changes in an evaluation is no change of the script's."""
    session = module.__dict__.get(ATTRIBUTE)
    return nullcontext() if session is None or session.first_call is None else session.first_call.forgiving()


def _load_ortmodule() -> Any:
    from autorecompute.backends.ortmodule.adapter import adapt
    from autorecompute.backends.ortmodule.exceptions import require_ortmodule

    require_ortmodule()
    adapt()
    from onnxruntime.training.ortmodule import ORTModule

    return ORTModule


def _holds_ortmodule(module: Any) -> bool:
    if ORTMODULE not in sys.modules:
        return False
    from onnxruntime.training.ortmodule import ORTModule

    # Not by modules(): an ORTModule hides itself there.
    return isinstance(module, ORTModule) or any(map(_holds_ortmodule, module.children()))


def _is_distributed(module: Any) -> bool:
    from torch.nn.parallel import DistributedDataParallel

    return isinstance(module, DistributedDataParallel)


@contextmanager
def _refusing_evaluation(module: Any) -> Iterator[None]:
    """Raises a WrappingError when the module calls a part whose evaluation mode matters, as the export would train it.

    A part that is never called, such as an average of the weights, may be in any mode.
    """
    from torch.nn.modules.batchnorm import _BatchNorm
    from torch.nn.modules.dropout import _DropoutNd

    parts = [(name, part) for name, part in module.named_modules() if isinstance(part, _BatchNorm | _DropoutNd)]
    handles = [
        part.register_forward_pre_hook(functools.partial(_refuse, f"'{name}' of {type(module).__name__}"))
        for name, part in parts
        if not part.training
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _refuse(part: str, *_: object) -> None:
    raise WrappingError(
        f"--wrap: {part} is in evaluation mode while the rest trains, and ORTModule would train it all the same. Wrap "
        "the part of the model without it by hand."
    )


@contextmanager
def _keeping_modes(module: Any) -> Iterator[None]:
    # ORTModule puts all parts into the mode of the whole, at its making and at each export.
    evaluating = [part for part in module.modules() if not part.training]
    try:
        yield
    finally:
        for part in evaluating:
            part.training = False


def _say(text: str) -> None:
    sys.stderr.write(f"autorecompute: {text}\n")
