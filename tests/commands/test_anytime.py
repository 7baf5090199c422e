"""An answer within the time that is given, and at any moment it is asked for; time is the trainings' own."""

import json
import signal
from pathlib import Path

LONG = ("--memory-limit", "750MiB", "--sampler", "random", "--json")
"""A search that goes on until its trials are used up outlasts the first confirmation by far."""

KEPT = 20
"""Trials after which something is confirmed: early answers take a fifth of the time at most."""


def test_a_timeout_bounds_the_whole_command_which_ends_with_a_confirmed_answer(desk):
    began = desk.clock.monotonic()
    finished = desk.tune(*LONG, "--max-trials", "1000", "--timeout", "5m")
    assert finished.code == 0, finished.stderr
    assert desk.clock.monotonic() - began <= 1.1 * 300
    assert finished.answer["best"]["confirmed"]
    assert finished.answer["search_end"] == "time"


def test_an_interruption_emits_the_best_that_was_confirmed_which_is_gone_on_with_and_not_confirmed_twice(desk):
    """It was stopped twice in a row when something was confirmed."""
    process = desk.start_tuning(*LONG, "--max-trials", "200", "--study", "stopped", FAKE_FAULT=f"stand@{KEPT}")
    desk.wait_until(lambda: desk.has_printed(f"stand at {KEPT}"))
    stopped = desk.stop(process, signal.SIGINT, signal.SIGINT)
    assert stopped.code == 130, stopped.stderr
    answer = stopped.answer
    assert (answer["search_end"], answer["best"]["confirmed"]) == ("interrupted", True)
    assert "The best that is confirmed so far" in stopped.complaint
    assert "Traceback" not in stopped.stderr
    (path,) = answer["best"]["env"].values()
    sites = {choice.rpartition(":")[0].partition(":")[0] for choice in answer["best"]["config"]}
    assert json.loads(Path(path).read_text()).keys() == sites
    emitted = desk.run("emit", "stopped", "--format", "json")
    assert (emitted.code, emitted.answer["environment"]) == (0, answer["best"]["env"])
    desk.wait_until(lambda: not desk.processes())
    finished = desk.tune(*LONG, "--max-trials", str(KEPT + 1), "--study", "stopped")
    assert finished.code == 0, finished.stderr
    assert f"after {KEPT} trials" in finished.stderr
    assert (finished.answer["search_end"], finished.answer["trials"]) == ("trials", KEPT + 1)
    confirmed = json.loads((desk.study("stopped").path / "confirmed.json").read_text())["confirmed"]
    configs = [best["config"] for best in confirmed]
    assert all(configs.count(config) == 1 for config in configs)
    assert stopped.answer["best"]["config"] in configs
