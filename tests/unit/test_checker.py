import dataclasses

import pytest

from autorecompute.checking import Checker
from autorecompute.errors import ScriptError
from autorecompute.figures import Figures
from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.result import Bucket
from autorecompute.studies import Problem, Sizes
from autorecompute.studies.checked import CheckVerdict
from autorecompute.studies.problem import Head
from autorecompute.training_job import Device
from autorecompute.units import GIB, MIB
from unit.conftest import build_detection, build_measurement, build_result, build_space, build_trial

LIMIT = 900 * MIB
COMMAND = ("python", "train.py")
STORED_RATIO = 0.9

pytestmark = pytest.mark.usefixtures("own_temporary_directory")
CONFIG = Config.of(build_space().plans[:2])


def make_stored(*, baseline=Outcome.OVER_LIMIT, **changes):
    figures = {"samples_per_second": 64.0, "relative_throughput": STORED_RATIO, "peak_bytes": 720 * MIB}
    result = build_result(CONFIG, of_best={**figures, **changes}, baseline=Figures(outcome=baseline))
    head = Head.of("bert", COMMAND, Problem.of(build_detection(), LIMIT), Sizes.of(build_detection()))
    return head, result, [build_trial(result.best.config, peak_bytes=700 * MIB)]


@dataclasses.dataclass
class ScriptedBench:
    detection: object
    measure_one: object
    slowness: tuple = (1 / STORED_RATIO,)
    peak_bytes: int = 700 * MIB
    outcome: Outcome = Outcome.OK
    fails_after: int = 0
    others_share: float = 0.0
    gradients: object = GradientCheck(agrees=True, worst=0.0, steps=3)
    log: str = "01.log"
    is_live: bool = True
    measured: list = dataclasses.field(default_factory=list)

    def detect(self):
        return self.detection

    def check(self, _):
        return self.gradients

    def measure(self, config, effort):
        self.measured.append(config)
        if config.is_none:
            steps = (0.5,) * effort.steps
            return self.measure_one(step_seconds=steps, cpu_seconds=steps, others_share=0.0)
        if not self.outcome.is_measured and len(self.measured) > self.fails_after:
            return self.measure_one(outcome=self.outcome, message="it did not go well")
        slowness = self.slowness[len(self.measured) % len(self.slowness)]
        wall = 0.5 * slowness * (2 if self.others_share else 1)
        return self.measure_one(
            step_seconds=(wall,) * effort.steps,
            cpu_seconds=(0.5 * slowness,) * effort.steps,
            others_share=self.others_share,
            peak_bytes=self.peak_bytes,
        )


def check(*, stored=None, detected=None, **changes):
    bench = ScriptedBench(build_detection(**(detected or {})), **{"measure_one": build_measurement, **changes})
    return Checker(bench, *(stored or make_stored()), 3, lambda _: None).run(COMMAND), bench


def verdicts(report):
    return {line.what: str(line.verdict) for line in report.lines}


@pytest.mark.parametrize("others_share", [0.0, 0.5], ids=["alone", "beside other work"])
def test_a_config_that_holds_is_valid(others_share):
    report, bench = check(others_share=others_share)
    assert report.valid
    assert set(verdicts(report).values()) == {"ok"}
    assert list(verdicts(report)) == ["plans", "peak of a step", "problem", "gradients", "relative throughput"]
    assert report.relative_throughput == pytest.approx(STORED_RATIO)
    assert bench.measured == [CONFIG, *[Config(), CONFIG] * 3]


@pytest.mark.parametrize(
    ("peak_bytes", "verdict"), [(700 * MIB, "ok"), (LIMIT - 10 * MIB, "differs"), (LIMIT + 99 * MIB, "fails")]
)
def test_the_configs_of_shorter_batches_are_checked_at_their_lengths(peak_bytes, verdict):
    shorter = Config(frozenset(list(make_stored()[1].best.config.choices)[:1]))
    bucket = Bucket(
        length=64, config=shorter, description="one plan", peak_bytes=700 * MIB, samples_per_second=9.0, speedup=1.1
    )

    def measure(**figures):
        return build_measurement(**{**figures, "peak_bytes": peak_bytes if bench[-1] == shorter else 700 * MIB})

    bench = []
    stored = make_stored(longest=128, buckets=(bucket,))
    report, _ = check(stored=stored, measure_one=measure, measured=bench)
    found = verdicts(report)
    assert (found["peak of a step at 64 tokens"], found["gradients at 64 tokens"]) == (verdict, "ok")
    assert report.valid is (verdict != "fails")


