import sys
from pathlib import Path

import pytest

from autorecompute.errors import ScriptError, UsageError

BERT = Path(__file__).parents[3] / "studies" / "bert_mlm" / "train.py"
SMALL_BERT = ("--ortmodule", "--layers", "1", "--hidden", "32", "--heads", "2", "--sequence", "16")

# Plans are detected at no more than 8 samples where the script takes its batch as an argument.
BATCH = 24

NEAR = 0.1
"""Share by which a plan may take less off the stash than it states: here and there an input has to be kept."""


@pytest.fixture(scope="module")
def start(place, scripts):
    def start(script, *options, arguments=(), **variables):
        rest = ["--", *arguments] if arguments else []
        return place.start("-m", "autorecompute", "plans", str(scripts / script), *options, *rest, **variables)

    return start


@pytest.fixture(scope="module")
def look(place, start):
    return lambda script, *options, **given: place.finish(start(script, *options, **given))


@pytest.fixture(scope="module")
def bert(look):
    options = ("--batch", str(BATCH), "--dim", "sequence=32", "--details", "--json")
    return look(BERT, *options, arguments=(*SMALL_BERT, "--batch", "{batch}"))


def test_a_saving_at_a_batch_is_what_a_detection_there_states(look, bert):
    sizes = (*SMALL_BERT[:-1], "32")
    there = look(BERT, "--json", arguments=(*sizes, "--batch", str(BATCH)))
    assert (bert.code, there.code) == (0, 0)
    assert bert.answer["first_batch_dims"] == {"batch": 8, "sequence": 16}
    assert bert.answer["dims"] == there.answer["dims"] == there.answer["first_batch_dims"]
    assert savings_in(bert.answer) == savings_in(there.answer)
    unknown = [plan for plan in bert.answer["plans"] if plan["saving_bytes"] is None]
    assert all("empty_dim_param" in plan["saving_symbolic"] for plan in unknown), "sizes that depend on data"


def savings_in(answer):
    return {plan["config"]: plan["saving_bytes"] for plan in answer["plans"]}


def test_the_tables_are_data_and_the_rest_is_talk(look, bert):
    shown = look(BERT, "--batch", str(BATCH), "--details", arguments=(*SMALL_BERT, "--batch", "{batch}"))
    assert shown.code == 0
    out = shown.stdout
    assert out.startswith("Memory Optimizer: OFF   level 0, probe config 1:0")
    assert [plan["config"] for plan in bert.answer["plans"] if plan["config"] not in out] == []
    assert "Stashed activations" in out
    assert "[batch x 2 x sequence x sequence]" in out
    assert "loss" not in out + shown.stderr


def test_every_plan_is_explained_by_its_activations(bert):
    summed = {}
    for insight in bert.answer["insights"]:
        for option in insight["options"]:
            summed[option["config"]] = summed.get(option["config"], 0) + (option["saving_bytes"] or 0)
    assert summed == {config: saving_bytes or 0 for config, saving_bytes in savings_in(bert.answer).items()}


@pytest.mark.parametrize(
    ("command", "arguments", "words"),
    [
        (("transformer.py", "--batch", "2", "--dim", "length=4"), ("--bs", "{batch}"), "'length'"),
        (("transformer.py", "--batch", "2", "--dim", "batch=4"), ("--bs", "{batch}"), "'batch'"),
        (("accelerated.py", "--peak", "--launcher", "torchrun --nproc-per-node 2"), (), "--launcher"),
        ((BERT, "--peak", "--with", "99"), SMALL_BERT, "There is no plan 99"),
    ],
    ids=["an unknown dimension", "the batch as one", "several processes", "an unknown plan"],
)
def test_what_cannot_be_shown_is_refused_in_a_sentence(look, command, arguments, words):
    looked = look(*command, arguments=arguments)
    assert (looked.code, looked.stdout) == (UsageError.exit_code, "")
    assert words in looked.complaint


def test_a_shared_buffer_is_saved_by_both_plans_or_by_none(look):
    plans = {plan["config"]: plan for plan in look("sharing.py", "--json").answer["plans"]}
    alone, together = plans["Gelu+:1"], plans["Gelu+:1,Reshape+:1"]
    assert (alone["saving_bytes"], alone["is_corrected"]) == (0, True)
    assert (together["saving_bytes"], together["is_corrected"]) == (alone["stated_bytes"], False)
    assert together["saving_symbolic"] == "64*batch*x_dim1"


def test_what_the_shell_switches_on_is_held_against_the_plans(look):
    looked = look("transformer.py", ORTMODULE_MEMORY_OPT_LEVEL="1")
    assert looked.stdout.startswith("Memory Optimizer: ON   level 1, probe config 1:1")
    assert " OFF " not in looked.stdout
    looked = look("transformer.py", "--log-level", "warning", ORTMODULE_MEMORY_OPT_LEVEL="1")
    assert (looked.code, looked.stdout) == (0, "")


