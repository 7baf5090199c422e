import importlib.machinery
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autorecompute.backends.ortmodule.installation import package_folder
from workplace import HANG_SECONDS

EXTENSIONS = ("training", "ortmodule", "torch_cpp_extensions")
ATEN = f"aten_op_executor{importlib.machinery.EXTENSION_SUFFIXES[0]}"
NO_COMPILER = {"PATH": "/nonexistent", "CXX": "c++"}


def doctor(*arguments: str, python_path: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    return autorecompute("doctor", "--backend", "ortmodule", *arguments, python_path=python_path, **variables)


def autorecompute(*arguments: str, python_path: Path | None = None, **variables: str):
    path = os.pathsep.join(filter(None, [str(python_path or ""), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "autorecompute", *arguments],
        env={**os.environ, "PYTHONPATH": path, **variables},
        cwd=python_path,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done


def read(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    return {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}


def copy_package(package: Path, copy: Path, own: tuple[str, ...]) -> Path:
    if not own:
        return Path(shutil.copytree(package, copy))
    copy.mkdir()
    for entry in package.iterdir():
        if entry.name != own[0]:
            (copy / entry.name).symlink_to(entry)
    return copy_package(package / own[0], copy / own[0], own[1:])


@pytest.fixture
def own_extensions(tmp_path):
    package = package_folder()
    assert package is not None, "these tests need onnxruntime-training"
    return copy_package(package, tmp_path / "onnxruntime", EXTENSIONS)


def test_this_installation_is_healthy():
    done = doctor("--json")
    assert done.returncode == 0, done.stdout
    findings = read(done)
    assert {finding["status"] for finding in findings.values()} <= {"ok", "warning"}
    assert {"python", "torch", "onnxruntime-training", "onnx", "NVML", "ORTModule", "disk"} <= findings.keys()
    assert "extension aten_op_executor" in findings


def test_an_extension_of_another_torch_does_not_load(own_extensions, tmp_path):
    source = tmp_path / "other.cc"
    source.write_text("void other_torch(); void call() { other_torch(); }")
    (own_extensions / ATEN).unlink()
    subprocess.run(["c++", "-shared", "-fPIC", "-o", str(own_extensions / ATEN), str(source)], check=True)
    done = doctor("--json", python_path=tmp_path)
    assert done.returncode == 3
    assert "undefined symbol" in read(done)["extension aten_op_executor"]["found"]


def test_without_a_compiler_fix_says_what_to_install(own_extensions, tmp_path):
    (own_extensions / ATEN).unlink()
    done = doctor("--fix", "--json", python_path=tmp_path, **NO_COMPILER)
    assert done.returncode == 3
    assert "apt-get install g++" in done.stderr
    assert "apt-get install g++" in read(done)["extension aten_op_executor"]["remedy"]


def test_a_truncated_extension_is_named_with_its_repair_which_builds_it(own_extensions, tmp_path):
    os.truncate(own_extensions / ATEN, 1_000_000)
    done = doctor(python_path=tmp_path)
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.startswith("missing extension aten_op_executor"))
    assert "cut short" in lines[at]
    assert lines[at + 1].strip() == "Run: autorecompute doctor --fix"
    done = doctor("--fix", "--json", python_path=tmp_path, CFLAGS="-O0")
    assert done.returncode == 0, done.stderr
    assert "[1/1] aten_op_executor: compiling" in done.stderr
    assert read(done)["extension aten_op_executor"]["status"] == "ok"
    assert [file.name for file in own_extensions.glob("*aten_op_executor*.so*")] == [ATEN]


def test_a_compiler_error_is_shown(own_extensions, tmp_path):
    (own_extensions / ATEN).unlink()
    sources = own_extensions / "cpu" / "aten_op_executor"
    (sources / "aten_op_executor.cc").write_text('#include "no_such_header.h"\n')
    done = doctor("--fix", python_path=tmp_path, TMPDIR=str(tmp_path))
    assert done.returncode == 3
    assert "no_such_header.h" in done.stderr
    (log,) = tmp_path.glob("autorecompute-aten_op_executor-*.log")
    assert str(log) in done.stderr


def test_a_plain_onnxruntime_over_it_is_found_out(tmp_path):
    package = package_folder()
    capi = copy_package(package, tmp_path / "onnxruntime", ("capi",))
    (core,) = capi.glob("onnxruntime_pybind11_state*.so")
    core.write_bytes(b"that of another distribution")
    record = tmp_path / "onnxruntime-1.31.1.dist-info" / "METADATA"
    record.parent.mkdir()
    record.write_text("Metadata-Version: 2.1\nName: onnxruntime\nVersion: 1.31.1\n")
    done = doctor("--json", python_path=tmp_path)
    assert done.returncode == 3
    finding = read(done)["onnxruntime-training"]
    assert "overwritten by onnxruntime 1.31.1" in finding["found"]
    assert "uninstall" in finding["remedy"]


@pytest.mark.parametrize(
    ("code", "found"),
    [("raise OSError('libtorch.so: cannot open')", "cannot be imported: OSError: libtorch.so"), ("", "__version__")],
)
def test_a_torch_that_cannot_be_imported_is_reported(tmp_path, code, found):
    (tmp_path / "torch.py").write_text(code)
    done = doctor("--json", python_path=tmp_path)
    assert done.returncode == 3
    findings = read(done)
    assert found in findings["torch"]["found"]
    assert "force-reinstall" in findings["torch"]["remedy"]
    assert "not tried" in findings["ORTModule"]["found"]


def test_one_system_that_can_train_is_enough(own_extensions, tmp_path):
    (own_extensions / ATEN).unlink()
    done = autorecompute("doctor", python_path=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "ortmodule: 2 missing" in done.stdout
    assert "torch: ready to train." in done.stdout


def test_tuning_ends_with_the_doctors_line(own_extensions, tmp_path):
    (own_extensions / ATEN).unlink()
    script = tmp_path / "train.py"
    script.write_text("import torch\nraise SystemExit('the script must not go on')")
    done = autorecompute("tune", str(script), "--backend", "ortmodule", "--target-batch", "2", python_path=tmp_path)
    assert done.returncode == 3
    assert "aten_op_executor: not built. Run: autorecompute doctor --fix" in done.stderr
