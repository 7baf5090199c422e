"""Records what the installed ONNX Runtime answers about a script's plans, for the unit tests of other versions.

python benchmarks/record_plans.py answers.json tests/scripts/casting.py [SCRIPT ARGUMENTS]
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
from pathlib import Path

import onnxruntime

from autorecompute.backends.ortmodule import detection, worker
from autorecompute.backends.ortmodule.controller import IGNORING_LAYERS, WITHIN_LAYERS


class Recorder:
    """Writes the answers at the first training session, and ends the process.

    Args:
        file: Where to.
    """

    def __init__(self, file):
        self.file = file

    def on_session(self, detect):
        """Asks under both probe configs, before any step has run."""
        assert isinstance(detect, functools.partial)
        assert detect.func is detection.detect
        (manager,) = detect.args
        inputs = {value.name: value.type.tensor_type for value in manager._onnx_models.optimized_model.graph.input}
        dims = manager._runtime_inspector.memory_ob.symbolic_dim_name_to_value_map
        named = {str(symbol).rpartition("_dim")[0] for symbol in dims}
        answers = {
            "onnxruntime": onnxruntime.__version__,
            "dims": {str(symbol): int(value) for symbol, value in dims.items()},
            "inputs": {
                name: {"element_type": tensor.elem_type, "rank": len(tensor.shape.dim)}
                for name, tensor in inputs.items()
                if name in named
            },
            "answers": {
                probe: self._ask(manager._execution_agent, probe) for probe in (IGNORING_LAYERS, WITHIN_LAYERS)
            },
        }
        self.file.write_text(json.dumps(answers, indent=1) + "\n")
        os._exit(0)

    def on_forward(self, batch, check):
        """Lets it come: the session is created in it."""

    def on_fallback(self, message):
        """Says why there is nothing to ask."""
        raise SystemExit(message)

    @staticmethod
    def _ask(agent, probe):
        stat = agent.get_serialized_ortmodule_memory_stat
        return stat("", probe) if onnxruntime.__version__ < "1.19" else stat("", probe, True)


def main():
    """Runs the script with the recorder as ORTModule's listener."""
    file, script, *arguments = sys.argv[1:]
    worker.OrtModuleBackend(Path()).install(Recorder(Path(file)))
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
