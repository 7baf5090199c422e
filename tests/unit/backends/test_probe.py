import subprocess
import sys
from pathlib import Path

import pytest

import autorecompute

OPTIONS = """
import os

class _RuntimeOptions:
    def __init__(self):
        self.memory_optimization_level = 0
        self.recompute_probe_config = "1:0"
        self._override_from_env_vars()

    def _override_from_env_vars(self):
        self.memory_optimization_level = int(os.getenv("ORTMODULE_MEMORY_OPT_LEVEL", "0"))
        if self.memory_optimization_level:
            self.recompute_probe_config = "1:1"
"""
SAYS = "from onnxruntime.training.ortmodule import options; print(options._RuntimeOptions().recompute_probe_config)"
HOOKS = "import sys; print(any('autorecompute' in type(finder).__module__ for finder in sys.meta_path))"
IMPORTED = "import sys; print('onnxruntime' in sys.modules)"
INSTALLS = "from autorecompute.backends.ortmodule import adapter; print(adapter.install_probe_config())"


@pytest.fixture
def python(tmp_path):
    package = tmp_path / "onnxruntime" / "training" / "ortmodule"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "options.py").write_text(OPTIONS)
    path = f"{tmp_path}:{Path(autorecompute.__file__).parent.parent}"

    def python(*statements, **variables):
        command = [sys.executable, "-c", "; ".join(statements)]
        environment = {"PYTHONPATH": path, **variables}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.split()

    return python


ASKED = {"AUTORECOMPUTE_ORT_PROBE": "1:1"}
AT_LEVEL_1 = {"AUTORECOMPUTE_ORT_PROBE": "1:0", "ORTMODULE_MEMORY_OPT_LEVEL": "1"}
IMPORTS = "import onnxruntime.training.ortmodule.options"
CASES = {
    "the variable decides where it is set": ([INSTALLS, SAYS], ASKED, ["True", "1:1"]),
    "without the variable nothing is touched": ([INSTALLS, HOOKS, SAYS], {}, ["False", "False", "1:0"]),
    "a level looks within layers whatever the variable says": ([INSTALLS, SAYS], AT_LEVEL_1, ["True", "1:1"]),
    "options that were imported before are reached": (
        [IMPORTS, INSTALLS, INSTALLS, SAYS],
        ASKED,
        ["True", "True", "1:1"],
    ),
    "ORTModule is not imported for it": ([INSTALLS, IMPORTED], ASKED, ["True", "False"]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_variable_of_ours_reaches_an_option_of_ortmodules(python, name):
    statements, variables, told = CASES[name]
    assert python(*statements, **variables) == told
