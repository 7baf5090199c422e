"""Whether a config that was tuned still holds, with real processes."""

import json

import pytest

SLOWNESS = 3
"""So many times as slow as it was the study says that it was: no neighbour on this machine makes a check fail."""


@pytest.fixture(scope="module")
def place(make_copy):
    """A working directory with the transformer's study, whose config has to be no faster than it can be anywhere."""
    place = make_copy("checked")
    file = place.study("limited").path / "result.json"
    result = json.loads(file.read_text())
    for figure in ("samples_per_second", "relative_throughput", "relative_low"):
        # On a busy machine no round is evidence, and no interval is known.
        if result["best"][figure] is not None:
            result["best"][figure] /= SLOWNESS
    file.write_text(json.dumps(result))
    return place


@pytest.fixture(scope="module")
def check(place):
    """Checks the transformer's study with this command, or with the one that was tuned."""

    def check(*command, study="limited", options=()):
        rest = ["--", *command] if command else []
        return place.finish(place.start("-m", "autorecompute", "check", study, *options, *rest))

    return check


def test_a_config_is_valid_where_it_was_tuned(check, tuned):
    """The stored command is run again, and each line says what is stored and what is here."""
    checked = check(options=("--json", "--steps", "2"))
    assert checked.code == 0, checked.stdout + checked.stderr
    lines = {line["what"]: line for line in checked.answer["lines"]}
    assert lines["plans"]["verdict"] == "ok"
    assert lines["problem"]["verdict"] == "ok", lines
    assert lines["gradients"]["verdict"] == "ok"
    assert lines["peak of a step"]["verdict"] in {"ok", "differs"}
    assert checked.answer["peak_bytes"] <= tuned.answer["best"]["limit_bytes"]
    assert lines["relative throughput"]["verdict"] == "ok"
    assert checked.answer["valid"]


def test_a_config_of_another_model_is_not_valid(check, scripts):
    """Plans that the model does not have are named, and the code is that of a config that does not fit.

    Whatever won, the other model has none of its plans.
    """
    checked = check(str(scripts / "linear.py"))
    assert checked.code == 4, checked.stderr
    assert "would be ignored" in checked.stdout
    assert "not valid here" in checked.stdout
    assert "autorecompute tune" in checked.complaint


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (("python", "misspelt.py"), 5, "script"),
        (("python", "transformer.py", "--bs", "64"), 2, "batch of 64"),
        (("python", "no-such-script.py"), 2, "no script"),
        (("python", "--version"), 2, "No script is named"),
    ],
)
def test_what_keeps_a_check_from_checking_has_its_own_code(check, scripts, command, code, words):
    """A script that fails, another batch and a command without a script are told apart from a config that fails."""
    start, script, *arguments = command
    path = scripts / script
    checked = check(start, str(path) if path.is_file() else script, *arguments)
    assert checked.code == code, checked.stderr
    assert words in checked.complaint
    assert checked.stdout == ""


def test_what_an_archive_says_is_not_run(check, place):
    """The command of a study that was imported has to be given."""
    export = place.finish(place.start("-m", "autorecompute", "studies", "export", "limited"))
    assert export.code == 0, export.stderr
    (place.path / "limited.jsonl").write_text(export.stdout)
    command = ("-m", "autorecompute", "studies", "import", "limited.jsonl", "--study", "imported")
    assert place.finish(place.start(*command)).code == 0
    refused = check(study="imported")
    assert refused.code == 2
    assert "check imported -- train.py" in refused.complaint
    assert json.loads(export.stdout.splitlines()[0])["study"]["study"] == "limited"


def test_an_imported_study_is_emitted_once_it_was_checked(check, place, scripts):
    """Nothing is given out of what nobody confirmed here; a check that finds the config valid changes that."""
    export = place.finish(place.start("-m", "autorecompute", "studies", "export", "limited"))
    (place.path / "theirs.jsonl").write_text(export.stdout)
    command = ("-m", "autorecompute", "studies", "import", "theirs.jsonl", "--study", "theirs")
    assert place.finish(place.start(*command)).code == 0
    emit = ("-m", "autorecompute", "emit", "theirs", "--format", "json")
    refused = place.finish(place.start(*emit))
    assert (refused.code, refused.stdout) == (2, "")
    assert "never confirmed on this machine" in refused.complaint
    checked = check(str(scripts / "transformer.py"), "--bs", "{batch}", study="theirs", options=("--steps", "2"))
    # On a busy machine a few steps may be slow in all rounds, and the config is not confirmed.
    assert checked.code in {0, 4}, checked.stderr
    emitted = place.finish(place.start(*emit))
    assert emitted.code == (2 if checked.code else 0)
    if emitted.code == 0:
        assert emitted.answer["environment"]["ORTMODULE_MEMORY_OPT_CONFIG"].endswith("theirs/best/plans.json")
