"""``import autorecompute.compat`` before ORTModule lets ORTModule 1.19.2 run on a current PyTorch.

One line serves scripts that never see the tuner::

    import autorecompute.compat  # before onnxruntime.training.ortmodule
    from onnxruntime.training.ortmodule import ORTModule

Where the installed torch needs nothing (2.4 to 2.6), nothing is touched.
"""

from __future__ import annotations

from autorecompute.backends.ortmodule.adapter import adapt

REPAIRS = adapt()
"""Names of the repairs made in this process; empty where none was needed."""
