"""Checks for a real card: skipped, with the reason, where there is none."""

import importlib.util
import warnings
from pathlib import Path

import pytest


def why_not():
    """Why nothing can be checked here; empty where a card is at hand."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    with warnings.catch_warnings():
        # A driver that does not fit warns, and is no card for torch.
        warnings.simplefilter("ignore")
        return "" if torch.cuda.is_available() else "torch sees no CUDA device"


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = why_not() if marked else ""
    for item in marked if reason else ():
        item.add_marker(pytest.mark.skip(reason=reason))


def benchmark(name):
    file = Path(__file__).parents[2] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def record():
    return benchmark("gpu")


@pytest.fixture(scope="session")
def compared_memory():
    return dict(benchmark("card_memory").compared())
