import dataclasses
import re

import pytest

from autorecompute.errors import UsageError
from autorecompute.measurement import Outcome
from autorecompute.memory import StepProfiles
from autorecompute.plans import Config
from autorecompute.plans.savings import SEQUENCE
from autorecompute.units import MIB
from fake_backend import controller
from fake_backend.memory import LinearMemory
from stand_ins.formula import RESTING, SAMPLE, FormulaBench
from unit.conftest import build_detection, build_space, build_step

LONGEST, BATCH = 128, 32
SAVED = 3 * MIB  # by each of the five plans
COSTS = (0.02, 0.03, 0.04, 0.05, 0.06)
LIMIT = RESTING + round(BATCH * (SAMPLE - 3.5 * SAVED))  # four plans hold it at the longest
ENOUGH = {"limit_bytes": LIMIT, "longest": LONGEST, "sampler": "model"}


class BenchOfLengths(FormulaBench):
    """Samples are as long as was last asked for, and a step takes memory and time in proportion."""

    length = LONGEST

    def measure(self, config, effort):
        self.length = effort.length or self.length
        return super().measure(config, effort)

    def peak_bytes(self, config, batch):
        return RESTING + round((super().peak_bytes(config, batch) - RESTING) * self.length / LONGEST)

    def seconds(self, config, batch):
        return super().seconds(config, batch) * self.length / LONGEST


def memory_at(length):
    plain = round(BATCH * SAMPLE * length / LONGEST)
    least = round(BATCH * (SAMPLE - 5 * SAVED) * length / LONGEST)
    none = build_step("flb", ("x", 0, 2, str(plain)), batch=BATCH)
    full = build_step("flrb", ("x", 0, 3, str(least)), batch=BATCH)
    profiles = {Config(): none, build_space().all_on: full}
    small = StepProfiles(peak_bytes=RESTING + plain, held_bytes=RESTING, profiles=profiles)
    return LinearMemory(build_space(), small)


@pytest.fixture
def tune(make_tuning, monkeypatch):
    """Tunes for every length; the bench, the session and the answer."""
    detection = build_detection(resting_bytes=RESTING, dims={"d0": BATCH, "d1": LONGEST, SEQUENCE: LONGEST})
    memories = {length: memory_at(length) for length in (16, 32, 64, 96)}
    monkeypatch.setattr(controller, "memory_by_length", lambda _: memories)
    monkeypatch.setattr(controller, "memory_of", lambda _: memory_at(LONGEST))
    bench = BenchOfLengths(detection, savings=(SAVED,) * 5, costs=COSTS)

    def tune(prepare=lambda _: None, **changes):
        prepare(bench)
        tuning = make_tuning(bench, **{**ENOUGH, **changes})
        result = tuning.run()
        tuning.told = [*result.warnings, *tuning.watcher.notes]
        return bench, tuning, result.best

    return tune


