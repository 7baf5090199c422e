"""The package as a user gets it: built into a wheel, installed into an environment that has nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[2]


def pytest_addoption(parser):
    parser.addoption("--for-python", default=sys.executable, metavar="PYTHON", help="install the wheel for this Python")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.check_call([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, CLONE])
    (built,) = folder.glob("autorecompute-*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory, request):
    environment = tmp_path_factory.mktemp("environment")
    subprocess.check_call([request.config.getoption("--for-python"), "-m", "venv", environment])
    install = [environment / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.check_call([*install, "--constraint", CLONE / "constraints.txt", f"{wheel}[report]"])
    return environment / "bin"


@pytest.fixture
def call(installed, tmp_path):
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(program, *arguments):
        command = [installed / program, *arguments]
        return subprocess.run(command, cwd=tmp_path, env=outside, capture_output=True, text=True, check=False)

    return call
