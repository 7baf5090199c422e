import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autorecompute import tested
from autorecompute.backends.findings import Finding, Status
from autorecompute.backends.ortmodule import controller, diagnose, installation
from autorecompute.backends.ortmodule.controller import NAME as ORTMODULE
from autorecompute.backends.ortmodule.installation import of_build
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
def run_doctor(monkeypatch, call):
    def run(findings, *arguments):
        monkeypatch.setattr(doctor, "diagnose", lambda _: findings)
        return call("doctor", *arguments)[:2]

    return run


def test_warnings_keep_nobody_from_training_and_a_missing_piece_exits_with_3_and_a_repair_that_is_never_wrapped(
    run_doctor,
):
    code, out = run_doctor(HEALTHY)
    head, torch, disk, remedy, *others = out.splitlines()
    assert (code, head, remedy.strip()) == (0, f"backend {ORTMODULE}", "Free 1.00 GiB.")
    assert torch.startswith("ok ")
    assert disk.startswith("warning disk ")
    assert f"{ORTMODULE}: ready to train." in others
    code, out = run_doctor(BROKEN)
    assert code == 3
    assert "missing extension aten_op_executor  not built" in out
    assert "x" * 200 in out
    assert f"{ORTMODULE}: 1 missing" in out


def test_what_another_system_lacks_is_one_last_line(monkeypatch, call):
    found = {ORTMODULE: BROKEN, torch_controller.NAME: HEALTHY}
    monkeypatch.setattr(doctor, "diagnose", lambda backend: found.get(backend.NAME, HEALTHY))
    code, out = call("doctor")[:2]
    assert code == 0
    assert f"backend {ORTMODULE}" not in out.splitlines()
    last = out.splitlines()[-1]
    assert last.startswith(f"{ORTMODULE}: 1 missing, extension aten_op_executor. ")
    assert last.endswith(f"autorecompute doctor --backend {ORTMODULE}")


@pytest.mark.parametrize(("findings", "ok"), [(HEALTHY, True), (BROKEN, False)])
def test_json_is_one_object(run_doctor, findings, ok):
    code, out = run_doctor(findings, "--json")
    answer = json.loads(out)
    assert (code, answer["ok"]) == (0 if ok else 3, ok)
    assert answer["findings"][1] == {
        "backend": ORTMODULE, "name": "disk", "status": "warning", "found": "10 MiB free", "remedy": "Free 1.00 GiB."
    }  # fmt: skip


def test_a_crash_while_looking_is_a_sentence(monkeypatch):
    monkeypatch.setitem(doctor.PACKAGES, controller.NAME, "no.such.package")
    with pytest.raises(SetupError, match=r"(?s)exit code 1.*-m no\.such\.package\.diagnose") as caught:
        doctor.diagnose(controller)
    assert caught.value.exit_code == 3
    assert "crashed (SIGBUS)" in doctor.explain_death(-7, "last words", ["python"])
    assert "crashed (signal 39)" in doctor.explain_death(-39, "", ["python"])


