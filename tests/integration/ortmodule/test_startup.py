import os
import subprocess
import sys

import pytest

from autorecompute.backends.ortmodule.controller import IMPORT_HOOK
from autorecompute.startup import FOLDER, HOOKS_VARIABLE, prepend_to_python_path
from workplace import HANG_SECONDS

TRAIN = """
import torch
from onnxruntime.training.ortmodule import ORTModule

torch.manual_seed(0)  # of eight units all may be dead, once in a while
model = ORTModule(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = model.get_parameter("0.weight").detach().clone()
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
assert model._torch_module._execution_manager(True)._execution_agent is not None, "this ran in plain PyTorch"
assert not torch.equal(before, model.get_parameter("0.weight"))
print("trained")
"""

NEEDS_NO_MODULE = """
import sys
assert not {name.partition(".")[0] for name in sys.modules} & {"torch", "onnxruntime", "autorecompute"}
"""


@pytest.fixture
def python(tmp_path):
    def run(program, *behind, path=None):
        script = tmp_path / "train.py"
        script.write_text(program)
        path = prepend_to_python_path(os.pathsep.join(map(str, behind))) if path is None else path
        environment = {**os.environ, "PYTHONPATH": path, "ORTMODULE_FALLBACK_POLICY": "FALLBACK_DISABLE"}
        environment[HOOKS_VARIABLE] = IMPORT_HOOK
        options = {"capture_output": True, "text": True, "timeout": HANG_SECONDS}
        return subprocess.run([sys.executable, str(script)], env=environment, **options, check=False)

    return run


def write_sitecustomize(folder, program):
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(program)
    return folder


def test_ortmodule_trains_without_a_line_in_the_script(python):
    process = python(TRAIN)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == ["trained"]


def test_a_process_without_ortmodule_imports_nothing_more(python):
    process = python(NEEDS_NO_MODULE)
    assert (process.returncode, process.stderr) == (0, "")


def test_the_first_shadowed_sitecustomize_still_runs(python, tmp_path):
    text = "print('loaded', __name__); MINE = 1"
    first, second = (write_sitecustomize(tmp_path / name, text) for name in ("first", "second"))
    process = python("import sitecustomize; print(sitecustomize.__file__, sitecustomize.MINE)", first, second)
    assert process.stdout.splitlines() == ["loaded sitecustomize", f"{first / 'sitecustomize.py'} 1"]


def test_the_adapter_is_in_place_although_a_shadowed_sitecustomize_fails(python, tmp_path):
    theirs = write_sitecustomize(tmp_path / "theirs", "raise RuntimeError('theirs')")
    program = "import sys; print([it for it in sys.meta_path if type(it).__module__ == 'sitecustomize'])"
    with_folder, without = python(program, theirs), python(program, path=str(theirs))
    assert with_folder.stderr == without.stderr
    assert len(with_folder.stdout) > len(without.stdout)


def test_another_way_to_the_same_folder_ends(python, tmp_path):
    (tmp_path / "link").symlink_to(FOLDER)
    process = python("print('ran')", tmp_path / "link")
    assert (process.stdout.split(), process.stderr) == (["ran"], "")


def test_a_sitecustomize_in_front_that_leads_here_runs_once(python, tmp_path):
    chain = "import runpy; print('front'); runpy.run_path({!r}, run_name='sitecustomize')"
    front = write_sitecustomize(tmp_path / "front", chain.format(str(FOLDER / "sitecustomize.py")))
    process = python("print('ran')", path=os.pathsep.join([str(front), str(FOLDER)]))
    assert (process.stdout.split(), process.stderr) == (["front", "ran"], "")


def test_an_environment_without_the_tuner_is_told(python, tmp_path):
    package = tmp_path / "packages" / "onnxruntime" / "training" / "ortmodule"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    hide = "import sys; sys.modules['autorecompute'] = None\n"
    process = python(hide + "import onnxruntime.training.ortmodule; print('ran')", tmp_path / "packages")
    assert process.stdout.split() == ["ran"]
    assert len(process.stderr.splitlines()) == 1
    assert "autorecompute" in process.stderr
