import sys

import pynvml
import pytest

from autorecompute.meters.nvml import (
    CONTEXT_BYTES,
    NvmlError,
    NvmlUnsupportedError,
    all_cards,
    ask,
    describe_visible,
    find_card,
    instances,
    visible_cards,
)
from autorecompute.units import GIB, MIB
from fake_gpu import FakeCard, FakeNvml

OURS, THEIRS = 4711, 815


@pytest.fixture
def asked(nvml):
    assert len(nvml.cards) == 1
    return all_cards()[0]


def test_memory_tells_what_the_driver_keeps_from_what_is_used_and_an_old_driver_is_asked_the_old_way(card, asked, nvml):
    """Where the driver knows the second version of the call, its own share is neither used nor free."""
    card.processes[THEIRS] = 3 * GIB
    assert (asked.memory_bytes("total"), asked.memory_bytes("used")) == (40 * GIB, 3 * GIB)
    assert asked.memory_bytes("free") == 37 * GIB - card.driver_bytes
    nvml.errors["nvmlDeviceGetMemoryInfo_v2"] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    assert asked.memory_bytes("used") == 3 * GIB + card.driver_bytes
    assert asked.memory_bytes("free") == 37 * GIB - card.driver_bytes


def test_a_lost_card_is_not_asked_the_old_way_and_clock_events_under_no_name_are_unsupported(nvml, asked):
    nvml.errors["nvmlDeviceGetMemoryInfo_v2"] = pynvml.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(NvmlError, match="fallen off the bus"):
        asked.memory_bytes("used")
    for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        nvml.errors[function] = pynvml.NVML_ERROR_NOT_SUPPORTED
    with pytest.raises(NvmlUnsupportedError):
        asked.clock_events()


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (["HwSlowdown", "SwPowerCap"], ("power cap", "hardware slowdown")),
        (["SyncBoost", "SwThermalSlowdown"], ("sync boost", "thermal slowdown")),
        (["HwThermalSlowdown", "HwPowerBrakeSlowdown"], ("hardware thermal slowdown", "power brake")),
        (["GpuIdle", "ApplicationsClocksSetting"], ()),
    ],
)
def test_clock_events_are_words_but_for_an_idle_card_and_fixed_clocks(card, asked, reasons, words):
    card.clock_reasons = sum(getattr(pynvml, f"nvmlClocksEventReason{reason}") for reason in reasons)
    assert asked.clock_events() == words


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED])
def test_clock_events_have_an_older_name(card, nvml, asked, code):
    """Drivers before 535 answer under the name of throttle reasons."""
    nvml.errors["nvmlDeviceGetCurrentClocksEventReasons"] = code
    card.clock_reasons = pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    assert asked.clock_events() == ("thermal slowdown",)


def test_an_instance_has_the_clocks_of_its_card(card, asked):
    card.is_divided, card.instances = True, [FakeCard(uuid="MIG-1", total_bytes=10 * GIB)]
    card.clock_reasons = pynvml.nvmlClocksEventReasonSwPowerCap
    assert instances(asked)[0].clock_events() == ("power cap",)
    assert instances(asked)[0].memory_bytes("total") == 10 * GIB


@pytest.mark.parametrize(
    ("listed", "unlisted_bytes", "others_bytes"),
    [
        ({31337: 9 * GIB, 31338: 5 * GIB}, 0, 6 * GIB - CONTEXT_BYTES),
        ({}, 8 * GIB + 600 * MIB, 0),
        ({OURS: 9 * GIB, THEIRS: None}, 4 * GIB, 5 * GIB - CONTEXT_BYTES),
        (None, 14 * GIB, 6 * GIB - CONTEXT_BYTES),
    ],
    ids=["a container has other ids", "its own context is nobody else's", "one of unknown size", "none are listed"],
)
def test_others_are_what_is_not_accounted_for(nvml, asked, listed, unlisted_bytes, others_bytes):
    if listed is None:
        nvml.errors["nvmlDeviceGetComputeRunningProcesses"] = pynvml.NVML_ERROR_NO_PERMISSION
    nvml.cards[0].processes, nvml.cards[0].unlisted_bytes = listed or {}, unlisted_bytes
    assert asked.neighbours(OURS, 8 * GIB) == (others_bytes, False)


def test_others_are_counted_where_this_process_is_listed(card, asked):
    card.processes = {OURS: 9 * GIB, THEIRS: 2 * GIB, THEIRS + 1: 100 * MIB}
    card.graphics = {THEIRS + 1}
    assert asked.neighbours(OURS, 8 * GIB) == (2 * GIB + 100 * MIB, True)


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