def test_what_a_library_prints_while_it_loads_is_no_finding(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("print('loading torch')\n__version__ = '1.0.0'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # else what is printed early comes late, and to stderr
    assert [finding.name for finding in doctor.diagnose(torch_controller)][-1] == "torch"
    (tmp_path / "sitecustomize.py").write_text("print('welcome')\n")
    with pytest.raises(SetupError, match=r"(?s)welcome.*Reinstall"):
        doctor.diagnose(torch_controller)


def test_pip_is_that_of_this_interpreter_and_a_file_belongs_to_whoever_wrote_it_last(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", "/opt/my env/bin/python")
    monkeypatch.setattr(installation, "version_of", {"pip": "24"}.get)
    assert installation.pip("uninstall onnx") == "'/opt/my env/bin/python' -m pip uninstall -y onnx"
    monkeypatch.setattr(installation, "version_of", {}.get)
    assert installation.pip("uninstall onnx") == "uv pip uninstall --python '/opt/my env/bin/python' onnx"
    (record,) = (file for file in installation.metadata.files("rich") if file.name == "console.py")
    copy = tmp_path / record
    copy.parent.mkdir()
    assert not installation.owns_file("rich", "console.py", tmp_path)
    copy.write_bytes(record.locate().read_bytes())
    assert installation.owns_file("rich", "console.py", tmp_path)
    copy.write_bytes(b"another distribution's")
    assert not installation.owns_file("rich", "console.py", tmp_path)


@pytest.mark.parametrize(("version", "release"), [("2.13.0+cpu", (2, 13)), ("2.10.0a0+git1", (2, 10)), ("3", (3,))])
def test_a_release_is_compared_by_its_numbers(version, release):
    assert controller.parse_release(version) == release


@pytest.fixture
def nvidia(monkeypatch, tmp_path):
    for variable in ("CUDA_HOME", "CUDA_PATH", "CPATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(installation, "USUAL_TOOLKIT", tmp_path / "none")
    folder = tmp_path / "nvidia"
    folder.mkdir()
    monkeypatch.setattr(installation, "_wheel_folders", lambda: sorted(folder.iterdir()))
    return folder


@pytest.mark.usefixtures("nvidia")
@pytest.mark.parametrize(
    ("cuda", "wheel"), [("12.4", "nvidia-cuda-nvcc-cu12==12.4.*"), ("13.0", "nvidia-cuda-crt==13.0.*")]
)
def test_missing_cuda_headers_are_named_by_their_wheels(cuda, wheel):
    assert wheel in installation.missing_headers(cuda)


def test_headers_of_several_wheels_stand_in_for_a_toolkit(nvidia, tmp_path):
    for path in ("cuda_runtime/include/cuda_runtime_api.h", "cuda_nvcc/include/crt/host_defines.h"):
        (nvidia / path).parent.mkdir(parents=True)
        (nvidia / path).touch()
    (nvidia / "cuda_runtime" / "lib").mkdir()
    (nvidia / "cuda_runtime" / "lib" / "libcudart.so.12").touch()
    assert installation.missing_headers("12.4") == ""
    variables = installation.variables("12.4", tmp_path)
    assert variables["CPATH"] == f"{nvidia / 'cuda_runtime' / 'include'}:{nvidia / 'cuda_nvcc' / 'include'}"
    library = Path(variables["CUDA_HOME"], "lib64", "libcudart.so")
    assert library.resolve() == nvidia / "cuda_runtime" / "lib" / "libcudart.so.12"


def test_the_readme_names_the_versions_that_the_doctor_names_and_little_room_is_a_warning(monkeypatch, tmp_path):
    readme = " ".join(Path(__file__).parents[2].joinpath("README.md").read_text().replace("|", " ").split())
    assert all(f"{package} {', '.join(versions)}" in readme for package, versions in tested.VERSIONS.items())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(diagnose, "NEEDED_FREE_BYTES", 2**80)
    finding = diagnose._check_disk()
    assert finding.status is Status.WARNING
    assert str(tmp_path) in finding.found


VERSIONS = ["11.8", "12.2"]

PRELOADS = """
import ctypes, json, sys, sysconfig
sysconfig.get_path = lambda name: sys.argv[1]
from autorecompute.backends.ortmodule import installation
libraries = installation.of_build(sys.argv[2])
loaded, lacking = installation.preload(libraries), installation.lacking(libraries)
for name in loaded:
    ctypes.CDLL(name)  # as the loader finds it for ORT: by its name alone
print(json.dumps([loaded, lacking]))
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_loader_does_not_find_comes_from_the_wheels(tmp_path, version):
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "the tests build ORT's extensions, too"
    for name, folder in of_build(version).items():
        if folder != "cufft":
            library = tmp_path / "nvidia" / folder / "lib" / name
            library.parent.mkdir(parents=True, exist_ok=True)
            linked = [f"-Wl,-soname,{name}", "-o", str(library), "-xc", "/dev/null"]
            subprocess.run([compiler, "-shared", *linked], check=True)
    command = [sys.executable, "-c", PRELOADS, str(tmp_path), version]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    loaded, lacking = json.loads(found.stdout)
    assert ["cufft" in name for name in lacking] == [True]
    assert set(loaded) == set(of_build(version)) - set(lacking)


@pytest.fixture
def look(monkeypatch):
    def look(version):
        monkeypatch.setattr(diagnose, "build_information", lambda: {"cuda_version": version})
        monkeypatch.setattr(diagnose, "_count_gpus", lambda: 1)
        (finding,) = diagnose._check_cuda_libraries()
        return finding

    return look


@pytest.mark.parametrize("version", VERSIONS)
def test_libraries_of_the_build_are_asked_for(look, version):
    finding, major = look(version), version.partition(".")[0]
    assert finding.status is Status.MISSING
    wheels = finding.remedy.partition(" install ")[2].split()
    assert len(set(wheels)) == len(wheels) > 3
    assert all(f"-cu{major}" in wheel for wheel in wheels)


def test_an_unknown_cuda_keeps_nobody_from_training(look):
    assert look("14.1").status is Status.OK
