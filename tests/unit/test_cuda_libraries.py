"""ORT's CUDA libraries, found among NVIDIA's wheels: real libraries of those names, of no content."""

import json
import shutil
import subprocess
import sys

import pytest

from autorecompute.backends.findings import Status
from autorecompute.backends.ortmodule import diagnose
from autorecompute.backends.ortmodule.cuda_libraries import of_build

VERSIONS = ["11.8", "12.2"]

PRELOADS = """
import ctypes, json, sys, sysconfig
sysconfig.get_path = lambda name: sys.argv[1]
from autorecompute.backends.ortmodule import cuda_libraries
libraries = cuda_libraries.of_build(sys.argv[2])
loaded, lacking = cuda_libraries.preload(libraries), cuda_libraries.lacking(libraries)
for name in loaded:
    ctypes.CDLL(name)  # as the loader finds it for ORT: by its name alone
print(json.dumps([loaded, lacking]))
"""


@pytest.fixture
def make_wheels(tmp_path):
    """Makes a place for packages where all wheels of a CUDA version but one are installed."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "the tests build ORT's extensions, too"

    def make(version, missing):
        for name, origin in of_build(version).items():
            if origin.folder != missing:
                library = tmp_path / "nvidia" / origin.folder / "lib" / name
                library.parent.mkdir(parents=True, exist_ok=True)
                subprocess.run(
                    [compiler, "-shared", f"-Wl,-soname,{name}", "-o", str(library), "-xc", "/dev/null"], check=True
                )
        return tmp_path

    return make


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_loader_does_not_find_comes_from_the_wheels(make_wheels, version):
    """After loading from the wheels each library is found by its name; one without a wheel is lacking."""
    command = [sys.executable, "-c", PRELOADS, str(make_wheels(version, "cufft")), version]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    loaded, lacking = json.loads(found.stdout)
    assert ["cufft" in name for name in lacking] == [True]
    assert set(loaded) == set(of_build(version)) - set(lacking)


@pytest.fixture
def look(monkeypatch):
    """Looks for the libraries of an ORT that was built for a CUDA version, where torch sees a GPU."""

    def look(version):
        monkeypatch.setattr(diagnose, "build_information", lambda: {"cuda_version": version})
        monkeypatch.setattr(diagnose, "_count_gpus", lambda: 1)
        (finding,) = diagnose._check_cuda_libraries()
        return finding

    return look


@pytest.mark.parametrize("version", VERSIONS)
def test_libraries_of_the_build_are_asked_for(look, version):
    """The wheels to install are those of the CUDA that ORT was built for, each named once."""
    finding, major = look(version), version.partition(".")[0]
    assert finding.status is Status.MISSING
    wheels = finding.remedy.partition(" install ")[2].split()
    assert len(set(wheels)) == len(wheels) > 3
    assert all(f"-cu{major}" in wheel for wheel in wheels)


def test_an_unknown_cuda_keeps_nobody_from_training(look):
    """Where nobody knows what a build needs, nothing is called missing."""
    assert look("14.1").status is Status.OK
