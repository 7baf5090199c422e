"""Plain PyTorch inside the user's process."""

from __future__ import annotations

import functools
import logging
import os
import platform
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from autorecompute import codec
from autorecompute.backends.common import describe_device, observe_batch, on_few_samples, tensors_in
from autorecompute.backends.interface import WorkerBackend
from autorecompute.backends.torch.check.gradients import Step, check_gradients
from autorecompute.backends.torch.check.room import lacking_memory, run_beside
from autorecompute.backends.torch.compiled import forms
from autorecompute.backends.torch.compiled.forms import MEASURED, AllocatedLive, has_compiled, is_compiled
from autorecompute.backends.torch.controller import MODEL, NAME
from autorecompute.backends.torch.fake.live import StepLive, tensors_of, this_machine
from autorecompute.backends.torch.fake.machine import kernels_of, with_whole_steps
from autorecompute.backends.torch.fake.repeats import fragmented_bytes
from autorecompute.backends.torch.fake.steps import Script, buckets_around, loss_in, returned_loss
from autorecompute.backends.torch.fake.survey import bytes_of, rough_steps, survey_steps, surveyed
from autorecompute.backends.torch.fake.tensors import LargeTensorsAreFake, taken_for_real
from autorecompute.backends.torch.find import own_checkpoints, refusals
from autorecompute.backends.torch.find.batch_losses import Results
from autorecompute.backends.torch.find.detection import space_of
from autorecompute.backends.torch.find.identity import digest_of, name_of, sizes_of
from autorecompute.backends.torch.find.own_checkpoints import frozen_in, is_replaced, thaw, thawed
from autorecompute.backends.torch.find.refusals import Reason, RefusalError, why_unsplittable
from autorecompute.backends.torch.find.source import (
    accumulates_gradients,
    calling_frame,
    calls_before_backward,
    keeps_gradients,
    keeps_result,
)
from autorecompute.backends.torch.find.structure import is_sharded
from autorecompute.backends.torch.forecast.cards import machine_of
from autorecompute.backends.torch.forecast.forecast import TorchMemoryModel
from autorecompute.backends.torch.forecast.plans_file import requested
from autorecompute.backends.torch.forecast.records import COMPILED, FROZEN, StepsAtLength, TorchDetection, describe_own
from autorecompute.backends.torch.switch import applying
from autorecompute.backends.torch.switch.applying import Roots, Tuned, to_alike
from autorecompute.backends.torch.switch.lengths import (
    GivenLength,
    at_length,
    call_at_length,
    call_with_gradients,
    lengths_of,
)
from autorecompute.errors import ScriptError, first_line
from autorecompute.measurement import UNCOMPARED
from autorecompute.plans import Config
from autorecompute.plans.savings import BATCH, SEQUENCE
from autorecompute.training_job import (
    CHECKPOINTING,
    KEPT,
    LONGEST,
    REPLACED,
    Detection,
    allocator_of_plans,
    read_allocator,
)
from autorecompute.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor
    from torch.nn import Module, Parameter
    from torch.optim import Optimizer

    from autorecompute.backends.interface import Listener, LiveMeter
    from autorecompute.backends.torch.fake.survey import Survey
    from autorecompute.measurement import GradientCheck, Outcome
    from autorecompute.memory import Machine
    from autorecompute.plans import Lengths


_LOG = logging.getLogger(__name__)


def make_backend(folder: Path, *, leaves: Callable[[Module], bool] = lambda _module: False) -> TorchBackend:
    """Return the backend, as ``registry`` asks for it; it writes no files."""
    del folder
    return TorchBackend(leaves)


