"""Stand-ins for a GPU, for tests on machines that have none.

``FakeNvml`` takes the place of ``pynvml``, ``FakeCuda`` that of ``torch.cuda``. Both tell of the same ``FakeCard``:
what the one's allocator reserves, the other counts as used. Neither needs torch or a driver.
"""

from fake_gpu.fake_cuda import FakeCuda
from fake_gpu.fake_nvml import FakeCard, FakeNvml

__all__ = ["FakeCard", "FakeCuda", "FakeNvml"]
