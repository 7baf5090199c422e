import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios

import pytest

from workplace import LONG_TRAINING, OWN_TRAINING, SCRIPTS, SHORT_TRAINING, own_disk


def test_a_terminal_shows_how_far_the_trials_are(workplace, limit, train_plainly):
    pytest.importorskip("tqdm")
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (24, 120))
    options = ("--memory-limit", limit, "--study", "shown", "--tuning-steps", "36")
    command = [sys.executable, "-m", "autorecompute", "train", OWN_TRAINING, *options, "--", *LONG_TRAINING]
    with subprocess.Popen(command, cwd=workplace.path, stdout=subprocess.PIPE, stderr=its, text=True) as process:
        os.close(its)
        shown = read_all(ours)
        stdout = process.stdout.read()
    assert stdout == train_plainly(*LONG_TRAINING).stdout
    assert re.search(r"autorecompute: +\d+%.*\d+/36 .*step", shown)
    assert re.search(r"from step \d+ on: ", shown)


def read_all(terminal):
    told = b""
    with contextlib.suppress(OSError):
        while more := os.read(terminal, 1 << 16):
            told += more
    os.close(terminal)
    return told.decode()


@pytest.mark.parametrize(
    ("first", "told"),
    [
        ("importlib.util.find_spec('torch')", "ended before the search did"),
        ("del sys.meta_path[0]", "nothing was tuned. The script changes how Python imports"),
    ],
    ids=["looks it up", "takes hooks away"],
)
def test_torch_is_noticed_however_the_script_comes_to_it(workplace, limit, train_plainly, first, told):
    script = workplace.path / "comes_to_torch.py"
    script.write_text(
        f"import importlib.util, runpy, sys\n{first}\nsys.path[0] = {str(SCRIPTS)!r}\n"
        f"runpy.run_path({OWN_TRAINING!r}, run_name='__main__')\n"
    )
    options = ("--memory-limit", limit, "--study", "noticed", "--tuning-steps", "400")
    finished = workplace.finish(
        workplace.start("-m", "autorecompute", "train", str(script), *options, "--", *SHORT_TRAINING)
    )
    assert (finished.code, finished.stdout) == (0, train_plainly(*SHORT_TRAINING).stdout)
    assert told in finished.said[-1]


@pytest.mark.usefixtures("cold_python")
def test_a_killed_search_leaves_the_training_alone(workplace, begin, train_plainly):
    training = ("--steps", "80")  # steps are left when the search is found and killed, on a busy machine as well
    process = begin(workplace, "killed", *training, steps=1000)
    workplace.wait_for_trials(process, 1)
    (search,) = [one for one in workplace.processes() if "train" in one.cmdline()]
    search.kill()
    finished = workplace.finish(process)
    assert finished.code == 0
    assert finished.stdout == train_plainly(*training).stdout
    assert "the search has ended without an answer" in finished.said[0]


@pytest.mark.usefixtures("cold_python")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_the_scripts(workplace, begin, number):
    process = begin(workplace, "stopped", "--steps", "1000", "--handles", steps=500)
    workplace.wait_for_trials(process, 1)
    process.send_signal(number)
    finished = workplace.finish(process)
    assert finished.code == 9
    assert finished.stdout.endswith(f"stopped by {number.name}\n")
    assert "Traceback" not in finished.stderr
    assert json.loads((workplace.study().path / "result.json").read_text())["search_end"] == "training"
    workplace.wait_until(lambda: not workplace.processes())


def test_a_script_that_ends_first_leaves_what_is_known_and_the_next_start_goes_on(workplace, train_alike):
    first = train_alike("short", *SHORT_TRAINING, steps=400)
    known = workplace.study().configs
    train_alike("short", *SHORT_TRAINING, steps=400)
    assert "ended before the search did" in first.said[-1]
    assert known
    assert workplace.study().configs[: len(known)] == known
    assert len(set(workplace.study().configs)) == len(workplace.study().configs) > len(known)


