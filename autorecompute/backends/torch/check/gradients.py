"""Compares gradients with and without recompute."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import math
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module, functional
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from autorecompute.backends.common import (
    beside_noise,
    beside_rounding,
    relative_difference,
    rounded_to,
    scalar_of,
    tensors_in,
    within,
)
from autorecompute.backends.torch.fake.live import takes_tf32
from autorecompute.backends.torch.fake.steps import loss_in
from autorecompute.backends.torch.find.graphs import grad_of_leaves, show_gradients
from autorecompute.backends.torch.find.refusals import classify
from autorecompute.backends.torch.find.structure import forgotten, gradients_of, is_anywhere, is_sharded, is_within
from autorecompute.backends.torch.forecast.records import CHECKPOINT, CHUNK
from autorecompute.backends.torch.switch.checkpoints import can_have_its_own, with_its_own
from autorecompute.backends.torch.switch.intercepting import around_of, can_be_intercepted, put_around
from autorecompute.backends.torch.switch.module_state import autocast_dtypes, copies_of, out_of_autocast, untouched
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.plans import Choice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch.nn import Parameter

    from autorecompute.backends.torch.switch.switchboard import Switchboard

    _See = Callable[[str, Tensor], None]
    _Run = Callable[[Sequence[Tensor]], list[Tensor]]


_A_TENSOR = object()  # stands where a block returned one


@contextlib.contextmanager
def block_by_block(blocks: Iterable[Module]) -> Iterator[Tensor]:
    """Have calls of these modules keep nothing but their inputs; what is around a module stays within its call.

    Gives a tensor whose gradient has to be asked for, as the blocks' weights are not in the
    graph: their hooks see their gradients, once for each call of a block. Its own gradient is none.
    """
    able = [block for block in blocks if can_be_intercepted(block)]
    before, asked = [around_of(block) for block in able], torch.empty(0, requires_grad=True)
    try:
        for block, arounds in zip(able, before, strict=True):
            put_around(block, [functools.partial(_around, asked), *arounds])
        yield asked
    finally:
        for block, arounds in zip(able, before, strict=True):
            put_around(block, arounds)


def _around(asked: Tensor, forward: Callable[..., Any], module: Module, /, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled() or not can_have_its_own(module, (*args, *kwargs.values())):
        return forward(*args, **kwargs)
    forward, args, kwargs = with_its_own(forward, args, kwargs)
    # Each tensor once: code asks whether two arguments are the same.
    tensors = list({id(value): value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)}.values())
    places = {id(tensor): place for place, tensor in enumerate(tensors)}
    dtypes = autocast_dtypes()
    returned = None

    def run(others: Sequence[Tensor]) -> list[Tensor]:
        """Make the call with these in place of its tensors; give the tensors that it returns."""
        nonlocal returned
        positional, named = tree_map_only(Tensor, lambda value: others[places[id(value)]], (args, kwargs))
        with contextlib.ExitStack() as stack:
            for device, dtype in dtypes.items():  # without casts of weights that were made without autograd
                stack.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=False))
            result = forward(*positional, **named)
        returned = tree_map_only(Tensor, lambda _: _A_TENSOR, result)
        return [value for value in tree_leaves(result) if isinstance(value, Tensor)]

    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    left = iter(_Again.apply(run, trained, asked, *tensors))
    return tree_map(lambda value: next(left) if value is _A_TENSOR else value, returned)


class _Again(torch.autograd.Function):  # type: ignore[misc]
    """Calls a block without autograd, and in the backward pass once more with it."""

    @staticmethod
    def forward(ctx: Any, run: _Run, trained: list[Parameter], _asked: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.run, ctx.trained, ctx.needs = run, trained, [tensor.requires_grad for tensor in tensors]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        # A block may change its input in place, and may return what it has not made: that is not to be in the graph.
        results = [result.detach() for result in run([tensor.clone() for tensor in tensors])]
        ctx.mark_non_differentiable(*(one for one in results if not one.is_floating_point()))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [
            tensor.detach().requires_grad_(needs) for tensor, needs in zip(ctx.saved_tensors, ctx.needs, strict=True)
        ]
        with torch.enable_grad():
            results = ctx.run([tensor.clone() for tensor in given])
        pairs = [
            (result, gradient)
            for result, gradient in zip(results, gradients, strict=True)
            if gradient is not None and result.requires_grad
        ]
        wanted = [*(tensor for tensor in given if tensor.requires_grad), *ctx.trained]
        if not pairs or not wanted:
            return (None,) * (3 + len(given))
        # Hooks of the weights see their gradients, which is all that is wanted of them.
        outputs, incoming = zip(*pairs, strict=True)
        found = iter(grad_of_leaves(outputs, wanted, incoming))
        return (None, None, None, *(next(found) if needs else None for needs in ctx.needs))


Part = tuple[str, int]
"""A name, and which of its gradients: block by block there are several where a weight is used in several places."""

LOSS, BUFFER = "the loss", "buffer "

SAMPLE = 2**20  # so many numbers of each gradient are compared where memory is short


@dataclass(frozen=True)
class Step:
    """One forward and one backward pass, which can be run again on the same samples and random numbers.

    Attributes:
        is_lean: True if a sample of each gradient is kept, in the host's memory: something wrong shows everywhere.
        scale: Factor of the loss.
        blocks: Modules that are run one by one, to hold less; none of them to run the model as a whole.
        calls: Number of calls of the model before the backward pass.
        loss: Returns a number that a backward pass can start from, of what the model returns.
        holds_result: True if what the model returns is held until the backward pass is over.
    """

    model: Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    is_lean: bool = False
    scale: float = 1.0
    blocks: tuple[Module, ...] = ()
    calls: int = 1
    loss: Callable[[Any], Tensor] = scalar_of
    holds_result: bool = False

    def kept(self, tensor: Tensor) -> Tensor:
        """Return a tensor's copy to compare with."""
        return self.seen(tensor).cpu() if self.is_lean else tensor

    def seen(self, tensor: Tensor) -> Tensor:
        """Return the elements of a tensor that are compared."""
        if not self.is_lean or tensor.numel() <= SAMPLE or tensor.layout is not torch.strided:
            return tensor
        return tensor.flatten()[:: -(-tensor.numel() // SAMPLE)].contiguous()

    def run(self, seed: int, show: Callable[[Part, Tensor], None]) -> None:
        """Show the loss, each gradient as soon as it is there, buffers and weights that were written; keep none.

        Block by block, the gradient of a weight comes in parts where it is used in several places.
        """
        shown: collections.Counter[str] = collections.Counter()

        def see(name: str, tensor: Tensor) -> None:
            shown[name] += 1
            show((name, shown[name]), tensor)

        # Before the forward pass, in which a sharded module's weights become others.
        named = [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        with (
            untouched(self.model) as written,
            forgotten(self.model),
            torch.enable_grad(),
            block_by_block(self.blocks) as asked,
        ):
            torch.manual_seed(seed)
            results = [self._call() for _ in range(self.calls)]
            loss = self.scale * sum(map(self.loss, results))
            if not self.holds_result:
                results.clear()
            with out_of_autocast():
                self._show_gradients(loss, named, asked, see)
            see(LOSS, loss.detach())
            for name, buffer in (*self.model.named_buffers(), *written()):
                see(f"{BUFFER}{name}", buffer.clone())

    def _call(self) -> Any:
        """Run the model; a sharded one that raises on one rank raises on all, which would wait in a backward pass."""
        args, kwargs = copies_of((tuple(self.args), dict(self.kwargs)))  # a model may change its arguments in place
        if not is_sharded(self.model):
            return self.model(*args, **kwargs)
        result, fault = None, None
        try:
            result = self.model(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (the model's own code runs there)
            fault = error
        if is_anywhere(self.model, fault is not None):
            raise fault or RuntimeError("the model raises on another rank")
        return result

    def _show_gradients(self, loss: Tensor, named: Sequence[tuple[str, Parameter]], asked: Tensor, see: _See) -> None:
        parameters = [parameter for _, parameter in named]
        if is_sharded(self.model):
            for (name, _), gradient in zip(named, gradients_of(self.model, loss, parameters), strict=True):
                if gradient is not None:
                    see(name, gradient)
            return
        hooks = [parameter.register_hook(functools.partial(_show, see, name)) for name, parameter in named]
        try:
            show_gradients(loss, [*parameters, asked])
        finally:
            for hook in hooks:
                hook.remove()


def _show(see: _See, name: str, gradient: Tensor) -> Tensor | None:
    """Show a gradient, and give autograd, which would keep it to the end, one that takes no memory in its place."""
    see(name, gradient)
    if type(gradient) is not Tensor or gradient.layout is not torch.strided:
        return None
    return gradient.new_zeros(()).expand_as(gradient)


RESCALED = (1.25, 1.5, 1.75)
"""Factors of a loss that are no power of two: each product is rounded in another way."""

REPEATS = 3
"""So often a step without recompute is held against itself where gradients differ: the luck of one is no measure."""

SEEDS = (20_230, 20_231)  # a step is compared from each

SCALES = (2.0**14, 2.0**8)
"""Of the loss, where gradients are in float16, whose smallest steps a mean over many tokens comes close to."""

_TOO_LARGE: weakref.WeakSet[Module] = weakref.WeakSet()
"""Models of which a step without recompute was seen not to fit, with few samples."""


def check_gradients(  # noqa: PLR0913  (a call, what is recomputed in it, and where memory can be saved)
    model: Module,
    board: Switchboard,
    choices: Iterable[Choice],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    blocks: Mapping[str, Module] = MappingProxyType({}),
    calls: int = 1,
) -> GradientCheck:
    """Compare choices with no recompute; training goes on bit for bit as if nothing had been run.

    No more gradients are held at once than at the end of a step: those without recompute are kept, and each of the
    others is dropped as soon as it was compared. Where that runs out of memory, as the step without recompute does that
    the choices are for, gradients are compared block by block. Those of a sharded model are compared with those of all
    blocks checkpointed, or of all but one.
    """
    choices = list(choices)
    heads = [model.get_submodule(path) for one in _in_chunks(choices) for path in board.paths(one)]
    widths = {head.out_features for head in heads}
    step = Step(model, args, kwargs, calls=calls, loss=functools.partial(scored, widths=widths) if heads else scalar_of)
    with board.trying():
        if is_sharded(model):
            # All ranks take the same steps, whoever has how much memory left.
            every = _every_block(board, blocks)
            are_all = board.resolve(choices) == board.resolve(every)
            others = _but_one(board, every) if are_all else every
            return _check(replace(step, is_lean=True), board, choices, others)
        if model not in _TOO_LARGE:
            try:
                return _check(step, board, choices)
            except Exception as error:
                if classify(error)[0] is not Outcome.OOM or not blocks:
                    raise
            _TOO_LARGE.add(model)
            gc.collect()  # the traceback is gone, and with it what the step held
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
        return _check_in_parts(replace(step, is_lean=True), board, choices, blocks)


def _check_in_parts(
    step: Step, board: Switchboard, choices: Sequence[Choice], blocks: Mapping[str, Module]
) -> GradientCheck:
    """Check the blocks with choices inside, each run alone; and then the rest, with all blocks checkpointed."""
    inside = [
        choice
        for choice in choices
        if all(any(is_within(path, block) for block in blocks) for path in board.paths(choice))
    ]
    outside = [choice for choice in choices if choice not in inside]
    check = _check(replace(step, blocks=tuple(blocks.values())), board, inside) if inside else None
    if not outside or (check is not None and not check.agrees):
        assert check is not None, "what has no choices is not checked"
        return check
    every = _every_block(board, blocks)
    return _check(step, board, [*every, *outside], every)


def _every_block(board: Switchboard, blocks: Mapping[str, Module]) -> list[Choice]:
    return [
        Choice(site.name, CHECKPOINT)
        for site in board.sites.values()
        if CHECKPOINT in site.options and not site.attention and set(site.occurrences) <= blocks.keys()
    ]


def _but_one(board: Switchboard, every: Sequence[Choice]) -> list[Choice]:
    """Return the same without the last block of each kind."""
    counts = {choice: len(board.paths(choice)) - 1 for choice in every}
    return [Choice(choice.site, choice.option, count) for choice, count in counts.items() if count]


def _check(step: Step, board: Switchboard, choices: Sequence[Choice], others: Sequence[Choice] = ()) -> GradientCheck:
    board.set(others)
    step = _scaled(step) if _computes_in_half(step.model) else step
    found, kind = _differences(step, board, choices, others)
    # Under an autocast of the model's own it is seen now.
    if step.scale == 1 and is_anywhere(step.model, kind == "float16" and any(found.values())):
        board.set(others)
        step = _scaled(step)
        found, kind = _differences(step, board, choices, others)
    # On a card, and in other compiled code, sums may come in another order.
    repeats_itself = board.is_exact and all(parameter.device.type == "cpu" for parameter in step.model.parameters())
    # Chunks of logits change the order of sums beside no chunks, and not beside the same chunks.
    is_exact = repeats_itself and _in_chunks(choices) == _in_chunks(others)
    kind_of = _kind_of(step.model, kind)
    check = within(found, (lambda _: "") if is_exact else kind_of, len(SEEDS))
    if not is_anywhere(step.model, not check.agrees):
        return check
    # A step that repeats itself bit for bit shows its rounding beside one whose loss has another scale.
    rescaled = RESCALED if repeats_itself and not is_exact else (1.0,) * REPEATS
    repeats = [_differences(step, board, others, others, by)[0] for by in rescaled]
    noise = {name: max(one.get(name, math.inf) for one in repeats) for name in repeats[0]}
    if not is_exact and repeats_itself:
        return beside_rounding(found, noise, _sizes(step, board, others), kind_of, len(SEEDS))
    if not is_exact:
        return check if check.agrees else beside_noise(found, noise, check)
    # On a CPU nothing else may differ, unless it differs by itself: index_put_ of several threads adds in any order.
    noisy = {name for name, off in noise.items() if off}
    return within(found, lambda name: kind_of(name) if name in noisy else "", len(SEEDS))


def _sizes(step: Step, board: Switchboard, others: Sequence[Choice]) -> dict[str, float]:
    """Return the largest entry of each gradient, without what is compared."""
    found: dict[str, float] = {}

    def see(part: Part, tensor: Tensor) -> None:
        if not part[0].startswith(BUFFER) and part[0] != LOSS and tensor.numel():
            own = tensor.to_dense() if tensor.layout is not torch.strided else tensor
            found[part[0]] = max(found.get(part[0], 0.0), float(own.abs().max()))

    board.set(others)
    step.run(SEEDS[0], see)
    return found


def scored(outputs: Any, widths: Collection[int]) -> Any:
    """Return a number that all outputs weigh in: logits of heads so wide by a cross entropy, where no loss is returned.

    Chunks of logits are compared as a script uses them. Every class is a label.
    """
    tensors = [] if loss_in(outputs) is not None else list(tensors_in(outputs))
    logits = [one for one in tensors if one.requires_grad and one.dim() > 1 and one.shape[-1] in widths]
    if not logits:
        return scalar_of(outputs)
    others = [one for one in tensors if one.requires_grad and not any(one is other for other in logits)]
    rows = [one.flatten(0, -2) for one in logits]
    labels = [torch.arange(len(one), device=one.device) % one.shape[-1] for one in rows]
    losses = [functional.cross_entropy(one, label) for one, label in zip(rows, labels, strict=True)]
    return sum([*losses, *([scalar_of(others)] if others else [])])


def _in_chunks(choices: Iterable[Choice]) -> set[Choice]:
    return {choice for choice in choices if choice.option == CHUNK}


def _computes_in_half(model: Module) -> bool:
    trained = (parameter.dtype for parameter in model.parameters() if parameter.requires_grad)
    return torch.float16 in {*trained, *autocast_dtypes().values()}


def _scaled(step: Step) -> Step:
    """Return the same step with a loss whose gradients float16 can hold, as a GradScaler would have it."""
    for scale in SCALES:
        scaled = replace(step, scale=scale)
        if not is_anywhere(step.model, not _is_finite(scaled)):
            return scaled
    return step


def _is_finite(step: Step) -> bool:
    """Tell whether all gradients of the step are numbers; a buffer may hold others, such as a mask."""
    found: list[bool] = []

    def see(part: Part, tensor: Tensor) -> None:
        if not part[0].startswith(BUFFER):
            seen = step.seen(tensor)
            found.append(bool((seen.to_dense() if seen.layout is not torch.strided else seen).isfinite().all()))

    step.run(SEEDS[0], see)
    return all(found)


def _differences(
    step: Step, board: Switchboard, choices: Sequence[Choice], others: Sequence[Choice], by: float = 1.0
) -> tuple[dict[str, float], str]:
    """Return the largest relative difference of each gradient to that with others on, and the type that rounded any.

    The loss is scaled by a factor where choices are on, and what comes of it divided by it.
    """
    found: dict[str, float] = {}
    kind = ""
    for seed in SEEDS:
        differences, rounded = _compare(step, seed, board, choices, others, by)
        kind = kind or rounded
        for (name, _), difference in differences.items():
            found[name] = max(found.get(name, 0.0), difference)
    return found, kind


def _compare(  # noqa: PLR0913, PLR0917  (two steps)
    step: Step, seed: int, board: Switchboard, choices: Sequence[Choice], others: Sequence[Choice], by: float
) -> tuple[dict[Part, float], str]:
    board.set(others)
    expected: dict[Part, Tensor] = {}
    step.run(seed, lambda part, tensor: expected.update({part: step.kept(tensor)}))
    board.set(choices)
    differences = dict.fromkeys(expected, math.inf)  # for what does not come again

    def see(part: Part, found: Tensor) -> None:
        own = step.seen(found)
        own = own if by == 1 or part[0].startswith(BUFFER) else own / by
        differences[part] = relative_difference(expected.get(part), own)

    replace(step, scale=step.scale * by).run(seed, see)
    gradients = [one for (name, _), one in expected.items() if not name.startswith(BUFFER)]
    return differences, rounded_to(gradients) if any(differences.values()) else ""


def _kind_of(model: Module, rounded: str) -> Callable[[str], str]:
    """Return the type that a gradient was computed in, by its name; the loss and buffers as in float32.

    TF32 has the ten bits of a float16's mantissa, and its tolerance.
    """
    kinds = {name: str(parameter.dtype).removeprefix("torch.") for name, parameter in model.named_parameters()}
    is_on_card = any(parameter.device.type == "cuda" for parameter in model.parameters())
    plain = "float16" if is_on_card and (takes_tf32() or takes_tf32(torch.ops.aten.convolution)) else "float32"
    return lambda name: rounded or (plain if (kind := kinds.get(name, "float32")) == "float32" else kind)
