import importlib
import importlib.util
import sys
import types

import pytest

from autorecompute.backends import registry
from autorecompute.backends.registry import when_imported
from autorecompute.backends.torch import is_too_old
from autorecompute.errors import SetupError
from autorecompute.startup.sitecustomize import ImportWatch, watch_for

NAME = "imported_by_a_test"


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield tmp_path / f"{NAME}.py"
    sys.modules.pop(NAME, None)


def test_who_only_looks_a_module_up_has_not_imported_it(module):
    module.write_text("RAN = True")
    called = []
    when_imported(NAME, lambda module: called.append(module.RAN), before=lambda: called.append("before"))
    assert importlib.util.find_spec(NAME) is not None
    assert called == []
    importlib.import_module(NAME)
    assert called == ["before", True]
    assert not any(isinstance(finder, ImportWatch) for finder in sys.meta_path)


def test_a_module_that_fails_is_waited_for_again(module):
    module.write_text("raise RuntimeError('not yet')")
    called = []
    when_imported(NAME, called.append)
    with pytest.raises(RuntimeError, match="not yet"):
        importlib.import_module(NAME)
    module.write_text("# a file of another length")
    importlib.invalidate_caches()
    assert called == []
    there = importlib.import_module(NAME)
    assert called == [there]


def test_several_may_wait_for_one_module_and_one_that_is_there_is_told_at_once(module, monkeypatch):
    module.write_text("")
    called = []
    monkeypatch.setattr("autorecompute.backends.registry.function", lambda: called.append("run"), raising=False)
    sys.meta_path.insert(0, watch_for(f"after {NAME} autorecompute.backends.registry:function nothing is called"))
    for word in ("first", "second"):
        when_imported(NAME, lambda _module, word=word: called.append(word))
    importlib.import_module(NAME)
    assert called == ["run", "first", "second"]
    when_imported(NAME, called.append)
    assert called[3:] == [sys.modules[NAME]]


@pytest.mark.parametrize("name", ["torch", registry.AUTO])
def test_a_training_system_that_is_not_installed_is_told_in_a_sentence(monkeypatch, tmp_path, name):
    def find_nothing(_):
        raise ModuleNotFoundError(name="torch")

    monkeypatch.setattr(importlib, "import_module", find_nothing)
    with pytest.raises(SetupError, match=r"needs the package torch, and .*does not have it\. Install"):
        registry.worker(name, tmp_path)


def test_an_older_torch_than_can_be_tuned_is_told(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__="2.5.1+cpu"))
    with pytest.raises(SetupError, match=r"torch 2\.5\.1\+cpu is older than 2\.6"):
        registry.worker(registry.plain_name(), tmp_path)
    assert not any(map(is_too_old, ("2.6.0", "2.15.0a0+git1", "3.0")))