def test_a_search_whose_steps_ran_out_was_not_interrupted_and_goes_on_at_the_next_start(workplace, train_alike):
    arguments = ("--steps", "30", "--scheduled", "240")
    first = train_alike("few", *arguments)
    assert "the next start tries more" in first.said[-1]
    assert json.loads((workplace.study().path / "result.json").read_text())["search_end"] == "training"
    shown = workplace.finish(workplace.start("-m", "autorecompute", "show", "few"))
    assert "had no steps left for trials" in shown.stdout
    assert "interrupted" not in shown.stdout
    known = workplace.study().configs
    train_alike("few", *arguments)
    assert len(set(workplace.study().configs)) > len(known) > 0


def test_what_cannot_be_tuned_trains_as_without_the_tool(train_alike):
    (line,) = train_alike("refused", "--steps", "3", "--models", "2").said
    assert "several models" in line


def test_a_model_that_leaves_torch_is_measured_from_the_leanest_config_on(workplace, train_alike):
    (line,) = train_alike("leaves", "--steps", "60", "--leaves", steps=50, share=1.05).said
    assert re.search(r"from step \d+ on: .* real steps told the peaks", line)
    trials = workplace.study("leaves").trials
    assert trials[0]["config"] == ["blocks.*:checkpoint"]
    assert len(trials) > 1
    assert all(trial["measurement"]["outcome"] == "ok" for trial in trials)


def test_a_compiled_model_trains_as_without_the_tool(workplace, scripts, limit):
    script, options = str(scripts / "compiled.py"), ("--memory-limit", limit, "--study", "compiled")
    command = ("-m", "autorecompute", "train", script, *options, "--", "--steps", "3")
    finished, plain = (workplace.finish(workplace.start(*words)) for words in (command, (script, "--steps", "3")))
    assert (finished.code, finished.stdout) == (plain.code, plain.stdout) == (0, plain.stdout)
    (line,) = finished.said
    assert "the model is compiled" in line
    assert "autorecompute tune SCRIPT" in line


@pytest.mark.parametrize(
    ("fault", "reason"), [("wrong", "its gradients are wrong"), ("raises", "a step with it raises")]
)
def test_a_config_that_would_train_something_else_is_used_in_no_step(workplace, train_alike, fault, reason):
    finished = train_alike("unsteady", "--steps", "60", "--again", fault)
    assert any(re.search(rf"Not used: [^:]*blocks\.\*[^:]*, {reason}", line) for line in finished.said), finished.said
    used = [trial for trial in workplace.study("unsteady").trials if trial["measurement"]["step_seconds"]]
    assert used
    assert not any(choice.startswith("blocks.*:") for trial in used for choice in trial["config"])


def test_batches_that_grow_end_the_search_and_nothing_else(train_alike):
    finished = train_alike("growing", "--steps", "24", "--grows", "6", steps=400)
    assert "a batch of 144 now, not 96" in finished.said[-1]


def test_memory_that_runs_out_is_the_scripts_error_and_a_bound(workplace, train_alike):
    finished = train_alike("lacking", "--steps", "3", "--lacks", "1")
    assert finished.code == 1
    assert "out of memory at step 1" in finished.stderr
    (trial,) = workplace.study().trials
    assert trial["measurement"]["outcome"] == "oom"


@pytest.fixture
def disk(workplace):
    (workplace.path / "studies").mkdir()
    with own_disk(workplace.path / "studies", 1) as folder:
        yield folder


def test_a_home_that_cannot_be_written_changes_nothing(disk, make_workplace, monkeypatch, begin, train_plainly):
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    monkeypatch.setenv("HOME", str(disk))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    place = make_workplace("homeless")
    finished = place.finish(begin(place, "homeless", *SHORT_TRAINING, steps=400))
    assert (finished.code, finished.stdout) == (0, train_plainly(*SHORT_TRAINING).stdout)
    (line,) = finished.said
    assert "ended before the search did" in line
    assert place.study("homeless").trials


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_study_that_cannot_be_kept_stops_the_search_alone(disk, train_alike, fault):
    if fault == "full":
        with contextlib.suppress(OSError), (disk / "full").open("wb") as file:
            file.write(bytes(2 << 20))
    else:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    (line,) = train_alike("kept", *SHORT_TRAINING).said
    assert str(disk) in line
