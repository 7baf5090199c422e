"""Tables: from a journal to a packed file and back."""

import gzip
import itertools
import json
import sys

import jsonschema
import pytest

import tables
from autorecompute.plans import Config


def test_a_packed_table_says_what_the_journal_said(write_journal, make_machine, tmp_path):
    """Every recording, and all that a search may know before its first trial, comes back from the file."""
    machine = make_machine(noise=0.1, rounds=2)
    table = tables.load(write_journal(machine, list(machine.rows())))
    tables.save(table, tmp_path)
    again = tables.load(tmp_path / "model.json.gz")
    assert again.recordings == table.recordings
    assert {config: len(found) for config, found in again.recordings.items()} == dict.fromkeys(machine.configs, 2)
    assert (again.detection, again.memory, again.space) == (table.detection, table.memory, machine.space)
    assert again.dims == {"batch": 2}


def test_the_same_table_is_the_same_file(make_table, tmp_path):
    """Packing again changes no byte: a repository is not to grow by it."""
    table = make_table()
    written = []
    for _ in range(2):
        tables.save(table, tmp_path)
        written.append((tmp_path / "model.json.gz").read_bytes())
    assert written[0] == written[1]


def test_configs_of_plans_that_were_left_out_are_no_part(make_table):
    """What was recorded with a plan that no search can choose here is not there to be found."""
    table = make_table()
    assert set(table.plain["plans"]) < {plan.id for plan in table.detection.plans}
    assert table.detection.space.all_on not in table.recordings
    assert set(table.space.presets.values()) <= set(table.recordings)


def test_recordings_know_which_share_a_reference(make_table, make_machine):
    """A window ends where the reference was measured again."""
    machine = make_machine(pace=1.01)
    windows = {}
    for found in make_table(machine, list(machine.rows())).recordings.values():
        for recording in found:
            windows.setdefault(recording.window, set()).add(recording.reference_seconds)
    assert len(windows) == 8
    assert all(len(references) == 1 for references in windows.values())


def test_a_journal_can_be_read_while_it_grows(write_journal):
    """A line that is not whole yet is left for later."""
    file = write_journal()
    whole = tables.load(file)
    with file.open("a") as journal:
        journal.write('{"config": "ab')
    assert tables.load(file).recordings == whole.recordings


@pytest.mark.parametrize(
    ("column", "values"), [("seconds", [[-1.0]]), ("peak_bytes", ["much"]), ("reference_seconds", None)]
)
def test_what_is_no_table_is_refused(make_table, tmp_path, column, values):
    """The schema is held against every packed file that is read."""
    plain = json.loads(json.dumps(make_table().plain))
    plain["measured"][column] = values
    file = tmp_path / "broken.json.gz"
    file.write_bytes(gzip.compress(json.dumps(plain).encode()))
    with pytest.raises(jsonschema.ValidationError):
        tables.load(file)


def test_what_is_kept_fits_its_schema():
    """Every table in the repository can be read, has its presets, and is what the recorder's plans span."""
    for name in tables.packed_names():
        table = tables.load(tables.TABLES / f"{name}{tables.SUFFIX}")
        assert set(table.space.presets.values()) <= set(table.recordings)
        if table.plain["is_sampled"]:
            continue
        # Plans with a row in common have fewer sets of rows than sets of plans.
        subsets = itertools.product((False, True), repeat=len(table.space.plans))
        assert {Config.of(itertools.compress(table.space.plans, on)) for on in subsets} <= set(table.recordings)


def test_an_unfinished_recording_is_not_packed(write_journal, make_machine, monkeypatch, capsys):
    """Searches would be told that configs which nobody measured do not exist."""
    machine = make_machine()
    file = write_journal(machine, list(machine.rows())[:-3])
    monkeypatch.setattr(tables, "TABLES", file.parent)
    monkeypatch.setattr(sys, "argv", ["tables.py", "model"])
    with pytest.raises(SystemExit):
        tables.main()
    assert "model: 3 configs were not measured yet" in capsys.readouterr().err
    assert list(file.parent.glob(f"*{tables.SUFFIX}")) == []


def test_none_is_none(make_table):
    """The config without recompute is among the recordings under its own identity."""
    assert [config for config in make_table().recordings if config.is_none] == [Config()]
