"""What the doctor says of findings, and how it words a repair; no torch, no ORT."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from autorecompute import codec
from autorecompute.backends.findings import Finding, Status, blocking
from autorecompute.backends.ortmodule import controller, cuda_headers, diagnose, distributions, extensions
from autorecompute.backends.ortmodule.controller import NAME as ORTMODULE
from autorecompute.backends.registry import PACKAGES
from autorecompute.backends.torch import controller as torch_controller
from autorecompute.cli import doctor
from autorecompute.errors import SetupError

HEALTHY = [
    Finding(name="torch", status=Status.OK, found="2.13.0, GPUs seen: 0"),
    Finding(name="disk", status=Status.WARNING, found="10 MiB free", remedy="Free 1.00 GiB."),
]
BROKEN = [
    *HEALTHY,
    Finding(name="extension aten_op_executor", status=Status.MISSING, found="not built", remedy="Run: " + "x" * 200),
]


@pytest.fixture
def run_doctor(monkeypatch):
    """Runs ``doctor`` over these findings instead of the installation's, and returns its exit code."""

    def run(findings: list[Finding], *arguments: str) -> int:
        monkeypatch.setattr(doctor, "diagnose", lambda _: findings)
        parser = argparse.ArgumentParser()
        doctor.register(parser.add_subparsers())
        args = parser.parse_args(["doctor", *arguments])
        return args.run(args)

    return run


def test_warnings_do_not_keep_anyone_from_training(run_doctor, capsys):
    """With nothing missing the exit code is 0, and a warning still shows its remedy."""
    assert run_doctor(HEALTHY) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"backend {ORTMODULE}"
    assert lines[1].startswith("ok ")
    assert lines[2].startswith("warning disk ")
    assert lines[3].strip() == "Free 1.00 GiB."
    assert f"{ORTMODULE}: ready to train." in lines


def test_a_missing_piece_exits_with_3(run_doctor, capsys):
    """A missing piece is named with what was found, and ends with the code for a broken installation."""
    assert run_doctor(BROKEN) == 3
    out = capsys.readouterr().out
    assert "missing extension aten_op_executor  not built" in out
    assert f"{ORTMODULE}: 1 missing" in out


def test_a_repair_is_never_wrapped(run_doctor, capsys):
    """A long command stays on one line, whatever the width of the terminal, so that it can be copied."""
    run_doctor(BROKEN)
    assert "x" * 200 in capsys.readouterr().out


def test_only_the_remedies_of_unwell_pieces_are_printed(run_doctor, capsys):
    """A piece that is as it should be takes one line."""
    run_doctor(HEALTHY[:1])
    assert len(capsys.readouterr().out.splitlines()) == 4 * len(PACKAGES), "name, line, gap, verdict"


@pytest.mark.parametrize(("findings", "ok"), [(HEALTHY, True), (BROKEN, False)])
def test_json_is_one_object(run_doctor, capsys, findings, ok):
    """``--json`` prints the verdict and each finding's fields, the training system's name first."""
    assert run_doctor(findings, "--json") == (0 if ok else 3)
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is ok
    assert answer["findings"][1] == {
        "backend": ORTMODULE, "name": "disk", "status": "warning", "found": "10 MiB free", "remedy": "Free 1.00 GiB."
    }  # fmt: skip


def test_findings_survive_the_way_between_processes():
    """What the diagnosing process prints is read back unchanged."""
    assert codec.decode(codec.encode(BROKEN), list[Finding]) == BROKEN
    assert blocking(BROKEN) == BROKEN[2:]


def test_fix_builds_before_it_looks(run_doctor, monkeypatch):
    """``--fix`` has the extensions built first, and the report alone decides about the exit code."""
    built = []
    monkeypatch.setattr(doctor, "build", lambda backend: built.append(backend.NAME))
    assert run_doctor(BROKEN, "--fix") == 3
    assert built == list(PACKAGES)


def test_a_crash_while_looking_is_a_sentence(monkeypatch):
    """Where the diagnosing process dies of a signal, the error names it and the command that shows more."""
    monkeypatch.setattr(controller, "DIAGNOSIS", "no.such.package.diagnose")
    with pytest.raises(SetupError, match=r"(?s)exit code 1.*-m no\.such\.package\.diagnose") as caught:
        doctor.diagnose(controller)
    assert caught.value.exit_code == 3
    assert "crashed (SIGBUS)" in doctor.explain_death(-7, "last words", ["python"])
    assert "crashed (signal 39)" in doctor.explain_death(-39, "", ["python"])


