"""Runs another script for so many optimizer steps, and prints digests of all that it computed.

These are its losses, the weights and the optimizers' state in the end, buffers of modules, and the next random number.

``python digested.py STEPS SCRIPT ARGS``. An ORTModule in it is the model itself.
"""

import builtins
import gc
import hashlib
import random
import sys
import types
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

IMPORT = "from onnxruntime.training.ortmodule import ORTModule"
PLAIN = "ORTModule = lambda model: model"

count, script = int(sys.argv[1]), sys.argv[2]
sys.argv = sys.argv[2:]
losses, stepped = hashlib.sha256(), []
backward = torch.Tensor.backward


def bytes_of(tensor):
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def note_and_backward(tensor, *args, **kwargs):
    losses.update(bytes_of(tensor))
    return backward(tensor, *args, **kwargs)


def digest(tensors):
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(bytes_of(tensor))
    return found.hexdigest()


def digest_buffers():
    modules = [one for one in gc.get_objects() if isinstance(one, torch.nn.Module)]
    return digest(sorted((one for module in modules for one in module.buffers(recurse=False)), key=bytes_of))


def print_digests():
    optimizers = list(dict.fromkeys(stepped))
    groups = [group for one in optimizers for group in one.param_groups]
    states = [state for one in optimizers for state in one.state.values()]
    print("steps", len(stepped), "losses", losses.hexdigest())
    print("weights", digest(weight for group in groups for weight in group["params"]))
    print("state", digest(one for state in states for one in state.values() if isinstance(one, torch.Tensor)))
    gc.collect()
    print("buffers", digest_buffers(), "next", torch.rand(1).item(), random.random())


def end_after(optimizer, *_):
    stepped.append(optimizer)
    if len(stepped) == count:
        print_digests()
        sys.exit(0)


torch.Tensor.backward = note_and_backward
register_optimizer_step_post_hook(end_after)
torch.manual_seed(0)
random.seed(0)
main = types.ModuleType("__main__")
main.__dict__.update(__file__=script, __builtins__=builtins)
sys.modules["__main__"] = main
text = Path(script).read_text().replace(IMPORT, PLAIN)
exec(compile(text, script, "exec"), main.__dict__)  # noqa: S102
print_digests()
