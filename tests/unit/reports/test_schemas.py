import dataclasses
import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from autorecompute import codec
from autorecompute.backends.findings import Finding, Status
from autorecompute.emit import RENDERERS
from autorecompute.figures import Comparison, CurvePoint, Figures, KnobFigures, RaceEnd, Ranking, Recomputed
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.plans import Config
from autorecompute.ranges import LARGEST
from autorecompute.reports.documents import Answer
from autorecompute.reports.installation import Installation
from autorecompute.result import Transfer
from autorecompute.schemas import ARCHIVE, DOCUMENTS, NAMES, schema_of
from autorecompute.schemas import main as print_schema
from autorecompute.studies import StudyFolder
from autorecompute.studies.checked import CheckLine, CheckReport, CheckVerdict
from autorecompute.units import MIB
from stand_ins.emitted import rendered
from stand_ins.schemas import check

KEYS = Path(__file__).parents[2] / "golden" / "json_keys.json"
"""Every key that is documented: what stands there stays."""


@pytest.fixture
def full_result(make_result, make_trial):
    figures = Figures.of(make_trial(reference_seconds=0.5))
    result = make_result(
        of_best={
            "ranking": Ranking(end=RaceEnd.TIE, rounds=8, confidence=0.99, rivals=("blocks.*/gelu",)),
            "gradients": GradientCheck(agrees=False, worst=float("inf"), steps=3),
            "losses": (1.0, float("nan")),
        },
        rival=figures,
        comparison=Comparison(ratio=1.1, low=1.0, high=1.2, pairs=3, is_clear=True),
        transferred_from=Transfer(study="other", differences=("batch 32, not 16",)),
        knobs=(KnobFigures(name="triton", why_not="no"),),
    )
    config = result.best.config
    recomputed = Recomputed(study="bert-b32", description="all plans", figures=figures, config=config)
    curve = (CurvePoint(batch=8, without=figures), CurvePoint(batch=32, without=Figures(), recomputed=recomputed))
    return dataclasses.replace(result, curve=curve, raced={config.hash: 0.9})


FITTING = Config.parse(["blocks.*/gelu:drop"])


@pytest.fixture
def trials(make_trial, expected):
    return [
        make_trial(number=0, reference_seconds=0.5, losses=(1.0, float("nan"))),
        dataclasses.replace(make_trial(FITTING, number=1, reference_seconds=0.5), prediction=expected),
        make_trial(
            Config.parse(["whole model:light"]), number=2, outcome=Outcome.OOM, message="no memory", marks=("busy",)
        ),
    ]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_schema_is_one_describes_every_field_and_keeps_documented_keys(name):
    schema = schema_of(name)
    Draft202012Validator.check_schema(schema)
    for part in (schema, *schema["$defs"].values()):
        assert part.get("additionalProperties") is not False
        assert all(field["description"] for field in part.get("properties", {}).values())
    documented = json.loads(KEYS.read_text())[name]
    wanted = {path for key, inner in documented.items() for path in (key, *(f"{key}.{path}" for path in inner))}
    assert wanted - set(paths(keys(schema, schema["$defs"]))) == set()


def keys(schema, kinds):
    if "properties" in schema:
        return {key: keys(field, kinds) for key, field in schema["properties"].items()}
    inner = [schema[name] for name in ("items", "additionalProperties") if isinstance(schema.get(name), dict)]
    if "$ref" in schema:
        inner = [kinds[schema["$ref"].rpartition("/")[2]]]
    return {key: tree for part in (*inner, *schema.get("anyOf", ())) for key, tree in keys(part, kinds).items()}


def paths(tree, before=""):
    for key, inner in tree.items():
        yield f"{before}{key}"
        yield from paths(inner, f"{before}{key}.")


