import itertools

import pytest

pytestmark = pytest.mark.gpu

LENGTH = 128
CALLS = [
    {"dtype": dtype, "size": size, "masked": masked, "dropout": dropout}
    for dtype, size, masked, dropout in itertools.product(
        ("float16", "bfloat16", "float32"), (64, 100, 128, 256), (False, True), (0.0, 0.1, 0.125)
    )
]


def inputs_of(call, device):
    import torch

    shape, dtype = (2, LENGTH, 4, call["size"]), getattr(torch, call["dtype"])
    tensors = [torch.empty(shape, dtype=dtype, device=device).transpose(1, 2).requires_grad_() for _ in range(3)]
    mask = torch.empty(2, 1, LENGTH, LENGTH, dtype=torch.bool, device=device) if call["masked"] else None
    return tensors, mask


def kept_by(call, device):
    import torch
    from torch.nn import functional

    from autorecompute.backends.torch.find.storages import Storages

    storages, saved = Storages(), []
    tensors, mask = inputs_of(call, device)
    for tensor in tensors:
        storages.see(tensor)
    with torch.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one) or one, lambda one: one):
        functional.scaled_dot_product_attention(*tensors, mask, dropout_p=call["dropout"])
    return sum(storages.see(tensor)[1] for tensor in saved)


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_the_card_takes_the_kernel_of_the_table(call):
    """And keeps what a fake step with this kernel does, but for the few bytes of the random numbers' state."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.nn.attention import SDPBackend

    from autorecompute.backends.torch.fake.machine import CardKernels
    from autorecompute.backends.torch.forecast.cards import CUDNN, EFFICIENT, FLASH, MATH

    names = {
        SDPBackend.CUDNN_ATTENTION: CUDNN,
        SDPBackend.FLASH_ATTENTION: FLASH,
        SDPBackend.EFFICIENT_ATTENTION: EFFICIENT,
        SDPBackend.MATH: MATH,
    }
    tensors, mask = inputs_of(call, "cuda")
    choice = torch._fused_sdp_choice(*tensors, mask, call["dropout"])
    kernels = CardKernels(torch.cuda.get_device_capability())
    with FakeTensorMode(), kernels.active():
        forecast = kept_by(call, "cpu")
    assert list(kernels.taken) == [names[SDPBackend(choice)]]
    assert kept_by(call, "cuda") == pytest.approx(forecast, abs=64)
