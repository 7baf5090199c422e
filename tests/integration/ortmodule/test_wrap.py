import re
import sys
from pathlib import Path

import pytest

from autorecompute.backends.ortmodule.controller import import_hooks
from autorecompute.startup import HOOKS_VARIABLE, format_hooks

SCRIPTS = Path(__file__).parents[2] / "scripts"

NEAR = 1e-4
"""Share by which losses and gradients of ORT and PyTorch may differ after a few steps."""

SAME_PEAK = 0.05
BERT = ("plain_bert.py", "--bs", "8", "--steps", "3")
WRAP = {HOOKS_VARIABLE: format_hooks(import_hooks(wrap=True))}


def numbers_in(finished):
    return [float(number) for number in re.findall(r"\d+\.\d+(?:e-?\d+)?", finished.stdout)]


def words_in(finished):
    return re.sub(r"\d+\.\d+(?:e-?\d+)?", "", finished.stdout)


def wrapped_in(text):
    return re.findall(r"^autorecompute: --wrap: (\w+) trains in ORTModule\.$", text, re.MULTILINE)


def run(place, study, script, *arguments):
    command = ["--", sys.executable, str(SCRIPTS / script), *arguments]
    return place.finish(place.start("-m", "autorecompute", "run", study, *command))


@pytest.fixture(scope="module")
def place(make_workplace):
    return make_workplace("wrap")


@pytest.fixture(scope="module")
def tuned(place):
    limit = ("--target-batch", "8", "--memory-limit", "1000GiB")
    return place.tune(BERT[0], "--wrap", *limit, "--study", "bert", "--json", arguments=("--bs", "{batch}"))


@pytest.fixture(scope="module")
def trained(place):
    return place.finish(place.start(str(SCRIPTS / BERT[0]), *BERT[1:], "--checkpoint", "plain.pt"))


@pytest.fixture(scope="module")
def ran(tuned, place):
    assert tuned.code == 0, tuned.stderr
    return run(place, "bert", *BERT, "--checkpoint", "wrapped.pt")


def test_a_plain_script_is_tuned(tuned, place):
    assert tuned.code == 0, tuned.stderr
    assert (tuned.answer["wrap"], tuned.answer["best"]["confirmed"]) == (True, True)
    assert place.study("bert").trials[0]["measurement"]["batch"] == 8
    assert {tuple(wrapped_in(log)) for log in place.study("bert").logs} == {("BertForMaskedLM",)}


def test_the_script_is_measured_as_it_is(tuned, place):
    plain = tuned.answer["as_it_is"]
    assert (plain["figures"]["outcome"], plain["figures"]["batch"]) == ("ok", 8)
    assert plain["comparison"]["pairs"] >= 2
    logs = sorted((place.study("bert").path / "workers" / "as_it_is").glob("*.log"))
    assert [wrapped_in(log.read_text()) for log in logs] == [[]] * len(logs)
    assert logs
    assert tuned.answer["verdict_sentence"].startswith("PyTorch as it is fits with")


def test_run_wraps_as_tune_did(ran):
    assert ran.code == 0, ran.stderr
    assert wrapped_in(ran.stderr) == ["BertForMaskedLM"]


def test_a_wrapped_model_learns_what_a_plain_one_learns(ran, trained):
    assert trained.code == 0, trained.stderr
    assert len(numbers_in(trained)) == 13
    assert numbers_in(ran) == pytest.approx(numbers_in(trained), rel=NEAR)
    assert words_in(ran) == words_in(trained)