def test_shorter_batches_get_the_fastest_config_that_holds_the_limit_at_their_length_which_is_told_and_kept(
    tune, make_tuning
):
    bench, tuning, best = tune()
    assert best.longest == LONGEST
    plans = bench.detection.plans
    counts = [(bucket.length, len(bucket.config.choices)) for bucket in best.buckets]
    # Without recompute 64 tokens take half of what 128 do; 96 take three quarters.
    share = (LIMIT - RESTING) / (BATCH * SAMPLE)
    assert counts[0] == (int(share * LONGEST) // 8 * 8, 0)
    assert all(0 < count < 4 for _, count in counts[1:])
    assert all(bucket.peak_bytes <= LIMIT for bucket in best.buckets)
    assert [bucket.speedup > 1 for bucket in best.buckets] == [True] * len(counts)
    assert [plan for plan in plans if best.config.has(plan)] == list(plans[:4])
    first, *_, last = best.sentences_of_lengths
    assert re.fullmatch(
        r"up to 72 tokens: no recompute, 1\.\d\dx the longest's config, [\d,]+ tokens/s, peak 550 MiB in its trial",
        first,
    )
    assert last.startswith(f"up to {LONGEST} tokens: {best.description}, ")
    assert best.buckets[0].samples_per_second > best.samples_per_second
    assert best.lengths.config_for(BATCH, 72).is_none
    assert best.lengths.config_for(BATCH, LONGEST) == best.lengths.config_for(BATCH + 1, 8) == best.config
    assert {bucket.config for bucket in best.buckets if not bucket.config.is_none} <= set(bench.checked)
    measured = len(bench.measured)
    assert make_tuning(bench, **ENOUGH).run().best == best
    assert tuning.folder.result().best == best
    assert len(bench.measured) == measured


def breaking(change):
    """Has measurements at shorter lengths be others."""

    def prepare(bench):
        formula = bench.formula

        def broken(config, effort, batch, **given):
            measured = formula(config, effort, batch, **given)
            return change(config, measured) if bench.length < LONGEST else measured

        bench.formula = broken

    return prepare


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (lambda _, one: dataclasses.replace(one, peak_bytes=LIMIT + MIB), "what should fit needed too much"),
        (lambda _, one: dataclasses.replace(one, step_seconds=(1.0,) * len(one.step_seconds)), "no faster"),
        (lambda _, one: dataclasses.replace(one, outcome=Outcome.OOM, peak_bytes=None, step_seconds=()), "oom"),
    ],
)
def test_what_does_not_fit_or_is_no_faster_at_a_length_is_not_taken(change, note, tune):
    _, tuning, best = tune(breaking(change))
    assert (best.buckets, best.longest) == ((), LONGEST)
    assert any(note in text for text in tuning.told)


def test_what_misses_the_limit_by_a_little_holds_it_for_fewer_tokens(tune):
    def with_more(config, one):
        return dataclasses.replace(one, peak_bytes=one.peak_bytes + (60 * MIB if config.is_none else 0))

    _, tuning, best = tune(breaking(with_more))
    shorter, *_ = best.buckets
    planned = int((LIMIT - RESTING) / (BATCH * SAMPLE) * LONGEST) // 8 * 8
    assert (shorter.config, planned - 24 <= shorter.length < planned) == (Config(), True)
    assert shorter.peak_bytes <= LIMIT
    assert any("over the limit" in text for text in tuning.told)


def test_a_config_with_wrong_gradients_at_a_length_is_not_taken(tune):
    def prepare(bench):
        check = bench.check

        def check_at_length(config):
            bench.wrong = bench.detection.plans if bench.length < LONGEST else ()
            return check(config)

        bench.check = check_at_length

    _, tuning, best = tune(prepare)
    assert [bucket.config for bucket in best.buckets] == [Config()]
    assert any("not taken at" in text for text in tuning.told)


def test_an_answer_without_recompute_holds_for_every_length(tune):
    _, _, best = tune(limit_bytes=RESTING + BATCH * SAMPLE + MIB)
    assert (best.config, best.buckets, best.longest) == (Config(), (), LONGEST)


def test_a_training_system_whose_batches_keep_their_length_is_refused(make_tuning):
    with pytest.raises(UsageError, match="The backend fake cannot give batches another length"):
        make_tuning(longest=LONGEST).run()


@pytest.mark.parametrize(
    ("change", "is_told"),
    [
        ({"peak_bytes": LIMIT + 900 * MIB}, False),
        ({"outcome": Outcome.OOM, "peak_bytes": None, "step_seconds": ()}, True),
    ],
    ids=["it needs too much", "it fails"],
)
def test_a_longer_bucket_makes_up_for_memory_and_for_no_other_reason(change, is_told, tune):
    def broken(config, one):
        return dataclasses.replace(one, **change) if config.is_none else one

    _, tuning, best = tune(breaking(broken))
    assert best.buckets
    assert not any(bucket.config.is_none for bucket in best.buckets)
    assert bool(tuning.folder.result().warnings) == is_told
