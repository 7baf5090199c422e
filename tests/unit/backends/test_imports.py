"""Functions that are called at the moment a module is imported."""

import importlib
import importlib.util
import sys

import pytest

from autorecompute.backends.imports import ImportWatch, when_imported
from autorecompute.startup.sitecustomize import After

NAME = "imported_by_a_test"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that can be imported; the file that it is in."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield tmp_path / f"{NAME}.py"
    sys.modules.pop(NAME, None)


def test_who_only_looks_a_module_up_has_not_imported_it(module):
    """The functions are called around the one run of the module, and then nothing is watched any more."""
    module.write_text("RAN = True")
    called = []
    when_imported(NAME, lambda module: called.append(module.RAN), before=lambda: called.append("before"))
    assert importlib.util.find_spec(NAME) is not None
    assert called == []
    importlib.import_module(NAME)
    assert called == ["before", True]
    assert not any(isinstance(finder, ImportWatch) for finder in sys.meta_path)


def test_a_module_that_fails_is_waited_for_again(module):
    """An import that raises may be repeated."""
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


def test_several_may_wait_for_one_module(module, monkeypatch):
    """None of them asks the one that asks it."""
    module.write_text("")
    called = []
    monkeypatch.setattr(After, "call", lambda _: called.append("run"))
    sys.meta_path.insert(0, After(NAME, "autorecompute.backends:function", ""))
    for word in ("first", "second"):
        when_imported(NAME, lambda _module, word=word: called.append(word))
    importlib.import_module(NAME)
    assert called == ["run", "first", "second"]


def test_a_module_that_is_there_is_told_at_once(module):
    """Nothing has to be waited for."""
    module.write_text("")
    there = importlib.import_module(NAME)
    called = []
    when_imported(NAME, called.append)
    assert called == [there]
