import zipfile
from pathlib import PurePosixPath

from autorecompute import __version__

from .conftest import CLONE

FOR_READING = {".py", ".typed", ".css", ".js", ".j2", ".gz", ".md"}
SHIPPED = CLONE / "studies" / "shipped" / "bert_mlm.jsonl.gz"


def test_the_wheel_is_the_package_alone(wheel):
    names = [PurePosixPath(name) for name in zipfile.ZipFile(wheel).namelist()]
    folders = {name.parts[0] for name in names}
    assert folders == {"autorecompute", f"autorecompute-{__version__}.dist-info"}
    assert {name.suffix for name in names if name.parts[0] == "autorecompute"} <= FOR_READING
    tracked = {file.relative_to(CLONE).as_posix() for file in (CLONE / "autorecompute").rglob("*.py")}
    assert {str(name) for name in names if name.suffix == ".py"} == tracked


def test_help_studies_and_reports_need_no_torch(call):
    installed = call("python", "-m", "pip", "list", "--format", "freeze").stdout.lower()
    assert "torch==" not in installed
    assert "onnx" not in installed
    assert "autorecompute tune" in call("autorecompute", "tune", "--help").stdout
    assert call("autorecompute", "studies", "import", SHIPPED, "--study", "theirs").returncode == 0
    assert "theirs" in call("autorecompute", "show").stdout
    report = call("autorecompute", "report", "theirs")
    assert report.returncode == 0, report.stderr


def test_what_needs_torch_says_so(call, tmp_path):
    (tmp_path / "train.py").write_text("import torch\n")
    tuned = call("autorecompute", "tune", "train.py", "--target-batch", "2")
    assert tuned.returncode == 3
    assert "torch" in tuned.stderr
    assert "Traceback" not in tuned.stderr
