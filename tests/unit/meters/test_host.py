"""Peaks of a process on a CPU."""

import pytest

from autorecompute.errors import SetupError
from autorecompute.meters import host
from autorecompute.meters.host import HostMeter


def test_a_kernel_that_resets_no_high_water_mark_is_told(tmp_path, monkeypatch):
    """Where the file is not there, as in some sandboxes, it ends in a sentence before anything is measured."""
    monkeypatch.setattr(host, "CLEAR_REFS", tmp_path / "clear_refs" / "missing")
    with pytest.raises(SetupError, match=r"Peaks cannot be measured here: .*missing cannot be written"):
        HostMeter()
