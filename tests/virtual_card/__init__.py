"""A card that exists on paper: whole tunings run as on a GPU, on a machine that has none.

In the processes of a tuning everything on ``cuda`` is a fake tensor, forward and backward. The package's own model of
the allocator answers ``torch.cuda`` and raises out of memory, a roofline tells how long kernels take, and one clock,
which all processes share, stands for the real one. Nothing has values: a loss is 1, and gradients are always equal.
Streams, ``torch.compile``, Triton and a second card are not there. What a real card says corrects the figures here.

:meth:`Paper.variables` gives what a tuning needs in its environment; the package is not changed for it.
"""

import ctypes
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from virtual_card.clock import Clock, Field

FOLDER = Path(__file__).parent
TESTS = FOLDER.parent
VARIABLE = "VIRTUAL_CARD"
GIB, MIB = 2**30, 2**20

NAMES = {"H100": "NVIDIA H100 80GB HBM3", "A100": "NVIDIA A100-SXM4-40GB", "RTX 4090": "NVIDIA GeForce RTX 4090"}
BYTES = {"H100": 85_017_493_504, "A100": 42_298_834_944, "RTX 4090": 25_256_656_896}
"""Their memory, as ``torch.cuda.get_device_properties`` tells it."""

CONTEXT_BYTES = 600 * MIB
"""Memory of the card that CUDA itself takes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paper:
    """A card and the machine that it is in.

    Attributes:
        model: Its name among the package's cards.
        clock: The file of the tuning's clock; made where there is none.
        total_bytes: Its memory; that of the model where it is 0.
        seed: Of the noise.
        noise: How much there is; 0 for none, 1 for what an H100 showed.
        import_seconds: What a process takes until its script has imported what it needs.
        cuda_seconds: What the first use of the card takes.
        guard: The library that has a CPU build of torch know ``cuda``.
    """

    model: str
    clock: str
    total_bytes: int = 0
    seed: int = 0
    noise: float = 1.0
    import_seconds: float = 9.0
    cuda_seconds: float = 11.0
    guard: str = ""

    @property
    def name(self):
        return NAMES[self.model]

    @property
    def bytes(self):
        return self.total_bytes or BYTES[self.model]

    def variables(self):
        """Return the environment variables of a tuning."""
        path = [str(FOLDER / "startup"), str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")]
        with_guard = dataclasses.replace(self, guard=self.guard or str(build_guard()))
        return {
            VARIABLE: json.dumps(dataclasses.asdict(with_guard)),
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spent:
    """Time and processes of a tuning, by its clock."""

    seconds: float
    starts: int
    out_of_memory: int
    retries: int

    @classmethod
    def of(cls, clock, begin):
        counts = (int(clock.get(field)) for field in (Field.STARTS, Field.OUT_OF_MEMORY, Field.RETRIES))
        return cls(
            seconds=clock.get() - begin, **dict(zip(("starts", "out_of_memory", "retries"), counts, strict=True))
        )


def build_guard():
    """Build the library for this interpreter's torch, unless that was done; give its path."""
    source = FOLDER / "guard.cpp"
    ask = "import torch; print(torch.__version__, torch.__path__[0], int(torch._C._GLIBCXX_USE_CXX11_ABI), sep='\\n')"
    asked = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    version, root, abi = asked.stdout.split("\n")[:3]
    key = hashlib.sha256(f"{version} {root}".encode() + source.read_bytes()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autorecompute"
    library = cache / f"virtual-card-{key}.so"
    if not library.exists():
        cache.mkdir(parents=True, exist_ok=True)
        made = library.with_suffix(f".{os.getpid()}")
        options = ["-std=c++20", "-O1", "-shared", "-fPIC", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
        headers = [f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include"]
        linked = [f"-L{root}/lib", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{root}/lib"]
        subprocess.run(["g++", *options, *headers, str(source), "-o", str(made), *linked], check=True)
        made.replace(library)
    return library


def enter_process():
    """Put the card into this process: a worker's, or the one that tunes."""
    paper = Paper(**json.loads(os.environ[VARIABLE]))
    if "AUTORECOMPUTE_WORKER" in os.environ:
        install(paper)
    else:
        Clock(paper.clock).run_controller()


def install(paper):
    """Give this process, which has not imported torch, a card that cannot be taken out again; return it."""
    assert "torch" not in sys.modules, "torch looks once which devices there are"
    clock = Clock(paper.clock)
    clock.run_worker()
    ctypes.CDLL(paper.guard or str(build_guard()), mode=ctypes.RTLD_GLOBAL)
    from virtual_card import card

    return card.install(paper, clock)


def run(paper, *arguments, cwd):
    """Run a verb on the card; return the process that ended, and what it spent by the clock."""
    clock = Clock(paper.clock)
    begin = clock.get()
    done = subprocess.run(
        [sys.executable, "-m", "autorecompute", *arguments],
        env={**os.environ, **paper.variables()},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    return done, Spent.of(clock, begin)
