import os
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage

from autorecompute.studies.sharing import parse_storage
from autorecompute.studies.sharing.opening import open_study
from workers.server import PASSWORD, USER

OPTUNA = Path(sys.executable).with_name("optuna")
"""Its command; the folder that it is in need not be on the path."""


def begin(url, name):
    _, storage = open_study(url, name)
    names = sorted(optuna.get_all_study_names(storage))
    if isinstance(storage, RDBStorage):
        storage.remove_session()
        storage.engine.dispose()
    return names


@pytest.mark.parametrize("kind", ["journal", "postgresql"])
def test_a_shared_study_is_removed_by_optuna(server, database, storages, tmp_path, kind):
    """The password need not be in the command."""
    url = parse_storage(storages[kind])
    for name in ("bert", "gpt"):
        begin(url, name)
    told = {
        "journal": ["--storage", str(url.journal), "--storage-class", "JournalFileBackend"],
        "postgresql": ["--storage", f"postgresql+psycopg://{USER}@127.0.0.1:{server.port}/{database}"],
    }
    subprocess.run(
        [OPTUNA, "delete-study", *told[kind], "--study-name", "bert"],
        cwd=tmp_path,
        env=os.environ | {"PGPASSWORD": PASSWORD},
        check=True,
    )
    assert begin(url, "vit") == ["gpt", "vit"]
