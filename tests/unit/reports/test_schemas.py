"""The published schemas: sound, and true of what is printed."""

import dataclasses
import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from autorecompute import codec
from autorecompute.backends.findings import Finding, Status
from autorecompute.cli import main
from autorecompute.cli.doctor import as_json
from autorecompute.emit.formats import RENDERERS
from autorecompute.figures import Comparison, CurvePoint, Figures, KnobFigures, Recomputed
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.memory import Estimate, Machine, PeakView, StepProfiles
from autorecompute.plans import Activation, Alternative, Choice, Cluster, Config, Offer, Plan, Space
from autorecompute.prediction import Prediction
from autorecompute.ranges import LARGEST
from autorecompute.ranking import RaceEnd, Ranking
from autorecompute.reports.answer_json import Answer
from autorecompute.reports.check_report import Checked
from autorecompute.reports.overview import Overview
from autorecompute.reports.plans_json import Plans
from autorecompute.result import AsItIs, Transfer
from autorecompute.schemas import ARCHIVE, DOCUMENTS, NAMES, schema_of
from autorecompute.schemas.__main__ import main as print_schema
from autorecompute.schemas.definitions import Definitions
from autorecompute.search.frontier import predict_frontier
from autorecompute.studies import Problem, Sizes, StudyFolder
from autorecompute.studies.checked import CheckLine, CheckReport, CheckVerdict
from autorecompute.studies.storage import TrialStore
from autorecompute.units import MIB
from fake_backend.memory import LinearMemory
from stand_ins.emitted import rendered

KEYS = Path(__file__).parents[2] / "golden" / "json_keys.json"
"""Every key that is documented: what stands there stays."""


