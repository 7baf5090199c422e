"""The package as a user gets it: built into a wheel, installed into an environment that has nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[2]


def pytest_addoption(parser):
    """Which Python the wheel is installed for."""
    parser.addoption("--for-python", default=sys.executable, metavar="PYTHON", help="install the wheel for this Python")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel of this clone."""
    folder = tmp_path_factory.mktemp("wheel")
    _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, CLONE])
    (built,) = folder.glob("autorecompute-*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory, request):
    """The programs of an environment with the wheel and what the report needs."""
    environment = tmp_path_factory.mktemp("environment")
    _run([request.config.getoption("--for-python"), "-m", "venv", environment])
    constraints = ["--constraint", CLONE / "constraints.txt"]
    _run([environment / "bin" / "python", "-m", "pip", "install", "--quiet", *constraints, f"{wheel}[report]"])
    return environment / "bin"


@pytest.fixture
def call(installed, tmp_path):
    """Calls a program of that environment in an empty folder, without the path to this clone."""
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(program, *arguments):
        command = [installed / program, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=outside, capture_output=True, text=True, timeout=120, check=False
        )

    return call


def _run(command):
    subprocess.run(command, check=True, timeout=600)
