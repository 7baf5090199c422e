import json
import re


def test_each_fold_trains_as_the_first_one_and_can_be_profiled_and_one_that_the_script_drops_is_dropped(workplace):
    trained = workplace.train("folds.py")
    assert trained.code == 0, trained.stderr
    told = {}
    for name, value in re.findall(r"^(\w[\w ]*) ([\[tf].*)$", trained.stdout, re.MULTILINE):
        told.setdefault(name, []).append(json.loads(value))
    folds = [[8], [8], *([[], [8]] * 3)]
    assert told == {"earlier folds": [[False, False]], "fold": folds, "profiled": [True]}
