"""Trains the plain transformer while the wall clock is set forward and back by hours, once in every step."""

import itertools
import mmap
import os
import struct
import time
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook

from plain_transformer import main

HOUR = 3600

hours = itertools.cycle((-7, 5, -14))


def jump(*_):
    struct.pack_into("q", shift, 0, next(hours) * HOUR)
    print("it is", time.time())


register_optimizer_step_post_hook(jump)
with Path(os.environ["CLOCK_SHIFT"]).open("r+b") as file, mmap.mmap(file.fileno(), 0) as shift:
    main()
