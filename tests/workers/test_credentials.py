"""The password of a storage is known to the database's driver, and is written nowhere, whatever goes wrong.

That no file of a test has it is checked after every test of this folder (``conftest.py``), those of
faults among them.
"""

import os
import subprocess
import sys
from urllib.parse import quote

import pytest

from workers.processes import MEASURED, ROOT, Worker
from workers.server import PASSWORD, QUOTED_PASSWORD, USER, free_port, url_of

WRONG = "another-secret"
PRINTING = "import os; print(dict(os.environ), flush=True)"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda url: url.replace(QUOTED_PASSWORD, WRONG), "password authentication failed"),
        (lambda url: url + "-missing", "does not exist"),
        (lambda url: url.replace("127.0.0.1:", "127.0.0.1:port"), "--storage"),
        (lambda url: url.rpartition(":")[0] + f":{free_port()}/nothing", "refused"),
        (lambda url: url.replace("127.0.0.1", "nowhere.invalid"), "nowhere.invalid"),
        (lambda url: url + "?no_such_option=1", "no_such_option"),
        (lambda url: url.replace("postgresql", "mysql"), "--storage"),
    ],
    ids=["wrong password", "no database", "no port", "no server", "no host", "no option", "no dialect"],
)
def test_what_is_refused_does_not_tell_it(server, database, tmp_path, change, word):
    """Whatever is wrong with a URL, the command ends with a sentence that has no password in it."""
    command = [sys.executable, "-m", "autorecompute", "tune", "train.py", "--storage"]
    (tmp_path / "train.py").touch()
    with (tmp_path / "said").open("w") as said:
        done = subprocess.run(
            [*command, change(url_of(database, server.port))],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=said,
            stderr=said,
            check=False,
        )
    assert done.returncode in {2, 3}
    text = (tmp_path / "said").read_text()
    assert word in text
    assert "Traceback" not in text
    assert WRONG not in text


def test_a_script_does_not_see_the_variable(server, database, tmp_path):
    """The script that is tuned does not inherit the storage that its tuner was given in a variable."""
    (tmp_path / "train.py").write_text(PRINTING)
    storage = url_of(database, server.port)
    with (tmp_path / "said").open("w") as said:
        subprocess.run(
            [sys.executable, "-m", "autorecompute", "tune", "train.py", "--memory-limit", "1GiB"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "AUTORECOMPUTE_STORAGE": storage},
            stdout=said,
            stderr=said,
            check=False,
        )
    logs = list(tmp_path.glob("studies/*/workers/**/*.log"))
    assert any("PYTHONPATH" in log.read_text() for log in logs), (tmp_path / "said").read_text()


@pytest.mark.parametrize("source", ["variable", "file", "query"])
def test_the_password_may_come_from_elsewhere(server, database, tmp_path, source):
    """PGPASSWORD, a password file and the URL's query do as well."""
    place = f"127.0.0.1:{server.port}/{database}"
    storage, environment = f"postgresql://{USER}@{place}", {}
    if source == "variable":
        environment = {"PGPASSWORD": PASSWORD}
    elif source == "query":
        storage += f"?password={quote(PASSWORD, safe='')}"
    else:
        # Outside of the folder that is searched.
        file = tmp_path.parent / f"{tmp_path.name}.pgpass"
        escaped = PASSWORD.replace(":", r"\:")
        file.write_text(f"127.0.0.1:{server.port}:*:{USER}:{escaped}\n")
        file.chmod(0o600)
        environment = {"PGPASSFILE": str(file)}
    worker = Worker(storage, tmp_path / "worker", "--max-trials", 1, environment=environment)
    assert worker.wait() in {0, 4}, worker.talk
    assert worker.configs(MEASURED)
