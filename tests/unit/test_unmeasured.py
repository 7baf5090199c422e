"""``emit --unmeasured``: what was planned and never measured is given out as that, and not without being asked."""

import json

import pytest

from autorecompute.backends.torch.plans_file import read_plans_file
from autorecompute.cli import main
from autorecompute.errors import UsageError
from autorecompute.plans import Config

BLOCKS = ["h.*:checkpoint"]
CHEAP, DEAR = ["h.*/gelu:drop"], ["h.*.mlp:checkpoint:2"]
VERSIONS = {"backend": "torch", "torch": "2.13.0", "model": "Net 12", "python": "3.11.9"}


def forecast(choices, share, *, holds, **more):
    """A line of the forecasts, or of the frontier."""
    return {"choices": choices, "peak_bytes": 2**30, "recompute_share": share, "holds_limit": holds, **more}


@pytest.fixture
def looked(tmp_path, monkeypatch):
    """Writes what ``plans --fake --json`` printed, with changes, to ``looked.json`` of the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(**changes):
        peak = {
            "forecasts": [
                forecast([], 0.0, holds=False),
                forecast(BLOCKS, 0.3, holds=True, reserved_holds_limit=False),
            ],
            "frontier": [
                forecast(BLOCKS, 0.3, holds=True),
                forecast(DEAR, 0.2, holds=True),
                forecast(CHEAP, 0.1, holds=False),
            ],
        }
        presets = {"none": [], "blocks": BLOCKS}
        plain = {"presets": presets, "versions": VERSIONS, "peak": peak, "command": "tune", **changes}
        (tmp_path / "looked.json").write_text(json.dumps(plain))
        return tmp_path / "looked.json"

    return write


@pytest.fixture
def emit(looked, capsys):
    """Runs ``emit`` on what was printed: the code, what it printed, and what it complained of."""

    def emit(*options, **changes):
        looked(**changes)
        code = main(["emit", "looked.json", *options])
        return code, *capsys.readouterr()

    return emit


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("blocks", BLOCKS),
        ("best", DEAR),
        (Config.parse(CHEAP).hash, CHEAP),
        (Config.parse(DEAR).hash[:6], DEAR),
    ],
    ids=["preset", "best", "hash", "short hash"],
)
def test_a_planned_config_is_given_out_with_the_word_in_it(emit, tmp_path, name, choices):
    """The file is one that a script applies, for the model that was looked at; the best is the cheapest that fits."""
    code, printed, _ = emit("--unmeasured", name)
    assert (code, json.loads(printed)["unmeasured"]) == (0, True)
    (tmp_path / "plans.json").write_text(printed)
    found = read_plans_file(tmp_path / "plans.json")
    assert (found.config, found.model, found.is_unmeasured) == (Config.parse(choices), "Net 12", True)


def test_the_best_is_none_that_an_allocator_could_not_hold(emit):
    """Where the tensors fit and what is reserved does not, another config is given out."""
    only = {"forecasts": [forecast(BLOCKS, 0.1, holds=True, reserved_holds_limit=False)], "frontier": []}
    code, printed, complaint = emit("--unmeasured", "best", peak=only)
    assert (code, printed) == (UsageError.exit_code, "")
    assert "--memory-limit" in complaint


def test_without_a_limit_the_best_is_what_a_card_holds(emit):
    """What the allocator would reserve is then compared with the card's memory."""
    on_card = [
        forecast([], 0.0, holds=None, reserved_holds_limit=False),
        forecast(BLOCKS, 0.3, holds=None, reserved_holds_limit=True),
        forecast(CHEAP, 0.1, holds=None, reserved_holds_limit=None),
    ]
    code, printed, _ = emit("--unmeasured", "best", peak={"forecasts": on_card, "frontier": []})
    assert (code, json.loads(printed)["plans"]) == (0, BLOCKS)


def test_python_says_so_too(emit):
    """The file imports torch alone, and begins with what nobody measured."""
    code, printed, _ = emit("--unmeasured", "blocks", "--format", "python")
    assert code == 0
    assert "# unmeasured: no step was run with config" in printed
    assert "# peak: 1.00 GiB, predicted" in printed
    compile(printed, "recompute.py", "exec")


@pytest.mark.parametrize("options", [[], ["--format", "json"], ["--format", "python"]])
def test_without_being_asked_nothing_unmeasured_is_given_out(emit, options):
    """What plans printed is no study."""
    code, printed, complaint = emit(*options)
    assert (code, printed) == (UsageError.exit_code, "")
    assert "no study" in complaint


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--unmeasured", "none"], "recomputes nothing"),
        (["--unmeasured", "missing"], "none, blocks"),
        (["--unmeasured", ""], "none, blocks"),
        (["--unmeasured", "blocks", "--format", "shell"], "json or python"),
        (["--unmeasured", Config.parse(CHEAP).hash, "--format", "python"], "checkpoint"),
    ],
)
def test_what_cannot_be_given_out_is_told_with_a_way_out(emit, options, words):
    """Nothing to recompute, no such config, a format that names files, operators without this package."""
    code, printed, complaint = emit(*options)
    assert (code, printed) == (UsageError.exit_code, "")
    assert words in complaint


@pytest.mark.parametrize(
    "changes",
    [
        {"presets": 3},
        {"presets": {"blocks": ["\x1b[2J"]}},
        {"versions": {"backend": 5}},
        {"peak": {"frontier": [{"choices": "h"}]}},
        {"peak": {"frontier": [{}]}},
    ],
)
def test_a_file_that_is_not_what_plans_printed_is_refused(emit, changes):
    """The sentence names the file and the command that makes one."""
    code, printed, complaint = emit("--unmeasured", "blocks", **changes)
    assert (code, printed) == (UsageError.exit_code, "")
    assert "'looked.json'" in complaint
    assert "plans SCRIPT --fake --json" in complaint
    assert "\x1b" not in complaint


def test_another_training_system_has_no_such_file(emit):
    """Variables cannot say that nobody measured them."""
    code, _, complaint = emit("--unmeasured", "blocks", versions={**VERSIONS, "backend": "ortmodule"})
    assert code == UsageError.exit_code
    assert "Tune the script" in complaint
