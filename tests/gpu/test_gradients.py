import pytest

from autorecompute.plans import Choice

pytestmark = pytest.mark.gpu

WIDTH, LAYERS = 2048, 16


class Board:
    is_exact = True
    choices = ()

    def set(self, choices):
        self.choices = tuple(choices)


def test_no_more_gradients_are_held_than_at_the_end_of_a_step():
    import torch

    from autorecompute.backends.torch.check.gradients import check_gradients

    layers = [torch.nn.Linear(WIDTH, WIDTH, device="cuda") for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers)
    gradient_bytes = sum(parameter.nbytes for parameter in model.parameters())
    x = torch.rand(2, WIDTH, device="cuda")
    torch.nn.functional.linear(x, layers[0].weight)  # cuBLAS takes its workspace
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert check_gradients(model, Board(), [Choice("*", "checkpoint")], (x,), {}).agrees
    taken = torch.cuda.max_memory_allocated() - before
    assert gradient_bytes < taken < 1.6 * gradient_bytes


def block(width):
    import torch

    return torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width))


def test_gradients_are_compared_where_a_step_without_recompute_does_not_fit():
    import torch

    from autorecompute.backends.torch.check.gradients import check_gradients
    from autorecompute.backends.torch.switch.applying import Tuned

    model = torch.nn.Sequential(*(block(512) for _ in range(32)), torch.nn.Linear(512, 1)).cuda().train()
    x = torch.rand(2, 4096, 512, device="cuda")
    with torch.no_grad():
        model(x)  # cuBLAS takes its workspace
    tuned = Tuned.of(model, (x,), {})
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(2**31 / whole)
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            model(x).sum().backward()
        model.zero_grad()
        checked = check_gradients(model, tuned.board, [Choice("*", "checkpoint")], (x,), {}, blocks=tuned.blocks)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert checked.agrees
