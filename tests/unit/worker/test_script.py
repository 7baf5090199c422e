import json
import subprocess
import sys

import pytest

from autorecompute.worker.script import TRACE_LINES, find_module, last_lines, run_as_main

TELL = """
import json, sys
import sibling

class Thing:
    size: int

print(json.dumps({
    "argv": sys.argv, "name": __name__, "path": sys.path[0], "sibling": sibling.__file__, "file": __file__,
    "module": Thing.__module__, "is main": sys.modules["__main__"].Thing is Thing,
    "annotation": repr(Thing.__annotations__["size"]),
}))
"""
RUN, RUN_MODULE = (
    ["-c", f"import sys; from autorecompute.worker.script import {run}; {run}(sys.argv[1], sys.argv[2:])"]
    for run in ("run_as_main", "run_module_as_main")
)


@pytest.fixture
def project(tmp_path):
    """A folder with a script, the module beside it, and a link to the script from elsewhere."""
    folder = tmp_path / "project" / "src"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(TELL)
    (folder / "sibling.py").write_text("")
    (tmp_path / "project" / "link.py").symlink_to(folder / "train.py")
    return tmp_path / "project"


def tell(how, script, folder):
    command = [sys.executable, *how, str(script), "--epochs", "1", "two words"]
    return json.loads(subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("script", ["src/train.py", "./src/train.py", "link.py", "{project}/src/train.py"])
def test_a_script_sees_what_python_would_show_it(project, script):
    script = script.format(project=project)
    assert tell(RUN, script, project) == tell([], script, project)


def test_a_safe_module_path_stays_as_it_is(project, monkeypatch):
    """Under ``PYTHONSAFEPATH`` the first entry is the user's own: the script's folder does not take its place."""
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("PYTHONPATH", f"{project / 'src'}:{':'.join(path for path in sys.path if path)}")
    (project / "elsewhere").mkdir()
    script = project / "elsewhere" / "train.py"
    script.write_text(TELL)
    assert tell(RUN, script, project) == tell([], script, project)


TELL_MODULE = """
import json, sys
from . import sibling

class Thing:
    pass

print(json.dumps({
    "argv": sys.argv, "name": __name__, "path": sys.path[0], "sibling": sibling.__name__, "file": __file__,
    "package": __package__, "spec": __spec__.name, "is main": sys.modules["__main__"].Thing is Thing,
}))
"""


@pytest.mark.parametrize("name", ["package.train", "package"])
def test_a_module_sees_what_python_would_show_it(tmp_path, name):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sibling.py").write_text("")
    for file in ("train.py", "__main__.py"):
        (package / file).write_text(TELL_MODULE)
    assert tell(RUN_MODULE, name, tmp_path) == tell(["-m"], name, tmp_path)


@pytest.mark.parametrize("name", ["package.gone", "gone.train", "sys"])
def test_a_module_that_cannot_run_is_an_import_error(tmp_path, monkeypatch, name):
    (tmp_path / "package").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ImportError, match="No module named"):
        find_module(name)


def test_a_trace_begins_in_the_script_keeps_its_end_and_is_there_where_it_cannot_be_read(tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    # Processes that later tests spawn would run the script again.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def trace_of(program):
        script.write_text(program)
        with pytest.raises(BaseException) as caught:  # noqa: PT011  (whatever the script raises)
            run_as_main(str(script), [])
        return last_lines(caught.value, str(script))

    lines = trace_of("def train():\n    raise ValueError('no data')\n\ntrain()\n")
    assert lines[-1] == "ValueError: no data"
    assert 'train.py", line 4, in <module>' in lines[1]
    assert 'train.py", line 2, in train' in lines[3]
    assert not any("runpy" in line or "script.py" in line for line in lines)
    lines = trace_of("import json\n\ndef f(n):\n    return n and f(n - 1) or json.loads('{')\n\nf(30)\n")
    assert len(lines) == TRACE_LINES
    assert lines[-1].startswith("json.decoder.JSONDecodeError")
    lines = trace_of("print('hello'\n")
    assert lines[-1].startswith("SyntaxError")
    assert any('train.py", line 1' in line for line in lines)


def test_a_script_that_changes_its_folder_keeps_its_trace(project):
    """Its own frames are known by the path that it had when it began."""
    (project / "src" / "train.py").write_text("import os\n\nos.chdir('/')\nraise ValueError('no data')\n")
    program = (
        "import sys\nfrom autorecompute.worker.script import last_lines, run_as_main\n"
        "try:\n    run_as_main('src/train.py', [])\n"
        "except ValueError as error:\n    print(*last_lines(error, 'src/train.py'), sep='\\n')\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=True)
    assert 'src/train.py", line 4, in <module>' in ran.stdout
