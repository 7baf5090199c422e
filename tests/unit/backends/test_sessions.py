"""What several ranks of one training share when they swap configs."""

from __future__ import annotations

import json
import threading

from autorecompute.backends.ortmodule.grammar import rows_of
from autorecompute.backends.ortmodule.sessions import _write_plans
from autorecompute.plans import Config

CONFIG = Config.parse([f"Gelu+{'Add+' * place}:1:-1" for place in range(200)])


def test_a_plans_file_is_whole_whenever_it_is_read(tmp_path):
    """One rank reads it while another, which switches at the same moment, writes it again."""
    file, is_over = tmp_path / f"{CONFIG.hash}.json", threading.Event()
    assert _write_plans(CONFIG, tmp_path) == str(file)

    def write_again():
        while not is_over.is_set():
            _write_plans(CONFIG, tmp_path)

    writer = threading.Thread(target=write_again)
    writer.start()
    try:
        for _ in range(300):
            assert json.loads(file.read_text()) == rows_of(CONFIG)
    finally:
        is_over.set()
        writer.join()
