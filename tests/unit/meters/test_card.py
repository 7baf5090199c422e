import pynvml
import pytest

from autorecompute.meters.nvml import CONTEXT_BYTES, NvmlError, NvmlUnsupportedError, all_cards, instances
from autorecompute.units import GIB, MIB
from fake_gpu import FakeCard

OURS, THEIRS = 4711, 815


@pytest.fixture
def asked(nvml):
    assert len(nvml.cards) == 1
    return all_cards()[0]


def test_memory_tells_what_the_driver_keeps_from_what_is_used(card, asked):
    """Where the driver knows the second version of the call, its own share is neither used nor free."""
    card.processes[THEIRS] = 3 * GIB
    assert (asked.memory_bytes("total"), asked.memory_bytes("used")) == (40 * GIB, 3 * GIB)
    assert asked.memory_bytes("free") == 37 * GIB - card.driver_bytes


def test_an_old_driver_is_asked_the_old_way(card, nvml, asked):
    nvml.errors["nvmlDeviceGetMemoryInfo_v2"] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    card.processes[THEIRS] = 3 * GIB
    assert asked.memory_bytes("used") == 3 * GIB + card.driver_bytes
    assert asked.memory_bytes("free") == 37 * GIB - card.driver_bytes


def test_a_lost_card_is_not_asked_the_old_way(nvml, asked):
    nvml.errors["nvmlDeviceGetMemoryInfo_v2"] = pynvml.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(NvmlError, match="fallen off the bus"):
        asked.memory_bytes("used")


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


def test_clock_events_under_no_name_are_unsupported(nvml, asked):
    for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        nvml.errors[function] = pynvml.NVML_ERROR_NOT_SUPPORTED
    with pytest.raises(NvmlUnsupportedError):
        asked.clock_events()


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
