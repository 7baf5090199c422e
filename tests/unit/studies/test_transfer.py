"""Which of the stored studies tells most of a new problem."""

import gzip
import json

import pytest

from autorecompute.backends.ortmodule.controller import NAME as ORTMODULE
from autorecompute.studies import Problem, Sizes, StudyFolder, sources
from autorecompute.studies.archive import compress, dump
from autorecompute.studies.archive_reading import read_archive
from autorecompute.studies.importing import Trusted, require_trusted
from autorecompute.studies.records import read_records
from autorecompute.studies.storage import TrialStore
from autorecompute.studies.transfer import find_nearest
from autorecompute.studies.tuned import Tuned
from autorecompute.training_job import Device
from autorecompute.units import GIB, MIB

LIMIT = 900 * MIB
COMMAND = ("python", "train.py")
OTHER_CARD = Device(kind="cuda", name="Some Card", total_bytes=16 * GIB)


@pytest.fixture
def make_tuned(make_detection):
    """A problem like that of every detection here, but for what is named."""

    def make(*, limit_bytes=LIMIT, command=COMMAND, **changes):
        detection = make_detection(**changes)
        problem, sizes = Problem.of(detection, limit_bytes), Sizes.of(detection)
        return Tuned(problem=problem, sizes=sizes, command=command)

    return make


@pytest.fixture
def store(tmp_path, make_tuned, make_detection, make_trial):
    """Keeps studies by name, each with a trial, which differ from the others in what is named."""

    def store(*, trials=1, **studies):
        for name, changes in studies.items():
            folder, tuned = StudyFolder(name, tmp_path), make_tuned(**changes)
            folder.prepare()
            folder.begin(tuned.problem, list(tuned.command), tuned.sizes)
            kept = TrialStore(folder.database, name, make_detection().space, tuned.problem.limit_bytes)
            for number in range(trials):
                kept.add(make_trial(number=number))

    return store


@pytest.fixture
def notes():
    """What is said about studies that are passed over."""
    return []


@pytest.fixture
def nearest(tmp_path, make_tuned, notes):
    """The study nearest to a problem, and in what it differs."""

    def nearest(**changes):
        found = find_nearest(make_tuned(**changes), StudyFolder("new", tmp_path), notes.append)
        return found and (found.name, *found.differences)

    return nearest


def test_the_nearest_batch_comes_first(store, nearest):
    """Twice the batch is nearer than a quarter of it, and the difference is told in words."""
    store(quarter={"batch": 8}, twice={"batch": 64})
    assert nearest() == ("twice", "batch 32, not 64")


def test_the_same_problem_is_nearest_of_all(store, nearest):
    """Nothing is told of it, whatever it is called."""
    store(alike={}, other={"batch": 33})
    assert nearest() == ("alike",)


def test_another_device_is_farther_than_another_batch(store, nearest):
    """Times of the same machine say more."""
    store(elsewhere={"device": OTHER_CARD}, smaller={"batch": 4})
    assert nearest() == ("smaller", "batch 32, not 4")


def test_sequences_of_another_length_are_another_problem(store, nearest):
    """A graph knows no lengths: the sizes of its first batch do."""
    store(short={"dims": {"batch": 32, "sequence": 64}})
    assert nearest(dims={"batch": 4, "sequence": 128}) == ("short", "sequence 128, not 64")


def test_the_size_of_the_first_batch_does_not_count(store, nearest):
    """The script's own batch before the target reached it is none of the problem's."""
    store(alike={"dims": {"batch": 4, "sequence": 64}})
    assert nearest(dims={"batch": 32, "sequence": 64}) == ("alike",)


def test_another_command_is_told_where_nothing_else_is(store, nearest):
    """The same graph under another optimizer is not the same problem."""
    store(adam={"command": ("python", "train.py", "--adam")})
    assert nearest() == ("adam", "another command")
    assert nearest(batch=16) == ("adam", "batch 16, not 32")


