"""That no file of a test has the password is checked after every test of this folder (``conftest.py``)."""

import os
import subprocess
import sys
from pathlib import Path

import optuna
import pytest

from autorecompute.studies.shared_study import SharedStudy
from autorecompute.studies.storage import parse_storage
from workers.processes import ROOT, Worker
from workers.server import PASSWORD, QUOTED_PASSWORD, USER, free_port

WRONG = "another-secret"


@pytest.fixture
def tune(tmp_path):
    """Tunes a script with these options and variables: the exit code, and what is said."""

    def tune(*options, script="", **variables):
        (tmp_path / "train.py").write_text(script)
        command = [sys.executable, "-m", "autorecompute", "tune", "train.py", *options]
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
        with (tmp_path / "said").open("w") as said:
            done = subprocess.run(command, cwd=tmp_path, env=environment, stdout=said, stderr=said, check=False)
        return done.returncode, (tmp_path / "said").read_text()

    return tune


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda url: url.replace(QUOTED_PASSWORD, WRONG), "password authentication failed"),
        (lambda url: url + "-missing", "does not exist"),
        (lambda url: url.replace("127.0.0.1:", "127.0.0.1:port"), "--storage"),
        (lambda url: url.rpartition(":")[0] + f":{free_port()}/nothing", "refused"),
        (lambda url: url.replace("127.0.0.1", "nowhere.invalid"), "nowhere.invalid"),
        (lambda url: url + "?no_such_option=1", "no_such_option"),
        (lambda url: url.replace("postgresql", "oracle"), "--storage"),
    ],
    ids=["wrong password", "no database", "no port", "no server", "no host", "no option", "no dialect"],
)
def test_a_sentence_on_what_is_refused_does_not_tell_the_password(database_url, tune, change, word):
    code, text = tune("--storage", change(database_url))
    assert code in {2, 3}
    assert word in text
    assert "Traceback" not in text
    assert WRONG not in text


def test_a_script_does_not_see_the_variable_with_the_storage(database_url, tune, tmp_path):
    printing = "import os; print(dict(os.environ), flush=True)"
    _, text = tune("--memory-limit", "1GiB", script=printing, AUTORECOMPUTE_STORAGE=database_url)
    logs = list(tmp_path.glob("studies/*/workers/**/*.log"))
    assert any("PYTHONPATH" in log.read_text() for log in logs), text


@pytest.mark.parametrize("source", ["variable", "file", "query"])
def test_the_password_may_come_from_elsewhere(server, database, tmp_path, source):
    file = tmp_path.parent / f"{tmp_path.name}.pgpass"  # outside of the folder that is searched
    escaped = PASSWORD.replace(":", r"\:")
    file.write_text(f"127.0.0.1:{server.port}:*:{USER}:{escaped}\n")
    file.chmod(0o600)
    query = f"?password={QUOTED_PASSWORD}" if source == "query" else ""
    environment = {"variable": {"PGPASSWORD": PASSWORD}, "file": {"PGPASSFILE": str(file)}, "query": {}}[source]
    storage = f"postgresql://{USER}@127.0.0.1:{server.port}/{database}{query}"
    worker = Worker(storage, tmp_path / "worker", "--max-trials", "1", **environment)
    assert worker.finished.code in {0, 4}, worker.finished.stderr
    assert worker.configs


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
