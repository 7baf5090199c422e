"""What looking at a model leaves in the process."""

import numpy as np
from torch import nn

from autorecompute.backends.torch.telling import surveyed

MB = 10**6
ROOT = nn.Linear(2, 2)


def test_what_a_survey_leaves_is_weighed():
    """What it has let go of is not, and on another device the host's memory is nobody's concern."""
    kept = []

    def survey():
        np.ones(80 * MB, dtype=np.uint8)
        kept.append(np.ones(50 * MB, dtype=np.uint8))
        return None, "no reason"

    told = surveyed(ROOT, survey)
    assert (told.steps, told.no_steps) == (None, "no reason")
    assert 45 * MB < told.left_bytes < 55 * MB
    assert surveyed(ROOT.to("meta"), survey).left_bytes == 0
