"""``import autorecompute.compat`` before ORTModule lets ORTModule 1.19.2 run on a current PyTorch.

One line serves scripts that never see the tuner::

    import autorecompute.compat  # before onnxruntime.training.ortmodule
    from onnxruntime.training.ortmodule import ORTModule

On torch 2.4 to 2.6 ORTModule runs without it; what it cannot train there, such as attention with dropout, is exported
otherwise.
"""

from __future__ import annotations

from autorecompute.backends.ortmodule.adapter import adapt

REPAIRS = adapt()  # names of the repairs made in this process; empty where none was needed
