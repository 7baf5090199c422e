import dataclasses

from autorecompute.memory import Operation, Phase, StepProfile, Tensor
from autorecompute.units import MIB
from fake_backend.space import SPACE
from stand_ins.formula import RESTING, SAMPLE, FormulaBench
from unit.conftest import build_detection

SAVINGS = (14 * MIB, 9 * MIB, 6 * MIB, 3 * MIB, MIB)  # what each plan takes off a sample, at all its occurrences
CHEAP_PARTS = (0.9, 0.45, 0.18, 0.09, 0.03)  # costs under which parts of a block are better to recompute than the whole
CHEAP_BLOCKS = (0.36, 0.5, 0.6, 0.6, 0.03)  # costs under which whole blocks are, no more of them than it takes
BATCH = 32


def blocks_detection(**changes):
    return build_detection(SPACE, **{"resting_bytes": RESTING, **changes})


def limit_for(sample_bytes):
    return RESTING + BATCH * (SAMPLE - sample_bytes)


class BlocksBench(FormulaBench):
    """Twelve equal blocks: plans that count, two options of a site, parts that exclude their block; small steps too."""

    can_change_batch = True

    def __init__(self, costs=CHEAP_PARTS, detection=None):
        super().__init__(detection or blocks_detection(), savings=SAVINGS, costs=costs)

    def measure(self, config, effort):
        if effort.batch is None:
            return super().measure(config, effort)
        measured = self.formula(config, effort, effort.batch)
        profile = self._profile(config, effort.batch) if effort.profiles else None
        return dataclasses.replace(measured, held_bytes=RESTING, profile=profile)

    def _profile(self, config, batch):
        again = sum(self._of(config, self.costs))
        steps = ((Phase.FORWARD, 0.4), (Phase.LOSS, 0.1), (Phase.RECOMPUTE, again), (Phase.BACKWARD, 0.5))
        kept = round(SAMPLE - sum(self._of(config, self.savings)))
        return StepProfile(
            operations=tuple(
                Operation(name=phase, operator=phase, phase=phase, seconds=seconds) for phase, seconds in steps
            ),
            tensors=(Tensor(name="kept", first=0, last=3, shape=("batch", str(kept)), element_bytes=1),),
            backward=1,
            dims={"batch": batch},
        )
