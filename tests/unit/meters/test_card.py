"""What a card tells about itself."""

import pynvml
import pytest

from autorecompute.meters.card import CLOCK_EVENTS, CONTEXT_BYTES, Neighbours
from autorecompute.meters.lookup import all_cards, instances
from autorecompute.meters.nvml import Nvml, NvmlCardError, NvmlUnsupportedError
from autorecompute.units import GIB, MIB
from fake_gpu import FakeCard

OURS, THEIRS = 4711, 815


@pytest.fixture
def asked(nvml):
    """The card, as the wrapper has it."""
    assert len(nvml.cards) == 1
    return all_cards(Nvml())[0]


def test_memory_tells_what_the_driver_keeps_from_what_is_used(card, asked):
    """Where the driver knows the second version of the call, its own share is neither used nor free."""
    card.processes[THEIRS] = 3 * GIB
    memory = asked.memory()
    assert (memory.total_bytes, memory.used_bytes) == (40 * GIB, 3 * GIB)
    assert memory.free_bytes == 37 * GIB - card.driver_bytes


def test_an_old_driver_is_asked_the_old_way(card, nvml, asked):
    """Without the second version, the first answers."""
    nvml.errors["nvmlDeviceGetMemoryInfo_v2"] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    card.processes[THEIRS] = 3 * GIB
    assert asked.memory().used_bytes == 3 * GIB + card.driver_bytes
    assert asked.memory().free_bytes == 37 * GIB - card.driver_bytes


def test_a_lost_card_is_not_asked_the_old_way(nvml, asked):
    """Only a question that is not known is asked again; a broken card is told as one."""
    nvml.errors["nvmlDeviceGetMemoryInfo_v2"] = pynvml.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(NvmlCardError, match="fallen off the bus"):
        asked.memory()


def test_clock_events_are_words(card, asked):
    """Several at once come in one order."""
    card.clock_reasons = pynvml.nvmlClocksEventReasonHwSlowdown | pynvml.nvmlClocksEventReasonSwPowerCap
    assert asked.clock_events() == ("power cap", "hardware slowdown")


def test_an_idle_card_and_fixed_clocks_are_no_events(card, asked):
    """They say nothing against a measurement."""
    card.clock_reasons = pynvml.nvmlClocksEventReasonGpuIdle | pynvml.nvmlClocksEventReasonApplicationsClocksSetting
    assert asked.clock_events() == ()


def test_the_bits_are_those_of_nvml():
    """Every bit that has words is NVML's, under the name that the words come from."""
    names = ("SwPowerCap", "HwSlowdown", "SyncBoost", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    assert set(CLOCK_EVENTS) == {getattr(pynvml, f"nvmlClocksEventReason{name}") for name in names}
    assert CLOCK_EVENTS[pynvml.nvmlClocksEventReasonSwThermalSlowdown] == "thermal slowdown"
    assert CLOCK_EVENTS[pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown] == "power brake"


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED])
def test_clock_events_have_an_older_name(card, nvml, asked, code):
    """Drivers before 535 answer under the name of throttle reasons."""
    nvml.errors["nvmlDeviceGetCurrentClocksEventReasons"] = code
    card.clock_reasons = pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
    assert asked.clock_events() == ("thermal slowdown",)


def test_clock_events_under_no_name_are_unsupported(nvml, asked):
    """A card without them does not pass for one whose clocks are free."""
    for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        nvml.errors[function] = pynvml.NVML_ERROR_NOT_SUPPORTED
    with pytest.raises(NvmlUnsupportedError):
        asked.clock_events()


def test_an_instance_has_the_clocks_of_its_card(card, asked):
    """NVML tells them of the whole card only."""
    card.is_divided, card.instances = True, [FakeCard(uuid="MIG-1", total_bytes=10 * GIB)]
    card.clock_reasons = pynvml.nvmlClocksEventReasonSwPowerCap
    assert instances(asked)[0].clock_events() == ("power cap",)
    assert instances(asked)[0].memory().total_bytes == 10 * GIB


def test_others_are_counted_where_this_process_is_listed(card, asked):
    """Then NVML's process ids are ours, and the list can be believed; its own context is not among the others."""
    card.processes = {OURS: 9 * GIB, THEIRS: 2 * GIB, THEIRS + 1: 100 * MIB}
    card.graphics = {THEIRS + 1}
    assert asked.neighbours(OURS, 8 * GIB) == Neighbours(used_bytes=2 * GIB + 100 * MIB, is_counted=True)


def test_in_a_container_others_are_what_is_not_accounted_for(card, asked):
    """A list of the host's process ids is not believed: this process is in it under another number."""
    card.processes = {31337: 9 * GIB, 31338: 5 * GIB}
    assert asked.neighbours(OURS, 8 * GIB) == Neighbours(used_bytes=6 * GIB - CONTEXT_BYTES, is_counted=False)


def test_alone_in_a_container_its_context_is_not_taken_for_others(card, asked):
    """NVML lists nobody there, and what a context takes is allowed for."""
    card.unlisted_bytes = 8 * GIB + 600 * MIB
    assert asked.neighbours(OURS, 8 * GIB) == Neighbours(used_bytes=0, is_counted=False)


def test_a_process_of_unknown_size_makes_the_list_useless(card, asked):
    """Its memory would be missing from the sum."""
    card.processes = {OURS: 9 * GIB, THEIRS: None}
    card.unlisted_bytes = 4 * GIB
    assert asked.neighbours(OURS, 8 * GIB) == Neighbours(used_bytes=5 * GIB - CONTEXT_BYTES, is_counted=False)


def test_a_driver_that_lists_no_processes_is_asked_for_memory(card, nvml, asked):
    """Without the right to the list there is still the sum."""
    nvml.errors["nvmlDeviceGetComputeRunningProcesses"] = pynvml.NVML_ERROR_NO_PERMISSION
    card.processes = {OURS: 9 * GIB, THEIRS: 5 * GIB}
    assert asked.neighbours(OURS, 8 * GIB) == Neighbours(used_bytes=6 * GIB - CONTEXT_BYTES, is_counted=False)
