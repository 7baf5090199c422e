"""Several ranks that are tuned while they train, beside the same ranks without the tool."""

import functools
import json
import re
import socket
import sys

import pytest

from workplace import SCRIPTS

SCRIPT = str(SCRIPTS / "training_ranks.py")
LAUNCH = ("-m", "torch.distributed.run")
TWO = (*LAUNCH, "--nproc-per-node", "2")
STEP_BYTES = 60 * 10**6
"""Above what a rank holds at rest; its steps take 80 MB without recompute, and 35 MB with most."""

SHARED_BYTES = 30 * 10**6
"""What a rank takes more under ``fully_shard``, for parameters that it gathers."""

LONG = ("--steps", "64")
GOES_ON = "no further config is tried, and the training goes on"


@pytest.fixture(scope="module")
def place(make_workplace):
    """The working directory of most of these trainings."""
    return make_workplace("ranks")


@pytest.fixture(scope="module")
def train_plainly(place):
    """Has the ranks train without the tool, once for the same arguments."""
    return functools.cache(lambda *arguments: place.finish(place.start(*TWO, SCRIPT, *arguments)))


@pytest.fixture(scope="module")
def limit(find_rest):
    """A limit that a rank breaks without recompute, and holds with some."""
    return find_rest(SCRIPT, "--launcher", " ".join([sys.executable, *TWO])) + STEP_BYTES


@pytest.fixture(scope="module")
def begin(limit):
    """Starts ranks that are tuned."""

    def begin(place, study, *arguments, steps=40, launch=TWO, more=0, **variables):
        launcher = " ".join([sys.executable, *launch])
        options = ("--memory-limit", str(limit + more), "--study", study, "--tuning-steps", str(steps))
        return place.start(
            "-m", "autorecompute", "train", SCRIPT, *options, "--launcher", launcher, "--", *arguments, **variables
        )

    return begin


def said(finished):
    """What the tool said, as opposed to script and launcher."""
    prefix = "autorecompute: "
    return [line.removeprefix(prefix) for line in finished.stderr.splitlines() if line.startswith(prefix)]


def printed(*finished):
    """What all ranks have printed, in an order of its own."""
    return sorted(line for one in finished for line in one.stdout.splitlines() if line.startswith("rank "))


def test_ranks_train_the_same_bit_for_bit(place, train_plainly, begin):
    """Losses, weights and random numbers of each rank are those without the tool, and several configs were on."""
    trained, plain = place.finish(begin(place, "ddp", *LONG)), train_plainly(*LONG)
    assert (trained.code, printed(trained)) == (0, printed(plain)), trained.stderr
    (line,) = said(trained)
    assert re.search(r"from step \d+ on: .*, peak .* of .*, .* samples/s", line)
    trials = place.study("ddp").trials
    assert len({tuple(trial["config"]) for trial in trials}) > 1
    assert all(trial["measurement"]["samples"] == 2 * 96 for trial in trials)
    again = place.finish(begin(place, "ddp", *LONG))
    assert printed(again) == printed(plain)
    assert re.search(r"from step 1 on: .* as study ddp has it", said(again)[0])


def test_the_line_in_a_script_does_the_same(workplace, train_plainly, limit):
    """Every rank calls it, and the first one speaks."""
    finished = workplace.finish(workplace.start(*TWO, SCRIPT, *LONG, "--auto", str(limit)))
    assert (finished.code, printed(finished)) == (0, printed(train_plainly(*LONG))), finished.stderr
    begins, ends = said(finished)
    assert "INFO looking for what to recompute" in begins
    assert re.search(r"INFO from step \d+ on: ", ends)


def test_two_nodes_train_the_same(make_workplace, train_plainly, begin):
    """Two agents over the loopback, each started with the tool: the first rank of all has the study."""
    nodes = [make_workplace("first_node"), make_workplace("second_node")]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    agent = ("--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", port)
    started = [
        begin(node, "nodes", *LONG, launch=(*LAUNCH, *agent, "--node-rank", str(rank)))
        for rank, node in enumerate(nodes)
    ]
    first, second = (node.finish(process) for node, process in zip(nodes, started, strict=True))
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    assert printed(first, second) == printed(train_plainly(*LONG))
    assert re.search(r"from step \d+ on: ", said(first)[0])
    assert nodes[0].study("nodes").trials
    assert not list(nodes[1].path.glob("studies/*"))


@pytest.mark.thorough
def test_a_launcher_that_starts_the_tool_in_each_rank_does_the_same(workplace, train_plainly, limit):
    """One search is started, and one study written."""
    tool = (
        "-m",
        "autorecompute",
        "train",
        SCRIPT,
        "--memory-limit",
        str(limit),
        "--study",
        "inside",
        "--tuning-steps",
        "40",
    )
    finished = workplace.finish(workplace.start(*TWO, *tool, "--", *LONG))
    assert (finished.code, printed(finished)) == (0, printed(train_plainly(*LONG))), finished.stderr
    assert re.search(r"from step \d+ on: ", said(finished)[0])


