import gzip
import json

import pytest

from autorecompute.backends.ortmodule.controller import NAME as ORTMODULE
from autorecompute.studies import Problem, Sizes, StudyFolder, transfer
from autorecompute.studies.archive import dump, read_archive
from autorecompute.studies.importing import require_trusted
from autorecompute.studies.problem import Head
from autorecompute.studies.records import read_records
from autorecompute.studies.transfer import find_nearest
from autorecompute.training_job import Device
from autorecompute.units import GIB, MIB
from stand_ins.studies import COMMAND, keep_study

LIMIT = 900 * MIB
OTHER_CARD = Device(kind="cuda", name="Some Card", total_bytes=16 * GIB)


@pytest.fixture
def store(tmp_path, make_detection, make_trial):
    def store(*, has_trials=True, **studies):
        for name, changes in studies.items():
            kept = {"command": changes.get("command", COMMAND), "limit_bytes": LIMIT}
            kept["trials"] = [make_trial()] if has_trials else []
            found = {part: value for part, value in changes.items() if part != "command"}
            keep_study(tmp_path, make_detection(**found), name=name, **kept)

    return store


@pytest.fixture
def notes():
    return []


@pytest.fixture
def nearest(tmp_path, make_detection, notes):
    def nearest(**changes):
        detection = make_detection(**changes)
        head = Head.of("new", COMMAND, Problem.of(detection, LIMIT), Sizes.of(detection))
        found = find_nearest(head, StudyFolder("new", tmp_path), notes.append)
        return found and (found[0].study, *found[0].differences)

    return nearest


ADAM, FAKE_3_0 = (*COMMAND, "--adam"), {"torch": "2.13.0", "fake": "3.0", "backend": "fake"}
NEAREST = {
    "the nearest batch": ({"quarter": {"batch": 8}, "twice": {"batch": 64}}, {}, ("twice", "batch 32, not 64")),
    "the same problem": ({"alike": {}, "other": {"batch": 33}}, {}, ("alike",)),
    "another batch before another device": (
        {"elsewhere": {"device": OTHER_CARD}, "smaller": {"batch": 4}},
        {},
        ("smaller", "batch 32, not 4"),
    ),
    "sequences of another length": (
        {"short": {"dims": {"batch": 32, "sequence": 64}}},
        {"dims": {"batch": 4, "sequence": 128}},
        ("short", "sequence 128, not 64"),
    ),
    "the first batch does not count": ({"alike": {"dims": {"batch": 4}}}, {"dims": {"batch": 32}}, ("alike",)),
    "another command": ({"adam": {"command": ADAM}}, {}, ("adam", "another command")),
    "other plans are no neighbour": ({"other": {"plans": ()}}, {}, None),
    "plans of another version are none": ({"other": {"versions": FAKE_3_0}}, {}, None),
}


@pytest.mark.parametrize("name", NEAREST)
def test_the_nearest_study_is_found_and_its_differences_told(store, nearest, name):
    studies, asked, answer = NEAREST[name]
    store(**studies)
    assert nearest(**asked) == answer


def test_a_study_that_measured_nothing_tells_nothing(store, nearest):
    store(has_trials=False, empty={})
    store(far={"batch": 512})
    assert nearest() == ("far", "batch 32, not 512")


@pytest.fixture
def ship(tmp_path, monkeypatch, store):
    place = tmp_path / "shipped"
    place.mkdir()
    monkeypatch.setattr(transfer, "shipped_folder", lambda: place)

    def ship(name, **changes):
        store(**{name: changes})
        folder = StudyFolder(name, tmp_path)
        (place / f"{name}.jsonl.gz").write_bytes(gzip.compress(dump(read_records(folder))))
        folder.path.rename(tmp_path / f".{name}")

    return ship


def test_a_shipped_study_is_a_source_after_all_own_ones_and_never_an_answer(ship, store, nearest):
    """Though it may look like the same problem, its machine is another."""
    ship("alike")
    name, *differences = nearest()
    assert (name, len(differences)) == ("alike", 1)
    assert nearest(batch=8)[:2] == ("alike", "batch 8, not 32")
    assert nearest(plans=()) is None
    store(own={"batch": 512})
    assert nearest() == ("own", "batch 32, not 512")


def test_a_shipped_study_that_is_broken_is_passed_over(ship, tmp_path, nearest, notes):
    ship("far", batch=8)
    (tmp_path / "shipped" / "a.jsonl.gz").write_bytes(b"broken")
    assert nearest()[0] == "far"
    assert [note.partition(":")[0] for note in notes] == ["study a is passed over"]


DAMAGES = {"study.json": "[" * 200_000, "analysis.json": "[" + "[]," * 3_000_000 + "[]]", "study.db": "no database"}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_study_stops_no_other(store, tmp_path, nearest, notes, name):
    store(alike={}, far={"batch": 8})
    (tmp_path / "alike" / name).write_text(DAMAGES[name])
    assert nearest() == ("far", "batch 32, not 8")
    assert len(notes) == 1
    assert notes[0].startswith(f"study alike is passed over: {tmp_path / 'alike' / name} cannot be ")
    assert "\n" not in notes[0]


def test_what_is_shipped_can_be_read():
    archives = sorted(transfer.shipped_folder().glob(transfer.ARCHIVE_PATTERN))
    trusted = {ORTMODULE: frozenset()}
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