def test_a_checkpoint_of_a_wrapped_model_is_a_plain_one(ran, trained, place):
    torch = pytest.importorskip("torch")
    assert (ran.code, trained.code) == (0, 0)
    wrapped, plain = (torch.load(place.path / name) for name in ("wrapped.pt", "plain.pt"))
    assert list(wrapped) == list(plain)
    for name, values in plain.items():
        torch.testing.assert_close(wrapped[name], values, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def limit_bytes(place, by_hand):
    command = ("plain_transformer.py", "--bs", "192", "--steps", "4")
    plain, saving = (place.train(*command, **variables, **WRAP) for variables in ({}, by_hand))
    return (2 * plain.printed_peak_bytes + saving.printed_peak_bytes) // 3


def test_recompute_saves_memory_in_a_wrapped_model(place, limit_bytes):
    # At the script's own batch no smaller one is compared, in up to ten processes.
    options = ("--memory-limit", str(limit_bytes), "--max-trials", "4", "--json")
    tuned = place.tune("plain_transformer.py", "--wrap", *options, "--study", "wrapped", arguments=("--bs", "192"))
    assert tuned.code == 0, tuned.stderr
    best = tuned.answer["best"]
    assert best["config"], tuned.stderr
    assert best["gradients"]["agrees"]
    assert best["peak_bytes"] <= limit_bytes < tuned.answer["baseline"]["peak_bytes"]
    plain = place.train("plain_transformer.py", "--bs", "192", "--steps", "4").printed_peak_bytes
    figures = tuned.answer["as_it_is"]["figures"]
    assert figures["peak_bytes"] == pytest.approx(plain, rel=2 * SAME_PEAK)
    assert figures["outcome"] == ("ok" if figures["peak_bytes"] <= limit_bytes else "over_limit")
    ran = run(place, "wrapped", "plain_transformer.py", "--bs", "192", "--steps", "4")
    assert ran.printed_peak_bytes == pytest.approx(best["peak_bytes"], rel=SAME_PEAK)


@pytest.fixture(scope="module")
def parts(make_workplace):
    place = make_workplace("parts")
    wrapped, plain = (place.train("several_parts.py", "--steps", "3", **variables) for variables in (WRAP, {}))
    assert wrapped.code == 0, wrapped.stderr
    return wrapped, plain


def test_each_model_of_the_optimizer_is_wrapped(parts):
    wrapped, plain = parts
    assert wrapped_in(wrapped.stderr) == ["Sequential", "Classifier"]
    assert len(numbers_in(plain)) == 3
    assert numbers_in(wrapped) == pytest.approx(numbers_in(plain), rel=NEAR)


def test_a_part_that_is_never_called_may_be_in_evaluation_mode(parts):
    wrapped, plain = parts
    assert "average in evaluation mode" in wrapped.stdout
    assert words_in(wrapped) == words_in(plain)


def test_the_module_inside_ddp_is_wrapped(workplace):
    arguments = ("distributed.py", "--steps", "3")
    plain = workplace.train(*arguments)
    (workplace.path / "ranks").unlink(missing_ok=True)
    wrapped = workplace.train(*arguments, **WRAP)
    assert wrapped.code == 0, wrapped.stderr
    assert wrapped_in(wrapped.stderr) == ["Classifier"]
    assert words_in(wrapped) == words_in(plain)
    assert numbers_in(wrapped) == pytest.approx(numbers_in(plain), rel=NEAR)


def test_a_script_with_an_ortmodule_is_left_alone(workplace):
    tuned = workplace.tune("classifier.py", "--wrap", "--target-batch", "8", "--batch-flag=--bs")
    assert tuned.code == 0, tuned.stderr
    for log in workplace.study().logs:
        assert log.count("autorecompute: --wrap leaves the script as it is") == 1
        assert wrapped_in(log) == []


@pytest.mark.parametrize("steps", ["2", "100000"])
def test_a_script_without_a_model_cannot_be_wrapped(workplace, steps):
    failed = workplace.tune("without_module.py", "--wrap", arguments=("--steps", steps))
    assert failed.code == 5
    assert "--wrap found no" in failed.complaint
    assert "optimizer's parameters" in failed.complaint


def test_a_training_without_a_model_is_told_and_goes_on(workplace):
    trained = workplace.train("without_module.py", "--steps", "30", **WRAP)
    assert (trained.code, trained.stdout.split()) == (0, ["trained"])
    assert trained.stderr.count("autorecompute: --wrap has found no module") == 1


def test_a_part_in_evaluation_mode_is_not_trained_by_mistake(workplace):
    failed = workplace.tune("several_parts.py", "--wrap", arguments=("--frozen",))
    assert failed.code == 5
    assert "'1' of Sequential is in evaluation mode" in failed.complaint


CHANGES = {
    "mask": "argument 'mask' of Model was None in the first training call and is a tensor",
    "flag": "argument 'double' of Model was False in the first training call and is True now",
    "keyword": "argument 'extra' of Model was None",
    "attribute": "'scale' of Model was 1.0 in the first training call and is 3.0 now",
    "part": "'head' of Model was a Linear in the first training call and is another Linear now",
    "new part": "'adapter' of Model was None in the first training call and is a Linear now",
    "more blocks": "what is in 'blocks' of Model was",
    "inner part": "'blocks.1.linear' of Model",
    "weight": "'head.weight' of Model",
    "buffer": "'bias' of Model",
    "mode": "'norm.training' of Model was True",
}
"""What a script may change after the first training call, and what is said of it."""


@pytest.fixture(scope="module")
def changed(make_workplace):
    place = make_workplace("changing")
    finished = [place.train("changing.py", **variables) for variables in (WRAP, {})]
    assert [one.code for one in finished] == [0, 0], finished[0].stderr
    return [dict(re.findall(r"^change (.+?): (.*)$", one.stdout, re.MULTILINE)) for one in finished]


def test_changes_that_ortmodule_would_ignore_end_the_script(changed):
    wrapped, plain = changed
    assert {name for name in plain if "loss" not in wrapped[name]} == set(CHANGES)
    for name, words in CHANGES.items():
        assert f"--wrap: {words}" in wrapped[name]
        assert wrapped[name].endswith("or train in PyTorch, without --wrap.")


def test_changes_that_ortmodule_follows_or_nobody_reads_are_allowed(changed):
    wrapped, plain = changed
    allowed = set(plain) - set(CHANGES)
    assert len(allowed) > 10
    assert {name: wrapped[name] for name in allowed} == {name: plain[name] for name in allowed}
