import re
from pathlib import Path

import pytest

import autorecompute

ROOT = Path(autorecompute.__file__).parent
OWN_WORDS = re.compile(r"\bORT\b|onnx|ortmodule|recompute levels?|level_?[12]\b|probe config", re.IGNORECASE)
COMPAT = "compat.py"
"""The one line that scripts with an ORTModule of their own import."""

NAMED = {"backends/registry.py": r"PACKAGES = \{.*?\}", "tested.py": r"VERSIONS = \{.*?\}"}
"""Where a backend is named, and in what."""


def neutral_files():
    for file in sorted(ROOT.rglob("*")):
        place = file.relative_to(ROOT)
        is_of_a_backend = place.parts[0] == "backends" and len(place.parts) > 2 and place.parts[1] != "common"
        if (
            file.suffix in {".py", ".json", ".html", ".css", ".js", ".j2"}
            and not is_of_a_backend
            and file.name != COMPAT
        ):
            yield str(place)


@pytest.mark.parametrize("place", list(neutral_files()))
def test_no_training_system_is_spoken_of_outside_its_folder(place):
    text = (ROOT / place).read_text(encoding="utf-8")
    text = re.sub(NAMED.get(place, r"(?!)"), "", text, flags=re.DOTALL)
    assert OWN_WORDS.findall(text) == []