def closed(schema):
    """The schema as strict as can be: nothing may be printed that it does not tell of."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: closed(part) for name, part in schema.items()}
    is_object = schema.get("type") == "object" and "properties" in schema
    return {**parts, "additionalProperties": False} if is_object else parts


def check(name, text):
    """Holds what was printed against its schema, strictly."""
    Draft202012Validator(closed(schema_of(name))).validate(json.loads(text))


@pytest.fixture
def full_result(make_result, make_trial):
    """An answer that has everything."""
    result = make_result()
    trial = make_trial(reference_seconds=0.5)
    figures = Figures.of(trial)
    best = dataclasses.replace(
        result.best,
        ranking=Ranking(end=RaceEnd.TIE, rounds=8, confidence=0.99, rivals=("blocks.*/gelu",)),
        gradients=GradientCheck(agrees=False, worst=float("inf"), steps=3),
        losses=(1.0, float("nan")),
    )
    recomputed = Recomputed(study="bert-b32", description="all plans", figures=figures, config=best.config)
    return dataclasses.replace(
        result,
        best=best,
        rival=figures,
        comparison=Comparison(ratio=1.1, low=1.0, high=1.2, pairs=3, is_clear=True),
        as_it_is=AsItIs(figures=figures, comparison=Comparison(ratio=0.6, pairs=0, is_clear=False)),
        curve=(CurvePoint(batch=8, without=figures), CurvePoint(batch=32, without=Figures(), recomputed=recomputed)),
        raced={best.config.hash: 0.9},
        transferred_from=Transfer(study="other", differences=("batch 32, not 16",)),
        knobs=(KnobFigures(name="triton", why_not="no"),),
    )


FITTING = Config.parse(["blocks.*/gelu:drop"])


@pytest.fixture
def trials(make_trial):
    """Trials with and without figures, predictions and a finite loss."""
    expected = Prediction(peak_bytes=MIB, peak_low=1, peak_high=2 * MIB, step=1, step_low=0.9, step_high=1.1, fits=0.5)
    return [
        make_trial(number=0, reference_seconds=0.5, losses=(1.0, float("nan"))),
        dataclasses.replace(make_trial(FITTING, number=1, reference_seconds=0.5), prediction=expected),
        make_trial(
            Config.parse(["whole model:light"]), number=2, outcome=Outcome.OOM, message="no memory", marks=("busy",)
        ),
    ]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_schema_is_one_and_describes_every_field(name):
    """Each is valid itself, open to what later versions add, and says a word of each field."""
    schema = schema_of(name)
    Draft202012Validator.check_schema(schema)
    for part in (schema, *schema["$defs"].values()):
        assert part.get("additionalProperties") is not False
        assert all(field["description"] for field in part.get("properties", {}).values())


def keys(schema, kinds):
    """All keys of an object and of those in it, as a tree."""
    if "properties" in schema:
        return {key: keys(field, kinds) for key, field in schema["properties"].items()}
    inner = [schema[name] for name in ("items", "additionalProperties") if isinstance(schema.get(name), dict)]
    if "$ref" in schema:
        inner = [kinds[schema["$ref"].rpartition("/")[2]]]
    return {key: tree for part in (*inner, *schema.get("anyOf", ())) for key, tree in keys(part, kinds).items()}


def paths(tree, before=""):
    """The keys of a tree as paths."""
    for key, inner in tree.items():
        yield f"{before}{key}"
        yield from paths(inner, f"{before}{key}.")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documented_keys_stay(name):
    """No key is lost or renamed with a field of a record; the answer within another object is that of ``tune``."""
    schema, documented = schema_of(name), json.loads(KEYS.read_text())[name]
    wanted = {path for key, inner in documented.items() for path in (key, *(f"{key}.{path}" for path in inner))}
    assert wanted - set(paths(keys(schema, schema["$defs"]))) == set()


def test_numbers_have_their_ranges():
    """What no peak, batch or throughput can be is no answer to the schema, and no line of an archive."""
    for name, kind in (("tune", "BestConfig"), (ARCHIVE, "Best")):
        told = schema_of(name)["$defs"][kind]["properties"]
        assert told["batch"]["minimum"] == 1
        assert told["peak_bytes"]["maximum"] == LARGEST
        assert told["samples_per_second"]["minimum"] == 0


def test_a_record_without_words_has_no_schema():
    """A field that the docstring is silent about is named."""

    @dataclasses.dataclass
    class Silent:
        """A record."""

        field: int

    with pytest.raises(ValueError, match="Silent says nothing of field"):
        Definitions({"type": "number"}).object_of(Silent)


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_printed(name, capsys, monkeypatch):
    """What the command prints is the schema."""
    monkeypatch.setattr("sys.argv", ["schemas", name])
    print_schema()
    assert json.loads(capsys.readouterr().out) == schema_of(name)


def test_an_answer_is_as_the_schema_says(full_result, make_result, trials):
    """With everything in it, and with as little as there can be."""
    check("tune", codec.dumps(Answer.of(full_result, trials, rendered(full_result))))
    check("tune", codec.dumps(Answer.of(dataclasses.replace(make_result(), best=None), [], None)))


def test_an_answer_has_all_figures_of_the_last_screen(make_result, trials):
    """The others that fit and the error of the predictions are in it as numbers."""
    plain = codec.to_plain(Answer.of(make_result(), trials, rendered(make_result())))
    assert [other["description"] for other in plain["runners_up"]] == [trials[1].description]
    assert plain["predictions"]["trials"] == 1
    assert plain["predictions"]["peak_worst_error"] == pytest.approx(699)


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """What a command prints, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        assert main(list(arguments)) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def two_studies(printed, make_detection, make_space, full_result, trials):
    """A finished study, and one with another batch and no trial."""
    for name, batch in (("bert", 32), ("large", 64)):
        folder, detection = StudyFolder(name), make_detection(make_space(has_opaque=True), batch=batch)
        folder.prepare()
        folder.begin(Problem.of(detection, MIB), ["python", "train.py"], Sizes.of(detection))
    folder = StudyFolder("bert")
    store = TrialStore(folder.database, "bert", make_space(), MIB)
    for trial in trials:
        store.add(trial)
    folder.keep_confirmed([full_result.best])
    folder.finish(full_result)
    return printed


def test_a_study_is_as_the_schema_says(two_studies):
    """One with an answer and one without, beside the nearest other and without, and one from an archive."""
    for arguments in (["bert"], ["large"], ["bert", "--why"], ["large", "--why"]):
        check("show", two_studies("show", *arguments, "--json"))
    two_studies("studies", "export", "bert", "-o", "bert.jsonl")
    two_studies("studies", "import", "bert.jsonl", "--study", "again")
    check("show", two_studies("studies", "show", "again", "--json"))