@pytest.mark.parametrize(
    "change",
    [{"plans": ()}, {"versions": {"torch": "2.13.0", "fake": "3.0", "backend": "fake"}}],
    ids=["plans", "fake"],
)
def test_other_plans_are_no_neighbour(store, nearest, change):
    """Plans of another graph, or of another ONNX Runtime, mean something else."""
    store(other=change)
    assert nearest() is None


def test_a_study_that_measured_nothing_tells_nothing(store, nearest):
    """A study that was stopped at its start gives way to one farther off."""
    store(trials=0, empty={})
    store(far={"batch": 512})
    assert nearest() == ("far", "batch 32, not 512")


@pytest.fixture
def ship(tmp_path, monkeypatch, store):
    """Has a study come with autorecompute, which differs from the others in what is named."""
    place = tmp_path / "shipped"
    place.mkdir()
    monkeypatch.setattr(sources, "shipped_folder", lambda: place)

    def ship(name, **changes):
        store(**{name: changes})
        folder = StudyFolder(name, tmp_path)
        (place / f"{name}.jsonl.gz").write_bytes(compress(dump(read_records(folder))))
        folder.path.rename(tmp_path / f".{name}")

    return ship


def test_a_shipped_study_is_a_source(ship, nearest):
    """Where nothing else has the same plans, what comes with autorecompute is started from."""
    ship("far", batch=8)
    name, *differences = nearest()
    assert (name, differences[0]) == ("far", "batch 32, not 8")
    assert nearest(plans=()) is None


def test_a_shipped_study_is_never_an_answer(ship, nearest):
    """Though it may look like the same problem, its machine is another."""
    ship("alike")
    name, *differences = nearest()
    assert (name, len(differences)) == ("alike", 1)


def test_own_studies_come_before_shipped_ones(ship, store, nearest):
    """What was measured here says more, however far off."""
    ship("alike")
    store(own={"batch": 512})
    assert nearest() == ("own", "batch 32, not 512")


def test_a_shipped_study_that_is_broken_is_passed_over(ship, tmp_path, nearest, notes):
    """It is not the new one's fault, and is told in a line."""
    ship("far", batch=8)
    (tmp_path / "shipped" / "a.jsonl.gz").write_bytes(b"broken")
    assert nearest()[0] == "far"
    assert [note.partition(":")[0] for note in notes] == ["study a is passed over"]


DAMAGES = {
    "study.json": "[" * 200_000,
    "result.json": '{"versions": {}}',
    "race.json": "[" * 200_000,
    "analysis.json": "[" + "[]," * 3_000_000 + "[]]",
    "study.db": "no database",
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_study_stops_no_other(store, tmp_path, nearest, notes, name):
    """The next nearest is started from, and one line says which file of the damaged one is wrong."""
    store(alike={}, far={"batch": 8})
    (tmp_path / "alike" / name).write_text(DAMAGES[name])
    assert nearest() == ("far", "batch 32, not 8")
    assert len(notes) == 1
    assert notes[0].startswith(f"study alike is passed over: {tmp_path / 'alike' / name} cannot be ")
    assert "\n" not in notes[0]


def test_what_is_shipped_can_be_read():
    """Each archive is whole, small, about plans of ONNX Runtime 1.19.2, and brings nothing along but configs."""
    archives = sorted(sources.shipped_folder().glob(sources.ARCHIVE_PATTERN))
    trusted = Trusted(knobs={ORTMODULE: frozenset()})
    assert archives
    for file in archives:
        records = read_archive(file)
        require_trusted(records, trusted)
        assert records.result is not None
        assert records.result.best is not None
        assert records.head.problem.plan_versions == {"onnxruntime": "1.19.2"}
        assert file.stat().st_size < 200_000
        # Reading it has changed nothing: it is written with the verdict that its comparison bears.
        *_, told, _ = map(json.loads, gzip.decompress(file.read_bytes()).splitlines())
        assert told["result"]["verdict"] == records.result.verdict
