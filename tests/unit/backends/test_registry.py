"""Training systems by name."""

from __future__ import annotations

import sys

import pytest

from autorecompute.backends import registry
from autorecompute.errors import SetupError


def test_a_system_that_is_not_installed_is_told_in_a_sentence(monkeypatch, tmp_path):
    """Where torch cannot be imported, no traceback of ours is taken for the script's."""
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("autorecompute.backends.torch.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("torch", registry.AUTO):
        with pytest.raises(SetupError, match=r"needs the package torch, and .*python.* does not have it\. Install"):
            registry.worker(name, tmp_path)
