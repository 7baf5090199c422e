import sys

import pynvml
import pytest

from autorecompute.meters.nvml import NvmlError, NvmlUnsupportedError, ask


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, NvmlError, "docker run --gpus all"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, NvmlError, "Install the NVIDIA driver"),
        (pynvml.NVML_ERROR_OPERATING_SYSTEM, NvmlError, "docker run --gpus all"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, NvmlError, "Restart"),
        (pynvml.NVML_ERROR_GPU_IS_LOST, NvmlError, "Xid"),
        (pynvml.NVML_ERROR_NOT_FOUND, NvmlUnsupportedError, "is visible here"),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, NvmlUnsupportedError, "does not keep"),
        (pynvml.NVML_ERROR_NO_PERMISSION, NvmlUnsupportedError, "administrators"),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, NvmlUnsupportedError, "too old"),
        (pynvml.NVML_ERROR_CORRUPTED_INFOROM, NvmlError, "Corrupted infoROM"),
    ],
)
def test_an_error_code_becomes_a_kind_and_advice(nvml, code, kind, advice):
    ask("nvmlInit")
    nvml.errors["nvmlDeviceGetCount"] = code
    with pytest.raises(kind, match=advice) as caught:
        ask("nvmlDeviceGetCount")
    assert (type(caught.value), caught.value.exit_code, caught.value.__cause__.value) == (kind, 3, code)


def test_without_the_package_the_message_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlError, match="pip install nvidia-ml-py"):
        ask("nvmlInit")


@pytest.mark.usefixtures("nvml")
def test_a_function_that_the_package_lacks_is_an_unsupported_figure():
    with pytest.raises(NvmlUnsupportedError, match="does not know nvmlOfTomorrow"):
        ask("nvmlOfTomorrow")


def test_a_driver_older_than_the_package_is_an_unsupported_figure(nvml, monkeypatch):
    """The exception of pynvml for that, which is no NVMLError, is translated too."""
    ask("nvmlInit")

    def mismatch(_):
        raise pynvml.NVMLLibraryMismatchError("Unversioned function called")

    monkeypatch.setattr(nvml, "nvmlDeviceGetComputeRunningProcesses", mismatch, raising=False)
    with pytest.raises(NvmlUnsupportedError, match="too old"):
        ask("nvmlDeviceGetComputeRunningProcesses", None)


def test_on_this_machine_it_answers_or_says_what_is_missing():
    try:
        ask("nvmlInit")
        answer = ask("nvmlSystemGetDriverVersion")
    except NvmlError as error:
        answer = error.remedy
    assert answer
