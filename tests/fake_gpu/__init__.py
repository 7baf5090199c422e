"""Stand-ins for a GPU, for tests on machines that have none.

``FakeNvml`` takes the place of ``pynvml``, ``FakeCuda`` that of ``torch.cuda``. Both tell of the same ``FakeCard``:
what the one's allocator reserves, the other counts as used. Neither needs torch or a driver::

    from autorecompute.meters.cuda import CudaMeter
    from fake_gpu import FakeCard, FakeCuda, FakeNvml
    from autorecompute.units import GIB

    card = FakeCard(total_bytes=40 * GIB, clock_reasons=0x004)
    cuda = FakeCuda(card)
    with FakeNvml(card).installed(), cuda.installed():
        meter = CudaMeter()
        cuda.allocate(3 * GIB)
        meter.observe()
        assert meter.read().marks == ("power cap",)
"""

from fake_gpu.fake_cuda import FakeCuda
from fake_gpu.fake_nvml import FakeCard, FakeNvml

__all__ = ["FakeCard", "FakeCuda", "FakeNvml"]
