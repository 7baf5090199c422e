"""Measures how much sooner several workers are through with one study than a single one, over a real PostgreSQL.

Prints one JSON object: the seconds from the begin of the first trial to the end of the last by the number of workers,
and the ratio to one worker. Trials are looked up in a recorded table and take a fixed time, as on cards that do not
disturb each other; proposals, claims and the storage take what they take, all on the processors of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from workers.processes import STUDY, assert_nothing_is_lost_or_doubled, stored
from workers.server import Server, url_of

COUNTS = (1, 2, 8)
WORKER = Path(__file__).parent / "replay" / "worker.py"
ENVIRONMENT = {
    "PYTHONPATH": str(Path(__file__).parents[1]),
    # Threads of eight workers that wait for each other on two cores take ten times as long as one each.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def search_seconds(server, folder, count, trials, trial_seconds):
    """What the search takes with so many workers."""
    database = f"study{count}"
    server.make_database(database)
    storage = url_of(database, server.port)
    command = [sys.executable, WORKER, "--storage", storage, "--study", STUDY]
    command += ["--max-trials", str(trials), "--trial-seconds", str(trial_seconds), "--folder"]
    folders = [folder / f"{count}-{number}" for number in range(count)]
    environment = os.environ | ENVIRONMENT
    workers = [subprocess.Popen([*command, own], env=environment, stdout=subprocess.DEVNULL) for own in folders]
    assert [worker.wait() for worker in workers] == [0] * count
    lines = [line for own in folders for line in (own / "measured.jsonl").read_text().splitlines()]
    assert_nothing_is_lost_or_doubled(storage, [tuple(json.loads(line)) for line in lines])
    kept = [trial for trial in stored(storage) if "outcome" in trial.user_attrs]
    begun = min(trial.datetime_start for trial in kept)
    return (max(trial.datetime_complete for trial in kept) - begun).total_seconds()


def main():
    """Runs each number of workers and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=33)
    parser.add_argument("--trial-seconds", type=float, default=3.0)
    args = parser.parse_args()
    server = Server()
    try:
        server.start()
        with tempfile.TemporaryDirectory() as folder:
            seconds = {
                count: search_seconds(server, Path(folder), count, args.trials, args.trial_seconds) for count in COUNTS
            }
        ratios = {f"{count} workers": round(seconds[1] / seconds[count], 2) for count in COUNTS[1:]}
        print(json.dumps({"seconds": seconds, "times as fast as one worker": ratios}, indent=2), flush=True)
        server.stop()
    finally:
        server.remove()


if __name__ == "__main__":
    main()
