import pynvml
import pytest

from autorecompute.meters.cuda import CudaMeter
from autorecompute.units import GIB, MIB
from fake_gpu import FakeCuda


def test_three_figures_of_one_memory(begin):
    cuda, meter = begin(context_bytes=400 * MIB)
    for size in (3 * GIB, 2 * GIB):
        cuda.allocate(size)
    cuda.free(3 * GIB)
    cuda.allocate(1 * GIB)
    reading = meter.read()
    assert reading.peak_bytes == 5 * GIB
    assert reading.allocated_bytes == 5 * GIB
    assert reading.device_bytes == 5 * GIB + 400 * MIB
    assert reading.marks == ()


def test_a_reset_forgets_the_peak_and_a_release_the_cache(begin):
    cuda, meter = begin()
    cuda.allocate(3 * GIB)
    cuda.allocate(1 * GIB)
    cuda.free(3 * GIB)
    assert meter.held_bytes() == 4 * GIB
    meter.release()
    meter.reset()
    assert meter.held_bytes() == meter.read().peak_bytes == 1 * GIB


@pytest.mark.parametrize(("limit_bytes", "room_bytes"), [(8 * GIB, 8 * GIB), (80 * GIB, 39 * GIB)])
def test_a_limit_plays_a_smaller_card_and_no_larger_one(begin, limit_bytes, room_bytes):
    cuda, meter = begin()
    meter.limit(limit_bytes)
    cuda.allocate(room_bytes - MIB)
    with pytest.raises(cuda.OutOfMemoryError, match="CUDA out of memory"):
        cuda.allocate(200 * MIB)


def test_a_model_on_a_card_that_is_not_the_current_one(nvml):
    """``model.to("cuda:1")`` leaves ``cuda:0`` the current one, which has nothing to tell."""
    with FakeCuda(nvml.cards[0], index=1).installed() as cuda:
        cuda.allocate(2 * GIB)
        meter = CudaMeter()
        meter.limit(8 * GIB)
        cuda.allocate(3 * GIB)
        assert meter.read().peak_bytes == meter.held_bytes() == 5 * GIB
        with pytest.raises(cuda.OutOfMemoryError):
            cuda.allocate(4 * GIB)


def thrash(cuda, *, times):
    cuda.empty_cache()
    for more in range(times + 1):
        cuda.free(cuda.allocate(5 * GIB + more))


@pytest.mark.parametrize(
    ("times", "mark"), [(1, "1 allocator retry: fits but thrashes"), (3, "3 allocator retries: fits but thrashes")]
)
def test_retries_since_the_reset_are_counted_and_marked(begin, times, mark):
    cuda, meter = begin()
    meter.limit(8 * GIB)
    thrash(cuda, times=2)
    meter.reset()
    assert meter.read().retries == 0
    thrash(cuda, times=times)
    assert meter.read().retries == times
    assert meter.read().marks == (mark,)


def test_an_allocator_that_counts_no_retries_has_none(begin, monkeypatch):
    cuda, meter = begin()
    monkeypatch.setattr(cuda, "memory_stats", lambda _device: {})
    meter.reset()
    assert meter.read().retries is None


def test_what_held_the_clocks_down_is_marked_once(card, begin):
    _, meter = begin()
    for reasons in (0, 0x20, 0x04 | 0x20, 0):
        card.clock_reasons = reasons
        meter.observe()
    assert meter.read().marks == ("thermal slowdown", "power cap")
    meter.reset()
    assert meter.read().marks == ()


def test_other_processes_are_marked_and_in_a_container_estimated(card, begin):
    _, meter = begin()
    card.processes[1] = 20 * MIB
    assert meter.read().marks == ()
    card.processes[2] = 2 * GIB
    assert meter.read().marks == ("2.02 GiB of other processes on the card",)
    card.processes.clear()
    cuda, meter = begin(pid=None)
    cuda.allocate(3 * GIB)
    assert meter.read().marks == ()
    card.unlisted_bytes += 4 * GIB
    assert meter.read().marks == ("about 3.39 GiB of other processes on the card",)


def test_outside_is_what_the_allocator_can_never_have(card, begin):
    """The context and others; what the driver keeps, torch does not count to the card's memory in the first place."""
    cuda, meter = begin(context_bytes=400 * MIB)
    cuda.allocate(3 * GIB)
    card.processes[1] = 2 * GIB
    assert meter.outside_bytes() == 2 * GIB + 400 * MIB


def test_without_nvml_torch_still_has_its_figures(card, nvml, begin):
    nvml.errors["nvmlInit"] = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    cuda, meter = begin(context_bytes=400 * MIB)
    cuda.allocate(3 * GIB)
    card.clock_reasons = 0x04
    meter.observe()
    reading = meter.read()
    assert (reading.peak_bytes, reading.device_bytes, reading.marks) == (3 * GIB, None, ())
    assert meter.outside_bytes() == 400 * MIB


def test_a_card_that_is_lost_halfway_leaves_figures_unknown(nvml, begin):
    """The trial ends by what torch says about it, not by ours."""
    _, meter = begin()
    for function in ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons"):
        nvml.errors[function] = pynvml.NVML_ERROR_GPU_IS_LOST
    nvml.errors["nvmlDeviceGetComputeRunningProcesses"] = pynvml.NVML_ERROR_GPU_IS_LOST
    meter.observe()
    assert meter.read().device_bytes is None
    assert meter.read().marks == ()
