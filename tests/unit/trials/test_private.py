import os
import tempfile
from pathlib import Path
from unittest import mock

import pytest

from autorecompute.errors import SetupError
from autorecompute.training_job import Device
from autorecompute.trials.private import cache_variables, hold_device, private_folder
from autorecompute.trials.process import socket_folder

pytestmark = pytest.mark.usefixtures("own_temporary_directory")


def _link_elsewhere(folder):
    elsewhere = folder.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)


@pytest.mark.parametrize(
    "spoil",
    [lambda folder: folder.mkdir() or folder.chmod(0o777), _link_elsewhere, os.mkfifo, lambda folder: folder.touch()],
    ids=["open to others", "a link", "a pipe", "a file"],
)
@pytest.mark.parametrize(
    "use",
    [
        lambda: hold_device(Device(kind="cpu", name="It", total_bytes=1), "study", pytest.fail).__enter__(),
        lambda: socket_folder().__enter__(),
        lambda: cache_variables(Path("studies/bert"), {}),
    ],
    ids=["locks", "sockets", "compiled code"],
)
def test_a_folder_that_is_not_ours_alone_is_not_used(tmp_path, spoil, use):
    """Another user may have made it first."""
    spoil(tmp_path / f"autorecompute-{os.geteuid()}")
    before = set(tmp_path.rglob("*"))
    with pytest.raises(SetupError, match=r"cannot be used: .*set TMPDIR"):
        use()
    assert set(tmp_path.rglob("*")) == before


def test_a_folder_of_another_user_is_not_used(monkeypatch):
    own = private_folder()
    stranger = os.geteuid() + 1
    own.rename(own.with_name(f"autorecompute-{stranger}"))
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    with pytest.raises(SetupError, match="belongs to another user"):
        private_folder()


def test_where_there_is_no_temporary_folder_that_is_said(monkeypatch):
    monkeypatch.setattr(
        tempfile, "gettempdir", mock.Mock(side_effect=FileNotFoundError("No usable temporary directory"))
    )
    with pytest.raises(SetupError, match="set TMPDIR"):
        private_folder()
