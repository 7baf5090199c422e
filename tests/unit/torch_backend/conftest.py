import functools
import sys

import pytest
import torch

import tiny_models


@pytest.fixture(params=tiny_models.MODELS)
def training(request):
    return tiny_models.make(request.param)


@pytest.fixture(autouse=True)
def one_thread():
    """The same order of additions in every run."""
    torch.set_num_threads(1)


@pytest.fixture
def alone():
    """The mesh of a process that is the only rank."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield torch.distributed.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.fixture
def uncompiled():
    """A process in which nothing was compiled before, whatever other tests have done in it."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@pytest.fixture
def fresh_compiler(request, tmp_path_factory, monkeypatch):
    """Nothing is compiled or asked for before or after; one cache for all tests.

    The compiler traces, differentiates and divides a model as ever, and its graphs are interpreted.
    Tests of the code that it makes have the mark ``cpp``.
    """
    import torch._functorch.config
    import torch._inductor.compile_fx
    import torch._inductor.config
    from torch._functorch.aot_autograd import make_boxed_func

    if request.node.get_closest_marker("cpp") is None:

        def interpret(graph, _inputs, **_options):
            return make_boxed_func(graph.forward)

        compile_fx = torch._inductor.compile_fx.compile_fx
        interpreting = functools.partial(compile_fx, inner_compile=interpret)
        monkeypatch.setattr(torch._inductor.compile_fx, "compile_fx", interpreting)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "inductor"))
    torch._dynamo.reset()
    own = torch._functorch.config.patch(activation_memory_budget=1.0)
    with own, torch._inductor.config.patch(joint_custom_post_pass=None):
        yield
    torch._dynamo.reset()


@pytest.fixture(scope="session")
def compiled_models():
    """By the way they are compiled: each with what it offers and its switches, looked at once."""
    from autorecompute.backends.torch.compiled.detection import detect_compiled
    from compiled_models import WAYS, batch

    @functools.cache
    def look(way):
        torch.manual_seed(0)
        model = WAYS[way]()
        return model, *detect_compiled(model, (batch(),), {})

    return look


@pytest.fixture
def compiled_model(request, compiled_models):
    """One of them, compiled as a whole unless a test says otherwise; nothing is on afterwards."""
    model, found, board = compiled_models(getattr(request, "param", "whole"))
    yield model, found, board
    board.set([])
