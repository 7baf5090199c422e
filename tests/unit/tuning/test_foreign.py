import dataclasses
import json

import pytest

from autorecompute.plans import Config
from autorecompute.studies import StudyFolder
from autorecompute.studies.records import read_records, write_records


@pytest.fixture
def bring(make_root, tune_in):
    def bring(how):
        root = make_root()
        solved = tune_in(root, name="solved", max_trials=40)
        answer = solved.run()
        records = read_records(solved.folder)
        file = solved.folder.path / "study.json"
        if how == "imported":
            theirs = StudyFolder("theirs", root / "studies")
            head = dataclasses.replace(records.head, study="theirs")
            write_records(dataclasses.replace(records, head=head), theirs)
            solved.folder.path.rename(root / "elsewhere")
        else:
            file.write_text(json.dumps({**json.loads(file.read_text()), "machine": "0" * 16}))
        return root, answer

    return bring


@pytest.mark.parametrize(
    ("how", "told"), [("imported", "it was imported"), ("copied", "it was measured on another machine")]
)
def test_a_tuning_confirms_here_what_was_found_elsewhere(bring, tune_in, how, told):
    root, answer = bring(how)
    tuning = tune_in(root, name="mine", max_trials=2)
    result = tuning.run()
    assert result.transferred_from.differences == (told,)
    assert result.best.config == answer.best.config
    assert tuning.tried == [Config(), answer.best.config]
    assert (answer.best.config, 32) in tuning.bench.watched