class TorchBackend(WorkerBackend):
    """Plain PyTorch inside the user's process.

    The first module that trains is tuned. Others that are built like it, an ensemble's for instance, get the same
    config, and whatever else trains is left as it is. Leaves are modules that another training system trains.
    """

    _listener: Listener  # nothing is followed before install()

    def __init__(self, leaves: Callable[[Module], bool] = lambda _module: False) -> None:
        self._roots = Roots(self.about_to_run, self.has_run, leaves)
        self._fakes: LargeTensorsAreFake | None = None
        self._stands_for: Machine | None = None
        self._name = ""
        self._is_compiled, self._held = False, list[int]()
        self._tuned: weakref.WeakKeyDictionary[Module, Tuned] = weakref.WeakKeyDictionary()
        self._is_alike: weakref.WeakKeyDictionary[Module, bool] = weakref.WeakKeyDictionary()
        self._config = Config()
        self._has_told = self._returns_loss = False
        self._drawn = 0  # samples that the script gives
        self._emitted: Callable[..., Tuned | None] | None = None  # in a process that nobody asks what there is
        self._open: set[object] = set()
        self._calls, self._read_calls = 1, 0  # nothing is read where nothing is detected
        self._waiting: weakref.WeakKeyDictionary[Module, weakref.WeakSet[Callable[..., None]]] = (
            weakref.WeakKeyDictionary()
        )
        self._frozen: list[weakref.ref[Parameter]] = []
        self._later: TorchMemoryModel | None = None
        self._ran: weakref.WeakSet[Module] = weakref.WeakSet()
        self._batch: list[weakref.ref[Tensor]] = []
        self._sizes: dict[str, tuple[int, int]] = {}  # the least and the most so far
        self._at_hand: tuple[Module, Any, Any] | None = None  # a model that is about to be called, and with what
        self._had_room: dict[
            Config, tuple[int, int]
        ] = {}  # the most bytes held, and numbers given, where a step fitted
        self._told: tuple[str, ...] = ()
        self._results = Results()
        self._given: GivenLength | None = None
        self._length: int | None = None  # that trials have, where the longest was told
        self._lengths: Lengths | None = None
        self._by_length: tuple[StepsAtLength, ...] = ()

    def install(self, listener: Listener) -> None:
        """Follow every optimizer that will be made, and the modules that they train."""
        self._listener = listener
        if listener.replaces_checkpointing:
            own_checkpoints.replace()
        if listener.fake_card is not None:
            self._fakes = LargeTensorsAreFake(all_weights=listener.fake_ranks > 0)
            self._fakes.__enter__()
            from autorecompute.backends.torch.fake.machine import pretend

            pretend(listener.fake_ranks)
        self._length = listener.longest
        if self._length is not None and listener.is_trial:
            self._given = GivenLength(self._length)
        applying.ELSEWHERE.set()
        self._roots.install(listener.on_failure)

    def note(self, optimizer: Optimizer) -> None:
        """Note an optimizer that was made before."""
        self._roots.note(optimizer)

    def uninstall(self) -> None:
        """Follow nothing any more."""
        self._roots.uninstall()

    def about_to_run(self, root: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note that a module is about to be called in training."""
        self._at_hand = root, args, kwargs
        try:
            self._meet(root, args, kwargs)
        except Exception as error:  # noqa: BLE001  (who listens says whether the training may go on)
            own_checkpoints.restore()
            self._listener.on_fault(error)
        finally:
            self._at_hand = None  # it holds the batch

    def _meet(self, root: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if root not in self._ran:
            self._ran.add(root)
            if len(self._ran) > 1:
                self._listener.on_several_models()
        if root not in self._is_alike:
            if is_replaced():
                own_checkpoints.prepare(root)
            self._name = self._name or name_of(root)
            self._is_alike[root] = name_of(root) == self._name
            self._is_compiled = self._name.endswith(COMPILED)
        if self._is_alike[root]:
            batch = observe_batch([*args, *kwargs.values()])
            self._drawn = batch if self._roots.samples is None else self._drawn
            for name, size in sizes_of(tensors_in((args, kwargs)), batch).items():
                least, most = self._sizes.get(name, (size, size))
                self._sizes[name] = min(least, size), max(most, size)
            self._batch = [weakref.ref(tensor) for tensor in tensors_in((args, kwargs))]
            self._listener.on_forward(batch, functools.partial(self._check, root, batch, (args, kwargs)))
            if self._emitted is not None:
                self._apply(root, args, kwargs)
            elif root not in self._tuned:
                self._welcome(root, args, kwargs)

    def has_run(self, root: Module, result: Any) -> None:
        """Note that a module was called in training: its forward is open until gradients come back."""
        self._open.add(mark := object())
        waiting = self._waiting.setdefault(root, weakref.WeakSet())

        def close(_gradient: Tensor) -> None:
            if self._results.is_looking:
                return
            self._open.discard(mark)
            waiting.discard(close)

        self._returns_loss = loss_in(result) is not None
        self._results.note(result)
        if call_with_gradients(result, close):
            waiting.add(close)  # until then, or until its graph is gone
        if root in self._tuned:
            self._calls = max(self._calls, len(waiting))

    def switch(self, config: Config, *, profiles: bool = False) -> None:
        """Train with another config from the next forward on."""
        del profiles
        self._config = config
        for tuned in self._tuned.values():
            tuned.switch(config)

    def give_batch(self, batch: int) -> bool:
        """Call the models with the first so many samples of each batch from now on; ``False`` if that may be noticed.

        A script that makes the loss itself would hold it against all labels. Compiled models would be compiled anew.
        """
        roots = list(self._tuned)
        if batch > self._drawn or not self._returns_loss or any(map(self._no_fakes, roots)):
            return False
        self._roots.samples = batch if batch < self._drawn else None
        return True

    def give_length(self, length: int) -> None:
        """Have models receive batches of this length, in tokens, from the next one on."""
        self._length = length
        if self._given is not None:
            self._given.length = length

    def follow_lengths(self, lengths: Lengths | None) -> None:
        """Have each batch train with the config of its length from the next switch on; ``None`` ends that."""
        self._lengths = lengths
        for tuned in self._tuned.values():
            tuned.follow_lengths(lengths)

    def step_beside(self, config: Config) -> Tensor:
        """Run a step of the batch at hand beside the training, at the length of trials, and return its loss."""
        assert self._at_hand is not None, "a model is about to be called"
        root, args, kwargs = self._at_hand
        step = self._step(root, *self._as_in_trials(args, kwargs))
        return run_beside(step, self._tuned[root].board, config.choices)

    def _as_in_trials(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the arguments of a call at the length of trials, where these run beside a training."""
        if self._length is None or self._given is not None:
            return args, kwargs
        return call_at_length(args, kwargs, self._length)

    def _step(self, root: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Step:
        holds_result = keeps_result(calling_frame())
        return Step(root, args, kwargs, calls=self._calls, loss=returned_loss, holds_result=holds_result)

    def lacking_memory(self, config: Config) -> str | None:
        """Run the step at hand with a config beside the training, and say what ran out of memory; empty where it fits.

        ``None`` where nothing was run. A step is run again where more is held beside it than before, or more is given
        to the model: the optimizer has made its state, gradients of other batches are there, texts are longer. Not run
        are a step on a CPU, which raises no error there; of a compiled model, which would be compiled; and of one whose
        ranks gather weights.
        """
        assert self._at_hand is not None, "a model is about to be called"
        root, args, kwargs = self._at_hand
        device = next(root.parameters()).device
        if device.type != "cuda" or self._no_fakes(root) or root not in self._tuned:
            return None
        held, given = torch.cuda.memory_allocated(device), sum(one.numel() for one in tensors_in((args, kwargs)))
        most_held, most_given = self._had_room.get(config, (-1, -1))
        if held <= most_held + NEGLIGIBLE_BYTES and given <= most_given:
            return None
        lacks = lacking_memory(self._step(root, args, kwargs), self._tuned[root].board, config.choices)
        if not lacks:
            self._had_room[config] = max(held, most_held), max(given, most_given)
        return lacks

    def live_meter(self) -> LiveMeter | None:
        """Count live tensors on a CPU; on a card the allocator does."""
        roots = list(self._is_alike)
        if any(one.device.type != "cpu" for root in roots for one in root.parameters()):
            return None
        known = functools.partial(self._tensors, roots)
        if self._is_compiled:
            return AllocatedLive(known, self._held)
        return StepLive(known, self._forecast_later)

    def _forecast_later(self) -> tuple[int, int]:
        """Return the live bytes of a step that trains what is frozen, and those before it; 0 once it is trained."""
        if self._later is None or not self._still_frozen():
            return 0, 0
        forecast = self._later.forecast(self._config, self._later.dims)
        return forecast.live_bytes, self._later.steps.later_bytes

    def _still_frozen(self) -> list[Parameter]:
        """Return an optimizer's parameters that were frozen when the model first trained, and still are."""
        found = (reference() for reference in self._frozen)
        return [parameter for parameter in found if parameter is not None and not parameter.requires_grad]

    def take_compile_seconds(self) -> float:
        """Seconds since the last call in which ``torch.compile`` was at work on a model that is tuned."""
        return forms.take_compile_seconds() if self._is_compiled else 0.0

    @property
    def has_open_forward(self) -> bool:
        """Tell whether a training forward waits for its backward."""
        return bool(self._open)

    def end_step(self) -> tuple[str, ...]:
        """Told that a step has ended; what the script has done so far that recompute does not bear."""
        self._open.clear()
        self._waiting.clear()
        self._ran.clear()
        return (*self._told, *self._not_borne())

    def _not_borne(self) -> Iterator[str]:
        if missed := sorted({path for tuned in self._tuned.values() for path in tuned.missed}):
            places = ", ".join(path or "the model" for path in missed)
            yield f"some calls of {places} made another graph than the first one: their operators were kept there"
        if looked_at := sorted({path for tuned in self._tuned.values() for path in tuned.looked_at}):
            yield (
                f"something else than a loss looked at the logits of {', '.join(looked_at)} in some calls: they were "
                "made there"
            )
        if self._calls > self._read_calls > 0:
            yield (
                f"the script calls the model {self._calls} times before a backward pass, and forecasts know of "
                f"{self._read_calls}: go by measured peaks"
            )
        if self._frozen:
            yield FROZEN
        longest = self._listener.longest
        given, most = self._given, self._sizes.get(SEQUENCE, (0, 0))[1]
        if longest is not None and longest < (most if given is None else given.most):
            then = "their peaks are not known" if given is None else "--longest cuts them"
            yield f"the script has batches of more than {longest} tokens: {then}"
        for name, (least, most) in sorted(self._sizes.items()):
            if least < most and (longest is None or name != SEQUENCE):
                told = f"batches have a {name} of {least} to {most}: peaks hold up to the largest that was measured"
                yield f"{told}; tune --longest makes sure of the longest" if name == SEQUENCE else told

    def wrong_recompute(self) -> str:
        """Return the differences that a check of the steps with this config found; empty where none."""
        return "; ".join(str(one) for tuned in self._tuned.values() for one in tuned.board.check.differing())

    def follow_samples(self) -> bool:
        """Follow what models return for each sample up to the next loss; ``False`` where nothing can be followed."""
        roots = list(self._tuned)
        if self._is_compiled or any(map(is_sharded, roots)):  # gradients have parameters gathered there
            return False
        self._results.follow(roots)
        return True

    def mixes_samples(self, loss: Any) -> bool:
        """Tell whether the loss at the end of what was followed is one of the whole batch."""
        return self._results.are_mixed_by(loss)

    def why_nothing_trained(self) -> str:
        """Return why a script may never have come to training, and what to do about it, in sentences."""
        return str(RefusalError(Reason.TRANSFORMED)) if self._roots.is_transformed else refusals.NOTHING_TRAINED

    def classify(self, error: BaseException) -> tuple[Outcome, str]:
        """Classify the exception that ended the script, with a sentence about it."""
        return refusals.classify(error)

    def _welcome(self, root: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        frozen = frozen_in(root, self._roots.optimizers_of(root))
        self._frozen += map(weakref.ref, frozen)
        if self._has_told:  # the first one may be gone
            with thawed(frozen):
                self._tuned[root] = tuned = Tuned.of(root, args, kwargs)
            tuned.follow_lengths(self._lengths)
            tuned.switch(self._config)
        else:
            self._has_told = True
            detect = self._detect if self._fakes is None else functools.partial(self._detect_on, self._fakes)
            with thawed(frozen):
                config = self._listener.on_session(functools.partial(detect, root, args, kwargs))
            if root in self._tuned:
                self.switch(config)
            else:
                self._emitted = to_alike(requested(os.environ))
                self._apply(root, args, kwargs)
        if self._listener.is_trial:  # what is measured in it is to hold for later steps
            thaw(frozen)

    def _apply(self, root: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        assert self._emitted is not None, "it is met first"
        if (tuned := self._emitted(root, args, kwargs, self._roots.optimizers_of(root))) is not None:
            self._tuned[root] = tuned

    def _detect_on(
        self, fakes: LargeTensorsAreFake, root: Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Detection:
        if self._is_compiled:
            raise ScriptError(str(RefusalError(Reason.COMPILED_FAKE)))
        ranks, optimizers = self._listener.fake_ranks, self._roots.optimizers_of(root)
        if ranks and not torch.distributed.is_initialized():
            raise ScriptError(
                "The script makes no process group, so there is one rank of it. Leave --ranks out, or have the script "
                "call torch.distributed.init_process_group where WORLD_SIZE is set."
            )
        card = self._listener.fake_card or ""
        self._stands_for = machine = machine_of(card) if card else this_machine(next(root.parameters()).device.type)
        with fakes.small_ones_too(root, optimizers), kernels_of(card, optimizers), taken_for_real():
            args, kwargs = fakes.without_floats((tuple(args), dict(kwargs)))
            detection = self._detect(root, args, kwargs)
            told = TorchDetection.of(detection)
            if told.steps is not None:
                script, presets = self._script(root, detection.dims[BATCH], args, kwargs), detection.space.presets
                told = with_whole_steps(told, self._tuned[root], script, presets.values(), card=card, ranks=ranks)
        told = replace(told, on_fakes=True, assumed=tuple(fakes.assumed), machine=machine)
        return replace(detection, resting_bytes=bytes_of(root), extra=codec.to_plain(told))

    def _detect(self, root: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Detection:
        if len({one.device for one in root.parameters()}) > 1:
            raise RefusalError(Reason.DEVICES)
        self._calls = self._read_calls = calls_before_backward()
        tuned = self._tuned[root] = Tuned.of(root, args, kwargs, self._calls, is_exact=self._listener.is_exact)
        if is_replaced():
            own_checkpoints.require_off(tuned.found.refusals)
        self._told = tuple(describe_own(tuned.found.checkpointed, is_replaced=is_replaced()))
        if torch.backends.cudnn.benchmark and next(root.parameters()).device.type == "cuda":
            self._told += (BENCHMARKS,)
        if self._listener.longest is not None and self._given is not None:
            self._told += self._given.require(self._listener.longest, args, kwargs)
        args, kwargs = self._as_in_trials(args, kwargs)
        told = surveyed(root, functools.partial(self._survey, root, tuned, args, kwargs))
        detection = self._detection_of(root, tuned, args, kwargs, told)
        self._later = TorchMemoryModel.of(detection) if self._frozen else None
        return detection

    def _detection_of(
        self, root: Module, tuned: Tuned, args: Sequence[Any], kwargs: Mapping[str, Any], survey: tuple[Survey, int]
    ) -> Detection:
        found, ((steps, no_steps), left_bytes) = tuned.found, survey
        batch, compiles = observe_batch([*args, *kwargs.values()]), has_compiled(root)
        space = space_of(found, tuned.board, steps)
        told = TorchDetection(
            refusals=tuple(str(one) for one in found.refusals if one.reason is not Reason.OWN_CHECKPOINT),
            own_checkpoints=found.checkpointed,
            replaces_checkpointing=is_replaced(),
            steps=steps,
            no_steps=no_steps,
            rough_steps=rough_steps(found, tuned.board) if steps is None and not compiles else None,
            is_compiled=compiles,
            compiled_peaks=found.compiled_peaks,
            trained_bytes=sum(one.nbytes for one in root.parameters() if one.requires_grad),
            by_blocks=compiles and not is_compiled(root),
            is_thawed=bool(self._frozen),
            by_length=self._by_length,
        )
        device = describe_device(next(root.parameters()).device)
        has_own = is_replaced() or found.checkpointed
        checkpointing = {CHECKPOINTING: REPLACED if is_replaced() else KEPT} if has_own else {}
        longest = {} if self._listener.longest is None else {LONGEST: str(self._listener.longest)}
        own, allocator = {**_read_ranks(), **checkpointing, **longest}, read_allocator(device)
        versions = {"python": platform.python_version(), "torch": torch.__version__, "backend": NAME, MODEL: self._name}
        return Detection(
            plans=space.plans,
            own_presets=space.own_presets,
            covers=space.covers,
            dims={BATCH: batch, **sizes_of(tensors_in((args, kwargs)), batch)},
            graph=digest_of(root, found.operators),
            device=device,
            versions={**versions, **own, **allocator},
            plan_versions=(MODEL, *own, *allocator_of_plans(device, allocator)),
            unsplittable=why_unsplittable(root),
            left_bytes=left_bytes,
            extra=codec.to_plain(told),
        )

    def _survey(self, root: Module, tuned: Tuned, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Survey:
        if reason := self._no_fakes(root):
            return None, reason
        if self._listener.is_surveyed and not self._frozen:  # whose later steps are forecast in this process
            return None, "an earlier process has told"
        batch = observe_batch([*args, *kwargs.values()])
        script = self._script(root, batch, args, kwargs)
        try:
            steps = survey_steps(root, tuned.found, tuned.board, script, self._stands_for)
        except Exception as error:  # noqa: BLE001  (the model's own code runs there on tensors without values)
            return None, f"the model cannot be run on fake tensors ({first_line(error)})"
        if self._listener.longest is not None and self._has_one_length(args, kwargs, batch):
            self._by_length = tuple(self._survey_shorter(root, tuned, script, batch))
        return steps, ""

    def _survey_shorter(self, root: Module, tuned: Tuned, script: Script, batch: int) -> Iterator[StepsAtLength]:
        """Yield steps of shorter batches, as far as they can be run on fake tensors."""
        longest = sizes_of(tensors_in((script.args, script.kwargs)), batch)[SEQUENCE]
        lengths = dict.fromkeys(int(longest * share) for share in SHORTER)
        for length in (one for one in lengths if one >= LEAST_LENGTH):
            args, kwargs = at_length((tuple(script.args), dict(script.kwargs)), batch, length)
            shorter = replace(script, args=args, kwargs=kwargs)
            try:
                yield StepsAtLength(length=length, steps=survey_steps(root, tuned.found, tuned.board, shorter))
            except Exception as error:  # noqa: BLE001  (the model's own code runs there on tensors without values)
                _LOG.debug("no step of %d tokens can be run: %s", length, error)

    def _has_one_length(self, args: Sequence[Any], kwargs: Mapping[str, Any], batch: int) -> bool:
        """Tell whether the length of a call says what a step takes, and nobody waits for one that makes it again."""
        lengths = lengths_of(tensors_in((args, kwargs)), batch)
        if len(lengths) > 1:
            of_each = " and ".join(map(str, sorted(lengths)))
            self._told += (f"tensors of {of_each} tokens: one config is for all lengths",)
        # Of several calls each may have another length; a rank may recompute a collective that others do not.
        return len(lengths) == 1 and self._calls == 1 and not _read_ranks()

    def _no_fakes(self, root: Module) -> str:
        """Return why no step of the model is run on fake tensors; empty where one may be."""
        if self._is_compiled:
            return MEASURED
        if is_sharded(root) and self._fakes is None:
            return "its parameters are gathered from other ranks, which fake tensors cannot do"
        return ""

    def _script(self, root: Module, batch: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Script:
        target = self._listener.target_batch or batch
        return Script(
            args,
            kwargs,
            self._roots.optimizers_of(root),
            holds_result=keeps_result(calling_frame()),
            batch=(batch, target) if target != batch else None,
            keeps_gradients=keeps_gradients(),
            accumulates=accumulates_gradients(),
            buckets=buckets_around(root) if self._fakes is not None else None,  # else among what is held at rest
            calls=self._calls,
        )

    def _tensors(self, roots: Sequence[Module]) -> list[Tensor]:
        """Return those that are alive between two steps, the last batch among them where the script still has it."""
        batch = [tensor for reference in self._batch if (tensor := reference()) is not None]
        return [*batch, *(tensor for root in roots for tensor in tensors_of(root, self._roots.optimizers_of(root)))]

    def _check(
        self, root: Module, batch: int, call: tuple[Any, Any], config: Config, *, compares: bool = True
    ) -> GradientCheck:
        (args, kwargs), tuned, check = call, self._tuned[root], UNCOMPARED
        with thawed(self._still_frozen()):
            if compares:
                compare = functools.partial(
                    check_gradients, root, tuned.board, config.choices, blocks=tuned.blocks, calls=self._calls
                )
                # A rank that raises on its few samples would leave the others in a collective. On all of its samples
                # the training itself would raise.
                if is_sharded(root):
                    check = compare(args, kwargs)
                else:
                    check = on_few_samples(compare, args, kwargs, batch, self.classify)
            if not check.agrees or self._no_fakes(root):
                return check
            args, kwargs = self._as_in_trials(args, kwargs)
            step = tuned.whole_step(config, self._script(root, batch, args, kwargs))
        if step is None:
            return check
        is_on_card = any(parameter.device.type == "cuda" for parameter in root.parameters())
        return replace(
            check,
            step_bytes=step.peak - step.base,
            fragmented_bytes=fragmented_bytes(step, os.environ, torch.cuda.get_device_capability())
            if is_on_card
            else None,
        )


SHORTER = (1 / 8, 1 / 4, 1 / 2, 3 / 4)
"""Lengths of which steps are run on fake tensors, as shares of the longest."""

LEAST_LENGTH = 8  # tokens; a script may keep some of them for its labels, and nothing is left of fewer

NEGLIGIBLE_BYTES = 32 * MIB
"""So much more or less is held from one step to the next, by a loss that is kept or a batch that was read ahead."""

BENCHMARKS = (
    "torch.backends.cudnn.benchmark is on: cuDNN tries algorithms in the first steps. A trial does not count their "
    "workspaces, and a whole process does: set it to False if a confirmation runs out of memory"
)


def _read_ranks() -> dict[str, str]:
    """Return the number of ranks, of several: it decides about a config's speed, and about sharding."""
    is_grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
    ranks = torch.distributed.get_world_size() if is_grouped else 1
    return {"ranks": str(ranks)} if ranks > 1 else {}
