"""Another library's checkpoint, which PyTorch's switches know nothing of."""

import torch


class Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x):
        ctx.function = function
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            result = ctx.function(x)
        torch.autograd.backward(result, gradient)
        return None, x.grad