def test_that_nothing_is_near_is_as_the_schema_says(two_studies):
    """Without any other study it is null."""
    plain = json.loads(two_studies("show", "large", "--json"))
    check("show", json.dumps({**plain, "nearest": None}))


def test_the_list_is_as_the_schema_says(two_studies):
    """With an answer, without one, and where a study cannot be read."""
    StudyFolder("torn").prepare()
    (StudyFolder("torn").path / "study.json").write_text("{")
    listed = two_studies("studies", "list", "--json")
    check("studies", listed)
    assert [study["study"] for study in json.loads(listed)["studies"]] == ["bert", "large", "torn"]
    check("studies", two_studies("show", "--json"))


def test_two_studies_side_by_side_are_as_the_schema_says(two_studies):
    """In whatever order, and one beside itself."""
    for names in (("bert", "large"), ("large", "bert"), ("bert", "bert")):
        check("compare", two_studies("studies", "compare", *names, "--json"))


def test_a_check_is_as_the_schema_says():
    """With a line of each kind, with figures and without."""
    lines = [CheckLine(what=verdict, stored="1", here="2", verdict=verdict) for verdict in CheckVerdict]
    known = {"study": "bert", "config": "all", "command": ("python", "train.py"), "lines": tuple(lines)}
    figures = {"peak_bytes": MIB, "samples_per_second": 64.0, "relative_throughput": 0.9}
    for measured in ({}, figures):
        check("check", codec.dumps(Checked.of(CheckReport(**known, limit_bytes=MIB, **measured))))


def test_what_is_emitted_is_as_the_schema_says(full_result):
    """All that ``emit --format json`` prints is told of."""
    check("emit", RENDERERS["json"](dataclasses.replace(full_result, curve=()), rendered(full_result)))


def test_what_the_doctor_finds_is_as_the_schema_says():
    """A finding of each kind."""
    check("doctor", as_json({"any": [Finding(name="torch", status=status, found="2.13") for status in Status]}))


def test_plans_are_as_the_schema_says(make_detection, make_step):
    """With clusters, other ranks and the peak explained; and without the peak."""
    gelu = Plan(
        choices=(Choice("blocks.*/gelu", "drop"),), label="blocks.*/gelu", occurrences=3, saving_bytes=1, saving="batch"
    )
    space = Space(plans=(gelu,))
    choice = Choice("blocks.*/gelu", "drop")
    activation = Activation(output=0, shape=("batch", "8"), element_bytes=4, saved_bytes=4)
    cluster = Cluster(occurrences=3, alternatives=(Alternative(choice=choice, activations=(activation,)),))
    detection = make_detection(space, clusters=(cluster,), dims={"batch": 2})
    offer = Offer(plans=space.plans, clusters=(cluster,), is_on=True, summary="on", requested={choice: -1})
    overview = Overview(detection=detection, offer=offer, dims={"batch": 4}, command="tune")
    check("plans", codec.dumps(Plans.of([overview, overview])))
    profiles = {
        Config(): make_step("ffflbbb", ("x", 0, 6, "batch", "8")),
        space.all_on: make_step("ffflrbbb", ("x", 0, 0, "batch", "8"), ("x_recompute", 4, 5, "batch", "8")),
    }
    model = LinearMemory(space, StepProfiles(peak_bytes=5 * MIB, held_bytes=4 * MIB, profiles=profiles))
    machine = Machine(
        name="T4", source="data sheet", is_measured=False, operations_per_second={"float32": 1e12}, bytes_per_second=1e9
    )
    estimate = Estimate(
        machine=machine, operations=2e9, moved_bytes=1e6, operations_again=1e9, moved_bytes_again=0.0, seconds=0.1
    )
    for limit in (None, MIB):
        view = PeakView(
            model=model,
            config=space.all_on,
            dims={"batch": 32},
            limit_bytes=limit,
            batches=(8, 64),
            frontier=tuple(
                dataclasses.replace(forecast, estimate=estimate) for forecast in predict_frontier(model, {"batch": 32})
            ),
        )
        check("plans", codec.dumps(Plans.of([overview], view)))
