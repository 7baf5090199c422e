import subprocess
import sys
from pathlib import Path

import pytest

from workplace import HANG_SECONDS

STUDIES = Path(__file__).parents[3] / "studies"
SMALL = {"--layers": "1", "--hidden": "32", "--heads": "2", "--sequence": "16", "--width": "8", "--stages": "2"}

TRAIN = """
import runpy
import sys

sys.modules["onnxruntime"] = sys.modules["autorecompute"] = None  # neither can be imported
script, *rest = sys.argv[1:]
sys.argv = [script, *rest]
runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.parametrize("script", sorted(STUDIES.glob("*/train.py")), ids=lambda script: script.parent.name)
def test_a_study_trains_without_onnxruntime(script):
    text = script.read_text()
    sizes = [word for flag, value in SMALL.items() if f'"{flag}"' in text for word in (flag, value)]
    command = [sys.executable, "-c", TRAIN, str(script), *sizes, "--device", "cpu", "--batch", "2", "--steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("step 2  loss ")
