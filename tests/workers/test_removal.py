import os
import subprocess
import sys
from pathlib import Path

import optuna

from autorecompute.studies.shared_study import SharedStudy
from autorecompute.studies.storage import parse_storage
from workers.server import PASSWORD, USER

OPTUNA = Path(sys.executable).with_name("optuna")
"""Its command; the folder that it is in need not be on the path."""


def test_a_shared_study_is_removed_by_optuna(server, database, database_url, tmp_path):
    """The password need not be in the command."""
    for name in ("bert", "gpt"):
        SharedStudy(parse_storage(database_url), name).close()
    bare = f"postgresql+psycopg://{USER}@127.0.0.1:{server.port}/{database}"
    subprocess.run(
        [OPTUNA, "delete-study", "--storage", bare, "--study-name", "bert"],
        cwd=tmp_path,
        env=os.environ | {"PGPASSWORD": PASSWORD},
        check=True,
    )
    left = optuna.storages.RDBStorage(bare, engine_kwargs={"connect_args": {"password": PASSWORD}})
    assert optuna.get_all_study_names(left) == ["gpt"]
    left.engine.dispose()