@pytest.mark.parametrize(
    ("followed", "sentence"), [("0", "rank 1 did not begin"), pytest.param("1", "", marks=pytest.mark.thorough)]
)
def test_a_rank_without_the_tool_trains_on_with_the_others(workplace, train_plainly, followed, sentence, limit):
    """Nobody waits for it but before the first step, and nothing is recomputed."""
    arguments = ("--steps", "4")
    finished = workplace.finish(workplace.start(*TWO, SCRIPT, *arguments, "--auto", str(limit), "--auto-on", followed))
    assert (finished.code, printed(finished)) == (0, printed(train_plainly(*arguments))), finished.stderr
    assert sentence in " ".join(said(finished))


def test_a_rank_that_has_fewer_batches_ends_the_search_alone(workplace, train_plainly, begin):
    """The others go on under Join with what is on, as without the tool."""
    arguments = (*LONG, "--fewer", "44")
    finished = workplace.finish(begin(workplace, "uneven", *arguments, steps=400))
    assert (finished.code, printed(finished)) == (0, printed(train_plainly(*arguments))), finished.stderr
    (line,) = said(finished)
    assert f"{GOES_ON}: not all ranks measure at the same steps" in line
    assert workplace.study("uneven").trials


def test_a_rank_that_is_killed_ends_the_job_as_without_the_tool(workplace, train_plainly, begin):
    """The launcher ends the others, and no search is left behind."""
    arguments = ("--steps", "1000", "--dies", "12")
    finished = workplace.finish(begin(workplace, "killed", *arguments, steps=400))
    assert finished.code == train_plainly(*arguments).code != 0
    assert {line for line in printed(finished) if "step 11 " in line} <= set(printed(train_plainly(*arguments)))
    workplace.wait_until(lambda: not workplace.processes())


def test_memory_that_runs_out_on_another_rank_is_its_error(workplace, train_plainly, begin):
    """That rank says what to do, and the job ends as without the tool."""
    arguments = ("--steps", "1000", "--raises", "9")
    finished = workplace.finish(begin(workplace, "lacking", *arguments, steps=400))
    assert finished.code == train_plainly(*arguments).code != 0
    assert any("out of memory at step 9" in line for line in said(finished))


def test_a_killed_search_leaves_the_ranks_alone(workplace, train_plainly, begin):
    """They go on with the config that is on, all of them to their own end."""
    process = begin(workplace, "search", "--steps", "24", steps=1000)
    workplace.wait_for_trials(process, 1)
    (search,) = [one for one in workplace.processes() if "training_search" in " ".join(one.cmdline())]
    search.kill()
    finished = workplace.finish(process)
    assert (finished.code, printed(finished)) == (0, printed(train_plainly("--steps", "24"))), finished.stderr
    assert said(finished) == [f"{GOES_ON}: the search has ended without an answer."]


def test_trials_of_ranks_are_not_those_of_one_process(place):
    """The number of ranks is a part of what was tuned."""
    assert json.loads((place.study("ddp").path / "study.json").read_text())["problem"]["plan_versions"]["ranks"] == "2"


def test_sharded_ranks_train_the_same_bit_for_bit(workplace, train_plainly, begin):
    """Modules are recomputed whole or in part; the first config is the leanest, as no peak is known before."""
    arguments = ("--steps", "56", "--shards")
    finished = workplace.finish(begin(workplace, "sharded", *arguments, more=SHARED_BYTES))
    assert (finished.code, printed(finished)) == (0, printed(train_plainly(*arguments))), finished.stderr
    assert re.search(r"from step \d+ on: ", said(finished)[0])
    trials = workplace.study("sharded").trials
    assert trials[0]["config"] == ["blocks.*:checkpoint"]
    assert len(trials) > 1
    assert not [choice for trial in trials for choice in trial["config"] if ":drop" in choice]


def test_a_killed_search_leaves_sharded_ranks_together(workplace, train_plainly, begin):
    """Ranks that recomputed different blocks would wait for each other's parameters."""
    arguments = ("--steps", "24", "--shards")
    process = begin(workplace, "sharded", *arguments, steps=1000)
    workplace.wait_for_trials(process, 1)
    (search,) = [one for one in workplace.processes() if "training_search" in " ".join(one.cmdline())]
    search.kill()
    finished = workplace.finish(process)
    assert (finished.code, printed(finished)) == (0, printed(train_plainly(*arguments))), finished.stderr
