"""What a live ORTModule is given when it swaps configs."""

import json
import threading

import pytest

from autorecompute.backends.ortmodule.grammar import rows_of
from autorecompute.backends.ortmodule.sessions import give_here
from autorecompute.errors import UsageError
from autorecompute.plans import Config

CONFIG = Config.parse([f"Gelu+{'Add+' * place}:1:-1" for place in range(200)])


def test_a_plans_file_is_whole_whenever_it_is_read(tmp_path):
    """One rank reads it while another, which switches at the same moment, writes it again."""
    file, is_over = tmp_path / f"{CONFIG.hash}.json", threading.Event()
    assert give_here(CONFIG, "1.19.2", tmp_path).plans == str(file)

    def write_again():
        while not is_over.is_set():
            give_here(CONFIG, "1.19.2", tmp_path)

    writer = threading.Thread(target=write_again)
    writer.start()
    try:
        for _ in range(300):
            assert json.loads(file.read_text()) == rows_of(CONFIG)
    finally:
        is_over.set()
        writer.join()


@pytest.mark.parametrize("version", ["1.17.3", "1.18.0"])
def test_a_live_ortmodule_is_held_to_what_the_variable_holds(tmp_path, version):
    """A swap takes no plans that the variable of ORT 1.17 and 1.18 could not hold, and writes no file for others."""
    with pytest.raises(UsageError, match="2048 at most"):
        give_here(CONFIG, version, tmp_path)
    short = Config.parse(["Gelu+:1:-1", "Add+:1:-1"])
    assert give_here(short, version, tmp_path).plans.split(",") == rows_of(short)
    assert list(tmp_path.iterdir()) == []
