import dataclasses
import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from autorecompute import codec
from autorecompute.backends.findings import Finding, Status
from autorecompute.cli.doctor import as_json
from autorecompute.emit.formats import RENDERERS
from autorecompute.figures import Comparison, CurvePoint, Figures, KnobFigures, Recomputed
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.plans import Config
from autorecompute.reports.answer_json import Answer, MeasuredTrial
from autorecompute.reports.check_report import Checked
from autorecompute.result import AsItIs
from autorecompute.schemas import DOCUMENTS, NAMES, schema_of
from autorecompute.schemas.__main__ import main as print_schema
from autorecompute.studies import StudyFolder
from autorecompute.studies.checked import CheckLine, CheckReport, CheckVerdict
from autorecompute.units import MIB
from autorecompute.verdict import Verdict
from stand_ins.emitted import rendered
from stand_ins.schemas import check

KEYS = Path(__file__).parents[2] / "golden" / "json_keys.json"
"""Every key that is documented: what stands there stays."""


@pytest.fixture
def full_result(answer):
    figures, config = answer.rival, answer.best.config
    gradients = GradientCheck(agrees=False, worst=float("inf"), steps=3)
    recomputed = Recomputed(study="bert-b32", description="all plans", figures=figures, config=config)
    return dataclasses.replace(
        answer,
        best=dataclasses.replace(answer.best, gradients=gradients, losses=(1.0, float("nan"))),
        comparison=Comparison(ratio=1.1, low=1.0, high=1.2, pairs=3, is_clear=True),
        as_it_is=AsItIs(figures=figures, comparison=Comparison(ratio=0.6, pairs=0, is_clear=False)),
        knobs=(KnobFigures(name="triton", why_not="no"),),
        curve=(CurvePoint(batch=8, without=figures), CurvePoint(batch=32, without=Figures(), recomputed=recomputed)),
    )


FITTING = Config.parse(["blocks.*/gelu:drop"])


@pytest.fixture
def tried(make_trial, expected):
    return [
        make_trial(number=0, reference_seconds=0.5, losses=(1.0, float("nan"))),
        dataclasses.replace(make_trial(FITTING, number=1, reference_seconds=0.5), prediction=expected),
        make_trial(
            Config.parse(["whole model:light"]), number=2, outcome=Outcome.OOM, message="no memory", marks=("busy",)
        ),
    ]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_schema_is_one_and_describes_every_field(name):
    schema = schema_of(name)
    Draft202012Validator.check_schema(schema)
    for part in (schema, *schema["$defs"].values()):
        assert part.get("additionalProperties") is not False
        assert all(field["description"] for field in part.get("properties", {}).values())


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


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documented_keys_stay(name):
    documented = json.loads(KEYS.read_text())[name]
    wanted = {path for key, inner in documented.items() for path in (key, *(f"{key}.{path}" for path in inner))}
    schema = schema_of(name)
    assert wanted - set(paths(keys(schema, schema["$defs"]))) == set()


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_printed(name, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["schemas", name])
    print_schema()
    assert json.loads(capsys.readouterr().out) == schema_of(name)


def test_an_answer_is_as_the_schema_says(full_result, make_result, tried):
    check("tune", codec.dumps(Answer.of(full_result, tried, rendered(full_result))))
    check("tune", codec.dumps(Answer.of(dataclasses.replace(make_result(), best=None), [], None)))


def test_an_answer_has_all_figures_of_the_last_screen(make_result, tried):
    plain = codec.to_plain(Answer.of(make_result(), tried, rendered(make_result())))
    assert [other["description"] for other in plain["runners_up"]] == [tried[1].description]
    assert plain["predictions"]["trials"] == 1
    assert plain["predictions"]["peak_worst_error"] == pytest.approx(700 / 512 - 1)


@pytest.fixture
def printed(call, keep, make_space, full_result, tried):
    space = make_space(has_opaque=True)
    keep(name="large", batch=64, space=space)
    keep(tried, full_result, space=space)

    def printed(*arguments):
        code, out, _ = call(*arguments)
        assert code == 0
        return out

    return printed


def test_a_study_is_as_the_schema_says(printed):
    for arguments in (["bert"], ["large"], ["bert", "--why"], ["large", "--why"]):
        check("show", printed("show", *arguments, "--json"))
    check("show", json.dumps({**json.loads(printed("show", "large", "--json")), "nearest": None}))
    printed("studies", "export", "bert", "-o", "bert.jsonl")
    printed("studies", "import", "bert.jsonl", "--study", "again")
    check("show", printed("studies", "show", "again", "--json"))


def test_the_list_is_as_the_schema_says(printed):
    StudyFolder("torn").prepare()
    (StudyFolder("torn").path / "study.json").write_text("{")
    listed = printed("studies", "list", "--json")
    check("studies", listed)
    assert [study["study"] for study in json.loads(listed)["studies"]] == ["bert", "large", "torn"]


def test_two_studies_side_by_side_are_as_the_schema_says(printed):
    for names in (("bert", "large"), ("large", "bert"), ("bert", "bert")):
        check("compare", printed("studies", "compare", *names, "--json"))


def test_a_check_is_as_the_schema_says():
    lines = [CheckLine(what=verdict, stored="1", here="2", verdict=verdict) for verdict in CheckVerdict]
    known = {"study": "bert", "config": "all", "command": ("python", "train.py"), "lines": tuple(lines)}
    figures = {"peak_bytes": MIB, "samples_per_second": 64.0, "relative_throughput": 0.9}
    for measured in ({}, figures):
        check("check", codec.dumps(Checked.of(CheckReport(**known, limit_bytes=MIB, **measured))))


def test_what_is_emitted_is_as_the_schema_says(full_result):
    check("emit", RENDERERS["json"](dataclasses.replace(full_result, curve=()), rendered(full_result)))


def test_what_the_doctor_finds_is_as_the_schema_says():
    check("doctor", as_json({"any": [Finding(name="torch", status=status, found="2.13") for status in Status]}))


def plain_of(record):
    return json.loads(codec.dumps(record), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_the_contract_is_kept(make_result):
    result = make_result(Config.parse(["whole model:light"]))
    plain = plain_of(Answer.of(result, [], rendered(result)))
    assert {"study", "problem", "best", "baseline", "presets", "trials", "wall_seconds", "verdict"} <= set(plain)
    best = plain["best"]
    assert (best["config"], best["env"]) == (["whole model:light"], rendered(result).variables)
    for name in ("batch", "peak_bytes", "limit_bytes", "confirmed", "samples_per_second"):
        assert best[name] == getattr(result.best, name)
    assert plain["verdict"] == Verdict.RECOMPUTE_PAYS
    assert Answer.of(dataclasses.replace(result, best=None), [], None).best is None


def test_trials_carry_all_their_samples_and_what_follows_from_them(make_trial):
    losses = (1.0, float("nan"), float("inf"))
    trial = make_trial(reference_seconds=0.5, step_seconds=(1.0, 1.5, 1.0), samples=8, losses=losses)
    (plain,) = plain_of([MeasuredTrial.of(trial)])
    assert plain["measurement"]["step_seconds"] == [1.0, 1.5, 1.0]
    assert (plain["relative_throughput"], plain["samples_per_second"]) == (0.5, 8.0)
    assert plain["hash"] == trial.config.hash