@pytest.mark.parametrize(("name", "kind"), [("tune", "BestConfig"), (ARCHIVE, "Best")])
def test_numbers_have_their_ranges(name, kind):
    told = schema_of(name)["$defs"][kind]["properties"]
    assert told["batch"]["minimum"] == 1
    assert told["peak_bytes"]["maximum"] == LARGEST
    assert told["samples_per_second"]["minimum"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_printed(name, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["schemas", name])
    print_schema()
    assert json.loads(capsys.readouterr().out) == schema_of(name)


def test_what_is_printed_is_as_the_schema_says(full_result, make_result, trials):
    check("tune", codec.dumps(Answer.of(full_result, trials, rendered(full_result))))
    check("tune", codec.dumps(Answer.of(dataclasses.replace(make_result(), best=None), [], None)))
    lines = [CheckLine(what=verdict, stored="1", here="2", verdict=verdict) for verdict in CheckVerdict]
    known = {"valid": True, "study": "bert", "config": "all", "command": ("python", "train.py"), "lines": tuple(lines)}
    figures = {"peak_bytes": MIB, "samples_per_second": 64.0, "relative_throughput": 0.9}
    for measured in ({}, figures):
        check("check", codec.dumps(CheckReport(**known, limit_bytes=MIB, **measured)))
    check("emit", RENDERERS["json"](dataclasses.replace(full_result, curve=()), rendered(full_result)))
    found = {"any": [Finding(name="torch", status=status, found="2.13") for status in Status]}
    check("doctor", codec.dumps(Installation.of(found)))


def test_an_answer_has_all_figures_of_the_last_screen_and_null_for_what_was_not_measured(make_result, trials):
    plain = codec.to_plain(Answer.of(make_result(), trials, rendered(make_result())))
    assert [other["description"] for other in plain["runners_up"]] == [trials[1].description]
    assert plain["predictions"]["trials"] == 1
    assert plain["predictions"]["peak_worst_error"] == pytest.approx(700 / 512 - 1)
    result = make_result(presets={"light": Figures()}, knobs=(KnobFigures(name="fused_kernels", why_not="no"),))
    plain = plain_of(Answer.of(result, [], rendered(result)))
    assert plain["baseline"]["outcome"] == "oom"
    assert (plain["baseline"]["samples_per_second"], plain["baseline"]["peak_bytes"]) == (None, None)
    assert set(plain["presets"]["light"].values()) == {None}
    assert plain["rival"] is None
    (knob,) = plain["knobs"]
    assert {"name": "fused_kernels", "why_not": "no", "kept": False}.items() <= knob.items()
    assert {knob[name] for name in ("throughput_ratio", "low", "high", "peak_bytes", "outcome")} == {None}


def test_studies_and_their_list_are_as_the_schema_says(call, keep, make_space, full_result, trials):
    def printed(*arguments):
        code, out, _ = call(*arguments)
        assert code == 0
        return out

    space = make_space(has_opaque=True)
    keep(name="large", batch=64, space=space)
    keep(trials, full_result, space=space).keep_confirmed([full_result.best])
    StudyFolder("torn").prepare()
    (StudyFolder("torn").path / "study.json").write_text("{")
    listed = printed("studies", "list", "--json")
    check("studies", listed)
    assert [study["study"] for study in json.loads(listed)["studies"]] == ["bert", "large", "torn"]
    for arguments in (["bert"], ["large"], ["bert", "--why"], ["large", "--why"]):
        check("show", printed("show", *arguments, "--json"))
    check("show", json.dumps({**json.loads(printed("show", "large", "--json")), "nearest": None}))
    printed("studies", "export", "bert", "-o", "bert.jsonl")
    printed("studies", "import", "bert.jsonl", "--study", "again")
    check("show", printed("studies", "show", "again", "--json"))


def plain_of(record):
    return json.loads(codec.dumps(record), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_trials_carry_all_their_samples_and_what_follows_from_them(make_trial):
    losses = (1.0, float("nan"), float("inf"))
    trial = make_trial(reference_seconds=0.5, step_seconds=(1.0, 1.5, 1.0), samples=8, losses=losses)
    (plain,) = plain_of([trial])
    assert plain["measurement"]["step_seconds"] == [1.0, 1.5, 1.0]
    assert (plain["relative_throughput"], plain["samples_per_second"]) == (0.5, 8.0)
    assert plain["hash"] == trial.config.hash