def test_what_a_library_prints_while_it_loads_is_no_finding(tmp_path, monkeypatch):
    """A line that torch, or whatever Python imports first, prints to stdout does not take the findings' place."""
    (tmp_path / "torch.py").write_text("print('loading torch')\n__version__ = '1.0.0'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # else what is printed early comes late, and to stderr
    assert [finding.name for finding in doctor.diagnose(torch_controller)][-1] == "torch"
    (tmp_path / "sitecustomize.py").write_text("print('welcome')\n")
    with pytest.raises(SetupError, match=r"(?s)welcome.*Reinstall"):
        doctor.diagnose(torch_controller)


def test_the_controller_imports_neither_torch_nor_ort():
    """Loading the verb and the findings' vocabulary leaves torch, onnxruntime and rich alone."""
    code = "import sys, autorecompute.cli.doctor, autorecompute.backends.ortmodule.diagnose as _; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "onnxruntime", "rich", "pynvml"} & set(done.stdout.split())


def test_pip_is_that_of_this_interpreter(monkeypatch):
    """A repair works on the interpreter that was looked at, by its own pip, or by uv where it has none."""
    monkeypatch.setattr(sys, "executable", "/opt/my env/bin/python")
    monkeypatch.setattr(distributions, "version_of", {"pip": "24"}.get)
    assert distributions.pip("uninstall onnx") == "'/opt/my env/bin/python' -m pip uninstall -y onnx"
    monkeypatch.setattr(distributions, "version_of", {}.get)
    assert distributions.pip("uninstall onnx") == "uv pip uninstall --python '/opt/my env/bin/python' onnx"


@pytest.mark.parametrize(("version", "release"), [("2.13.0+cpu", (2, 13)), ("2.10.0a0+git1", (2, 10)), ("3", (3,))])
def test_a_release_is_compared_by_its_numbers(version, release):
    """Versions are compared as numbers, so that 2.13 comes after 2.4."""
    assert distributions.parse_release(version) == release


def test_a_file_belongs_to_whoever_wrote_it_last(tmp_path):
    """A distribution owns a file as long as it has the size that was recorded at its installation."""
    (record,) = (file for file in distributions.metadata.files("rich") if file.name == "console.py")
    copy = tmp_path / record
    copy.parent.mkdir()
    assert not distributions.owns_file("rich", "console.py", tmp_path)
    copy.write_bytes(record.locate().read_bytes())
    assert distributions.owns_file("rich", "console.py", tmp_path)
    copy.write_bytes(b"another distribution's")
    assert not distributions.owns_file("rich", "console.py", tmp_path)


def test_a_cut_short_library_is_told_from_a_whole_one(tmp_path):
    """A shared library that lost its end is recognised without loading it, which would end the process."""
    whole = Path(sys.executable).resolve()
    cut = tmp_path / "cut.so"
    assert extensions._is_whole(whole)
    cut.write_bytes(whole.read_bytes()[:4096])
    assert not extensions._is_whole(cut)
    cut.write_bytes(b"")
    assert not extensions._is_whole(cut)


def test_without_a_compiler_the_remedy_is_to_install_one(monkeypatch, tmp_path):
    """What stands in the way of a build is named before it is tried."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt-get install g++" in extensions.obstacle("aten_op_executor")


@pytest.fixture
def nvidia(monkeypatch, tmp_path):
    """The folder of NVIDIA's wheels, empty, on a machine without any toolkit."""
    for variable in ("CUDA_HOME", "CUDA_PATH", "CPATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(cuda_headers, "USUAL_TOOLKIT", tmp_path / "none")
    folder = tmp_path / "nvidia"
    folder.mkdir()
    monkeypatch.setattr(cuda_headers, "_wheel_folders", lambda: sorted(folder.iterdir()))
    return folder


@pytest.mark.usefixtures("nvidia")
@pytest.mark.parametrize(
    ("cuda", "wheel"), [("12.4", "nvidia-cuda-nvcc-cu12==12.4.*"), ("13.0", "nvidia-cuda-crt==13.0.*")]
)
def test_missing_cuda_headers_are_named_by_their_wheels(cuda, wheel):
    """The wheels to install are those of torch's own CUDA, under the names that NVIDIA gives them there."""
    assert wheel in cuda_headers.obstacle(cuda)


def test_headers_of_several_wheels_stand_in_for_a_toolkit(nvidia, tmp_path):
    """Headers and runtime scattered over NVIDIA's wheels are brought together for torch's build rules."""
    for path in ("cuda_runtime/include/cuda_runtime_api.h", "cuda_nvcc/include/crt/host_defines.h"):
        (nvidia / path).parent.mkdir(parents=True)
        (nvidia / path).touch()
    (nvidia / "cuda_runtime" / "lib").mkdir()
    (nvidia / "cuda_runtime" / "lib" / "libcudart.so.12").touch()
    assert cuda_headers.obstacle("12.4") == ""
    variables = cuda_headers.variables("12.4", tmp_path)
    assert variables["CPATH"] == f"{nvidia / 'cuda_runtime' / 'include'}:{nvidia / 'cuda_nvcc' / 'include'}"
    library = Path(variables["CUDA_HOME"], "lib64", "libcudart.so")
    assert library.resolve() == nvidia / "cuda_runtime" / "lib" / "libcudart.so.12"


def test_little_room_is_a_warning(monkeypatch, tmp_path):
    """Under one GiB of free disk the folder is named, and training is not kept from starting."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(diagnose, "NEEDED_FREE_BYTES", 2**80)
    finding = diagnose._check_disk()
    assert finding.status is Status.WARNING
    assert str(tmp_path) in finding.found
