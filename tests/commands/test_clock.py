import json
import os
import signal
import struct
import subprocess
import time
from datetime import datetime
from pathlib import Path

WALL_CLOCK = Path(__file__).parents[1] / "scripts" / "wall_clock.cpp"
HOUR = 3600


def test_sessions_whose_wall_clocks_lie_hours_apart_are_one_tuning(desk, tmp_path):
    """It comes to its answer, no jump uses up its time, and it tells the time by a clock that nobody sets."""
    library, shift = tmp_path / "wall_clock.so", tmp_path / "shift"
    subprocess.run([os.environ.get("CXX", "c++"), "-shared", "-fPIC", "-o", library, WALL_CLOCK], check=True)
    search = ("--memory-limit", "750MiB", "--max-trials", "4", "--timeout", "1h", "--json")
    clock = {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(shift)}
    shift.write_bytes(struct.pack("q", 5 * HOUR))
    began, process = desk.clock.monotonic(), desk.start_tuning(*search, FAKE_FAULT="stand@2", **clock)
    desk.wait_until(lambda: desk.has_printed("stand at 2"))
    assert desk.stop(process, signal.SIGINT).code == 130
    created = json.loads((desk.study().path / "study.json").read_text())["created"]
    assert datetime.fromisoformat(created).timestamp() > time.time() + 4 * HOUR
    shift.write_bytes(struct.pack("q", -7 * HOUR))
    resumed = desk.tune(*search, **clock)
    assert resumed.code == 0, resumed.stderr
    assert "after 2 trials" in resumed.stderr
    assert resumed.answer["best"]["confirmed"]
    assert resumed.answer["search_end"] == "trials"
    assert 0 < resumed.answer["wall_seconds"] <= desk.clock.monotonic() - began
