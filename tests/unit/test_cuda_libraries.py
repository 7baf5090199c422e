"""ORT's CUDA libraries, found among NVIDIA's wheels: real libraries of those names, of no content."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from autorecompute.backends.ortmodule.cuda_libraries import LIBRARIES, wheels_of

PRELOADS = """
import ctypes, json, sys, sysconfig
sysconfig.get_path = lambda name: sys.argv[1]
from autorecompute.backends.ortmodule import cuda_libraries
loaded, lacking = cuda_libraries.preload(), cuda_libraries.lacking()
for name in loaded:
    ctypes.CDLL(name)  # as the loader finds it for ORT: by its name alone
print(json.dumps([loaded, lacking]))
"""


@pytest.fixture
def wheels(tmp_path):
    """A place for packages where all wheels but cuDNN's are installed."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "the tests build ORT's extensions, too"
    for name, (folder, _) in LIBRARIES.items():
        if folder != "cudnn":
            library = tmp_path / "nvidia" / folder / "lib" / name
            library.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(
                [compiler, "-shared", f"-Wl,-soname,{name}", "-o", str(library), "-xc", "/dev/null"], check=True
            )
    return tmp_path


def test_what_the_loader_does_not_find_comes_from_the_wheels(wheels):
    """After loading from the wheels each library is found by its name; one without a wheel is lacking."""
    found = subprocess.run([sys.executable, "-c", PRELOADS, str(wheels)], check=True, capture_output=True, text=True)
    loaded, lacking = json.loads(found.stdout)
    assert lacking == ["libcudnn.so.8"]
    assert set(loaded) == set(LIBRARIES) - set(lacking)


def test_a_wheel_is_named_once():
    """Two libraries of one wheel ask for one installation."""
    assert wheels_of(("libcublasLt.so.11", "libcublas.so.11")) == ("nvidia-cublas-cu11",)