def test_the_exporters_graph_is_shown_at_the_loudest_level_only(look):
    loud = look("transformer.py", "--log-level", "verbose")
    assert "Exported graph: graph(" in loud.stderr
    details = look("transformer.py", ORTMODULE_LOG_LEVEL="DEVINFO")
    assert "[I:onnxruntime" in details.stderr
    assert "Exported graph" not in details.stderr
    assert "Stashed activations" in details.stdout


@pytest.mark.parametrize("level", [(), ("--log-level", "info")])
def test_a_crash_leaves_its_last_words(look, level):
    looked = look("faulty_export.py", *level, arguments=("--fault", "segfault"))
    assert (looked.code, looked.stdout) == (ScriptError.exit_code, "")
    assert "SIGSEGV" in looked.complaint
    assert "last words" in looked.complaint


def test_the_log_goes_out_while_it_is_written(place, start):
    process = start("faulty_export.py", "--log-level", "info", arguments=("--fault", "wait"))
    assert "last words\n" in iter(process.stderr.readline, "")
    assert process.poll() is None
    (place.path / "go").touch()
    assert place.finish(process).code == 0


def test_a_breakpoint_ends_the_script_or_has_the_terminal(look, tmp_path):
    stopped = look("faulty_export.py", arguments=("--fault", "breakpoint"))
    assert stopped.code == ScriptError.exit_code
    assert "stops in the debugger at" in stopped.complaint
    assert "--debug-script" in stopped.complaint

    commands = tmp_path / "commands"
    commands.write_text("p 6 * 7\ncontinue\n")
    with commands.open() as typed:
        options = ("--debug-script", "--json")
        debugged = look("faulty_export.py", *options, arguments=("--fault", "breakpoint"), stdin=typed)
    assert "(Pdb) 42" in debugged.stderr
    assert "Gelu+:1" in savings_in(debugged.answer)


def test_details_come_from_every_rank_and_the_summary_from_the_first(look):
    launcher = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2"
    command = ("accelerated.py", "--launcher", launcher)
    detailed = look(*command, "--log-level", "devinfo")
    assert detailed.stdout.count("Memory Optimizer: ") == 1
    assert "Rank 0: Stashed activations" in detailed.stdout
    assert "Rank 1: Stashed activations" in detailed.stdout
    assert "orttraining.rank-1 " in detailed.stderr

    brief = look(*command, "--log-level", "info", "--json")
    assert "orttraining.rank-0 " in brief.stderr
    assert "orttraining.rank-1 " not in brief.stderr
    (other,) = brief.answer["other_ranks"]
    assert (other["rank"], other["insights"]) == (1, brief.answer["insights"])


def test_the_peak_is_explained_from_one_small_step_and_the_stash_of_a_plan_is_what_it_states(look, place):
    picture = place.path / "peak.svg"
    options = ("--batch", str(BATCH), "--memory-limit", "100GiB", "--picture", str(picture), "--json")
    explained = look(BERT, *options, arguments=(*SMALL_BERT, "--batch", "{batch}"))
    assert explained.code == 0, explained.stderr
    peak = explained.answer["peak"]
    assert (peak["dims"]["batch"], peak["profiled_dims"]["batch"], peak["is_predicted"]) == (BATCH, 7, True)
    none, everything = peak["timelines"].values()
    assert none["recomputed_operations"] == 0 < everything["recomputed_operations"]
    assert everything["stash_bytes"] < none["stash_bytes"]
    assert all(forecast["holds_limit"] for forecast in peak["forecasts"])
    assert picture.stat().st_size
    stated = savings_in(explained.answer)
    for effect in peak["effects"]:
        if effect["config"] in {"Gelu+:1", "FusedMatMul+Add+:1"}:
            assert effect["stash_saving_bytes"] == pytest.approx(stated[effect["config"]], rel=NEAR)


def test_the_peak_is_told_in_a_terminal(look):
    options = ("--batch", str(BATCH), "--peak", "--memory-limit", "100MiB", "--with", "1")
    told = look(BERT, *options, arguments=(*SMALL_BERT, "--batch", "{batch}"))
    assert told.code == 0, told.stderr
    for words in ("predicted from a profiled one at batch 7", "largest at the peak of none", "Dropout+", "too large"):
        assert words in told.stdout
    assert told.stdout.count(f"--target-batch={BATCH} --memory-limit=100MiB") == 3


def test_a_script_without_a_loader_is_profiled_at_its_own_batch(look):
    told = look("tensors.py", "--peak", "--json")
    assert told.code == 0, told.stderr
    assert told.answer["peak"]["profiled_dims"]["batch"] == told.answer["peak"]["dims"]["batch"] == 4


def test_a_script_that_ends_soon_is_told_to_train_longer(look):
    arguments = ("--bs", "{batch}", "--steps", "12")
    told = look("classifier.py", "--batch", "8", "--memory-limit", "100GiB", "--json", arguments=arguments)
    assert told.code == 0, told.stderr
    assert told.stderr.count("the script ended and is started again: let it take 2 steps a config") == 1
