"""A variable of ours reaches an option of ORTModule's, in a package that has its shape."""

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
INSTALLS = "from autorecompute.backends.ortmodule import probe; print(probe.install())"


@pytest.fixture
def python(tmp_path):
    """Runs statements where ORTModule is a package of one file; gives what they print."""
    package = tmp_path / "onnxruntime" / "training" / "ortmodule"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "options.py").write_text(OPTIONS)
    path = f"{tmp_path}:{Path(autorecompute.__file__).parent.parent}"

    def python(*statements, **variables):
        command = [sys.executable, "-c", "; ".join(statements)]
        environment = {"PYTHONPATH": path, **variables}
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60)
        return done.stdout.split()

    return python


def test_the_variable_decides_where_it_is_set(python):
    """Options that are made after the adapter ran look for plans as the variable says."""
    assert python(INSTALLS, SAYS, AUTORECOMPUTE_ORT_PROBE="1:1") == ["True", "1:1"]


def test_without_the_variable_nothing_is_touched(python):
    """No import hook is left behind, and ORT's own choice stands."""
    hooks = "import sys; print(any('autorecompute' in type(finder).__module__ for finder in sys.meta_path))"
    assert python(INSTALLS, hooks, SAYS) == ["False", "False", "1:0"]


def test_a_level_looks_within_layers_whatever_the_variable_says(python):
    """ORT's levels choose their own probe."""
    variables = {"AUTORECOMPUTE_ORT_PROBE": "1:0", "ORTMODULE_MEMORY_OPT_LEVEL": "1"}
    assert python(INSTALLS, SAYS, **variables) == ["True", "1:1"]


def test_options_that_were_imported_before_are_reached(python):
    """It does not matter who came first, nor how often it is said."""
    before = "import onnxruntime.training.ortmodule.options"
    assert python(before, INSTALLS, INSTALLS, SAYS, AUTORECOMPUTE_ORT_PROBE="1:1") == ["True", "True", "1:1"]


def test_ortmodule_is_not_imported_for_it(python):
    """A script that never comes to ORTModule pays nothing."""
    imported = "import sys; print('onnxruntime' in sys.modules)"
    assert python(INSTALLS, imported, AUTORECOMPUTE_ORT_PROBE="1:1") == ["True", "False"]
