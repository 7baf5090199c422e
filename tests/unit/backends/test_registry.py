"""Training systems by name."""

import subprocess
import sys

import pytest

from autorecompute.backends import registry

WITHOUT_TORCH = """
import sys, pathlib
from autorecompute.backends import registry
from autorecompute.errors import SetupError
sys.modules["torch"] = None
try:
    registry.worker(sys.argv[1], pathlib.Path())
except SetupError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["torch", registry.AUTO])
def test_a_system_that_is_not_installed_is_told_in_a_sentence(name):
    """Where torch cannot be imported, no traceback of ours is taken for the script's."""
    asked = [sys.executable, "-c", WITHOUT_TORCH, name]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert "needs the package torch, and " in told
    assert "does not have it. Install" in told
