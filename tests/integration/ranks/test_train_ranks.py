import functools
import json
import re
import socket
import sys

import pytest

from autorecompute.tuning.while_training import NEXT_START
from workplace import SCRIPTS

SCRIPT = str(SCRIPTS / "training_ranks.py")
LAUNCH = ("-m", "torch.distributed.run")
TWO = (*LAUNCH, "--nproc-per-node", "2")
STEP_BYTES = 60 * 10**6
"""Above what a rank holds at rest; its steps take 80 MB without recompute, and 35 MB with most."""

SHARED_BYTES = 30 * 10**6
"""What a rank takes more under ``fully_shard``, for parameters that it gathers."""

LONG = ("--steps", "64")
GOES_ON = "tuning has stopped, and the training goes on"


@pytest.fixture(scope="module")
def train_plainly(place):
    return functools.cache(lambda *arguments: place.finish(place.start(*TWO, SCRIPT, *arguments)))


@pytest.fixture(scope="module")
def limit(find_rest):
    return find_rest(SCRIPT, "--launcher", " ".join([sys.executable, *TWO])) + STEP_BYTES


@pytest.fixture(scope="module")
def begin(limit):
    def begin(place, study, *arguments, steps=40, launch=TWO, more=0, **variables):
        launcher = " ".join([sys.executable, *launch])
        options = ("--memory-limit", str(limit + more), "--study", study, "--tuning-steps", str(steps))
        return place.start(
            "-m", "autorecompute", "train", SCRIPT, *options, "--launcher", launcher, "--", *arguments, **variables
        )

    return begin


def printed(*finished):
    return sorted(line for one in finished for line in one.stdout.splitlines() if line.startswith("rank "))


@pytest.fixture
def end_alike(train_plainly):
    """Ends what was started with the tool as a training with these arguments ends without it; gives how it went."""

    def end(place, process, *arguments):
        finished = place.finish(process)
        assert (finished.code, printed(finished)) == (0, printed(train_plainly(*arguments))), finished.stderr
        return finished

    return end


def test_ranks_train_the_same_bit_for_bit(place, end_alike, begin):
    (line,) = end_alike(place, begin(place, "ddp", *LONG), *LONG).said
    assert re.search(r"from step \d+ on: .*, peak .* of .*, .* samples/s", line)
    trials = place.study("ddp").trials
    assert len({tuple(trial["config"]) for trial in trials}) > 1
    assert all(trial["measurement"]["samples"] == 2 * 96 for trial in trials)
    problem = json.loads((place.study("ddp").path / "study.json").read_text())["problem"]
    assert problem["plan_versions"]["ranks"] == "2", "they are no trials of one process"
    again = end_alike(place, begin(place, "ddp", *LONG), *LONG)
    assert re.search(r"from step \d+ on: ", again.said[0])
    if NEXT_START not in line:  # on a busy machine the steps may be too few to compare all
        assert "as study ddp has it" in again.said[0]


def test_the_line_in_a_script_does_the_same(workplace, end_alike, limit):
    begins, ends = end_alike(workplace, workplace.start(*TWO, SCRIPT, *LONG, "--auto", str(limit)), *LONG).said
    assert "INFO looking for what to recompute" in begins
    assert re.search(r"INFO from step \d+ on: ", ends)


def test_two_nodes_train_the_same(make_workplace, train_plainly, begin):
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
    assert re.search(r"from step \d+ on: ", first.said[0])
    assert nodes[0].study("nodes").trials
    assert not list(nodes[1].path.glob("studies/*"))


def test_a_launcher_that_starts_the_tool_in_each_rank_does_the_same(workplace, end_alike, limit):
    options = ("--memory-limit", str(limit), "--study", "inside", "--tuning-steps", "40")
    started = workplace.start(*TWO, "-m", "autorecompute", "train", SCRIPT, *options, "--", *LONG)
    finished = end_alike(workplace, started, *LONG)
    assert re.search(r"from step \d+ on: ", finished.said[0])


@pytest.mark.parametrize(("followed", "sentence"), [("0", "rank 1 did not begin"), ("1", "")])
def test_a_rank_without_the_tool_trains_on_with_the_others(workplace, end_alike, followed, sentence, limit):
    training = ("--steps", "4")
    started = workplace.start(*TWO, SCRIPT, *training, "--auto", str(limit), "--auto-on", followed)
    finished = end_alike(workplace, started, *training)
    assert sentence in " ".join(finished.said)


def test_a_rank_that_has_fewer_batches_ends_the_search_alone(workplace, end_alike, begin):
    arguments = (*LONG, "--fewer", "44")
    (line,) = end_alike(workplace, begin(workplace, "uneven", *arguments, steps=400), *arguments).said
    assert f"{GOES_ON}: not all ranks measure at the same steps" in line
    assert workplace.study("uneven").trials


def test_a_rank_that_is_killed_ends_the_job_as_without_the_tool(workplace, train_plainly, begin):
    arguments = ("--steps", "1000", "--dies", "12")
    finished = workplace.finish(begin(workplace, "killed", *arguments, steps=400))
    assert finished.code == train_plainly(*arguments).code != 0
    assert {line for line in printed(finished) if "step 11 " in line} <= set(printed(train_plainly(*arguments)))
    workplace.wait_until(lambda: not workplace.processes())


def test_memory_that_runs_out_on_another_rank_is_its_error(workplace, train_plainly, begin):
    arguments = ("--steps", "1000", "--raises", "9")
    finished = workplace.finish(begin(workplace, "lacking", *arguments, steps=400))
    assert finished.code == train_plainly(*arguments).code != 0
    assert any("out of memory at step 9" in line for line in finished.said)


@pytest.mark.parametrize("spread", [(), ("--shards",)], ids=["replicas", "shards"])
def test_a_killed_search_leaves_the_ranks_alone_and_together(workplace, end_alike, begin, spread):
    arguments = ("--steps", "24", *spread)
    process = begin(workplace, "search", *arguments, steps=1000)
    workplace.wait_for_trials(process, 1)
    (search,) = [one for one in workplace.processes() if "training_search" in " ".join(one.cmdline())]
    search.kill()
    finished = end_alike(workplace, process, *arguments)
    assert finished.said == [f"{GOES_ON}: the search has ended without an answer."]


def test_sharded_ranks_train_the_same_bit_for_bit(workplace, end_alike, begin):
    arguments = ("--steps", "56", "--shards")
    finished = end_alike(workplace, begin(workplace, "sharded", *arguments, more=SHARED_BYTES), *arguments)
    assert re.search(r"from step \d+ on: ", finished.said[0])
    trials = workplace.study("sharded").trials
    assert trials[0]["config"] == ["blocks.*:checkpoint"]
    assert len(trials) > 1
    assert not [choice for trial in trials for choice in trial["config"] if ":drop" in choice]