def test_what_the_package_does_not_know_or_the_driver_is_too_old_for_is_an_unsupported_figure(nvml, monkeypatch):
    """The exception of pynvml for that, which is no NVMLError, is translated too."""
    ask("nvmlInit")
    with pytest.raises(NvmlUnsupportedError, match="does not know nvmlOfTomorrow"):
        ask("nvmlOfTomorrow")

    def mismatch(_):
        raise pynvml.NVMLLibraryMismatchError("Unversioned function called")

    monkeypatch.setattr(nvml, "nvmlDeviceGetComputeRunningProcesses", mismatch, raising=False)
    with pytest.raises(NvmlUnsupportedError, match="too old"):
        ask("nvmlDeviceGetComputeRunningProcesses", None)


FIRST, SECOND, THIRD = "GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000"
PARTS = ("MIG-cccc4444-0000", "MIG-dddd5555-0000")


def make_machine(*, divided=()):
    return FakeNvml(
        *(
            FakeCard(
                uuid=uuid,
                is_divided=uuid in divided,
                instances=[FakeCard(uuid=part, total_bytes=10 * GIB) for part in PARTS] if uuid in divided else [],
            )
            for uuid in (FIRST, SECOND, THIRD)
        )
    )


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (None, [FIRST, SECOND, THIRD]),
        ("2,0", [THIRD, FIRST]),
        (" 1 , 2", [SECOND, THIRD]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,7,1", [FIRST]),
        ("1,-1,2", [SECOND]),
        ("1,1", []),
        (THIRD, [THIRD]),
        ("GPU-bbbb,GPU-aaaa2", [THIRD, SECOND]),
        ("GPU-aaaa", []),
        ("GPU-bbbb,GPU-aaaa", [THIRD]),
        ("GPU-eeee", []),
        ("MIG-cccc", []),
    ],
)
def test_cuda_visible_devices(value, seen):
    """Indices, UUIDs and their unique beginnings; the list ends at what names no card, and a repetition hides all."""
    with make_machine().installed():
        assert [card.uuid for card in visible_cards(value)] == seen


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (PARTS[1], [PARTS[1]]),
        ("MIG-dddd", [PARTS[1]]),
        ("1", [PARTS[0]]),
        (SECOND, [PARTS[0]]),
        ("MIG-cccc,MIG-dddd", [PARTS[0]]),
        ("0", [FIRST]),
    ],
)
def test_a_card_in_mig_mode_is_seen_as_one_instance(value, seen):
    with make_machine(divided={SECOND}).installed():
        assert [card.uuid for card in visible_cards(value)] == seen


@pytest.mark.parametrize("uuid", [SECOND, PARTS[1]])
def test_a_card_or_an_instance_is_found_by_its_uuid_with_prefix_or_as_torch_gives_it(uuid):
    with make_machine(divided={THIRD}).installed():
        assert find_card(uuid).uuid == find_card(uuid.partition("-")[2]).uuid == uuid
        assert find_card(PARTS[1]).whole.card.uuid == THIRD


@pytest.mark.parametrize(("value", "part"), [(None, PARTS[0]), (PARTS[1], PARTS[1]), ("2", PARTS[0]), ("0", PARTS[0])])
def test_the_uuid_of_a_card_in_mig_mode_means_the_instance_in_use(monkeypatch, value, part):
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with make_machine(divided={THIRD}).installed():
        assert find_card(THIRD.removeprefix("GPU-")).uuid == part


def test_an_unknown_uuid_is_said_to_be_one_and_a_card_without_mig_has_no_instances():
    with make_machine().installed(), pytest.raises(NvmlError, match="nvidia-smi -L"):
        find_card("GPU-nowhere")
    with FakeNvml(FakeCard(is_divided=None)).installed():
        assert instances(all_cards()[0]) == []


def test_a_card_that_one_may_not_use_does_not_count_and_doctor_can_say_what_is_seen(monkeypatch):
    """A control group can hide the device files of cards that the driver counts."""
    machine = make_machine()
    with machine.installed():
        machine.errors["nvmlDeviceGetHandleByIndex"] = pynvml.NVML_ERROR_NO_PERMISSION
        assert all_cards() == []
    with make_machine().installed():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        assert describe_visible() == "driver 550.54.15, GPUs seen: NVIDIA Paper 40GB (40.00 GiB)"
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert describe_visible().endswith("GPUs seen: none: CUDA_VISIBLE_DEVICES= hides all 3")