def test_a_plan_that_is_gone_is_named_and_another_part_of_the_identity_decides_nothing():
    """ONNX Runtime would train without it, silently."""
    plans = build_space().plans[1:]
    report, bench = check(detected={"plans": plans, "own_presets": {}})
    line = report.lines[0]
    assert not report.valid
    assert (line.what, line.here, line.verdict) == ("plans", "1 detected", CheckVerdict.FAILS)
    assert str(build_space().plans[0].choices[0]) in line.note
    assert bench.measured == []
    device = Device(kind="cpu", name="Another Processor", total_bytes=16 * GIB)
    versions = {"python": "3.11.9", "torch": "3.0", "fake": "3.1", "backend": "fake"}
    report, _ = check(detected={"device": device, "versions": versions})
    differing = [line for line in report.lines if line.verdict is CheckVerdict.DIFFERS]
    assert [(line.what, line.stored, line.here) for line in differing] == [
        ("device", "cpu Some Processor", "cpu Another Processor"),
        ("torch", "2.13.0", "3.0"),
    ]
    assert report.valid


@pytest.mark.parametrize(
    ("change", "what", "verdict"),
    [
        ({"peak_bytes": LIMIT + 20 * MIB}, "peak of a step", "fails"),
        ({"peak_bytes": LIMIT + MIB}, "peak of a step", "differs"),
        ({"peak_bytes": LIMIT - MIB}, "peak of a step", "differs"),
        ({"peak_bytes": 600 * MIB}, "peak of a step", "differs"),
        ({"peak_bytes": 710 * MIB}, "peak of a step", "ok"),
        ({"gradients": GradientCheck(agrees=False, worst=0.5, parameter="w", steps=3)}, "gradients", "fails"),
        ({"slowness": (2.0,)}, "relative throughput", "fails"),
        ({"slowness": (1.25,)}, "relative throughput", "ok"),
        ({"slowness": (2.0, 1.1)}, "relative throughput", "ok"),
        ({"outcome": Outcome.OOM}, "steps", "fails"),
        ({"outcome": Outcome.CRASH}, "steps", "fails"),
        ({"outcome": Outcome.OOM, "fails_after": 2}, "steps", "fails"),
    ],
)
def test_each_part_has_its_say(change, what, verdict):
    report, _ = check(**change)
    assert verdicts(report)[what] == verdict
    assert report.valid == (verdict != "fails")


@pytest.mark.parametrize(
    ("gradients", "verdict", "words"),
    [
        (Measurement(outcome=Outcome.CRASH, message="killed by SIGSEGV"), "fails", "crash: killed by SIGSEGV"),
        (Measurement(outcome=Outcome.HANG, message="no step"), "fails", "hang: no step"),
        (Measurement(outcome=Outcome.TIMEOUT, message="not done"), "fails", "timeout: not done"),
        (Measurement(outcome=Outcome.OOM, message="no room"), "not_compared", "oom: no room"),
        (Measurement(outcome=Outcome.LOST, message="killed"), "not_compared", "lost: killed"),
        (GradientCheck(agrees=False, worst=0.0, steps=0, message="no step"), "not_compared", "no step"),
        (GradientCheck(agrees=True, worst=0.0, steps=0), "not_compared", ""),
    ],
)
def test_gradients_that_were_not_compared_make_no_config_valid(gradients, verdict, words):
    report, _ = check(gradients=gradients)
    line = next(line for line in report.lines if line.what == "gradients")
    assert (line.here, str(line.verdict), line.note) == ("not compared", verdict, words)
    assert not report.valid
    assert bool(report.failures) == (verdict == "fails")
    assert bool(report.open) == (verdict != "fails")


@pytest.mark.parametrize(
    ("low", "slowness", "verdict"),
    [(0.72, 1.35, "ok"), (0.72, 1.45, "fails"), (0.07, 1.55, "ok"), (0.07, 1.65, "fails"), (0.89, 1.15, "ok")],
)
def test_how_well_the_throughput_was_known_counts_within_bounds(low, slowness, verdict):
    report, _ = check(stored=make_stored(relative_low=low, relative_high=1.0), slowness=(slowness,))
    assert verdicts(report)["relative throughput"] == verdict


def test_a_script_that_fails_says_nothing_of_the_config_and_no_recompute_is_checked_without_gradients():
    with pytest.raises(ScriptError, match="did not go well"):
        check(outcome=Outcome.SCRIPT_ERROR)
    report, _ = check(stored=make_stored(config=Config(), relative_throughput=1.0))
    assert "gradients" not in verdicts(report)
    assert report.valid


@pytest.mark.parametrize("baseline", [Outcome.OOM, Outcome.OVER_LIMIT])
def test_without_a_reference_samples_a_second_are_compared(baseline):
    ratio = STORED_RATIO if baseline is Outcome.OOM else None
    stored = make_stored(baseline=baseline, relative_throughput=ratio)
    report, bench = check(stored=stored)
    assert verdicts(report)["throughput"] == "ok"
    assert Config() not in bench.measured
    slow, _ = check(stored=stored, slowness=(3.0,))
    assert verdicts(slow)["throughput"] == "fails"
    device = Device(kind="cpu", name="Another Processor", total_bytes=16 * GIB)
    elsewhere, _ = check(stored=stored, slowness=(3.0,), detected={"device": device})
    assert verdicts(elsewhere)["throughput"] == "not_checked"
    assert elsewhere.valid
