import dataclasses
import json
import random
import struct

import psutil
import pytest
import torch
from jsonschema import Draft202012Validator
from transformers import GPT2Config, GPT2LMHeadModel

from autorecompute.backends import registry
from autorecompute.backends.torch.fake.live import OUTSIDE
from autorecompute.errors import NothingFitsError, ScriptError, SetupError, UsageError
from autorecompute.plans import Config
from autorecompute.schemas import schema_of
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort
from autorecompute.units import GIB

BATCH = 8
SCRIPT = "language_model.py"
CONFIGS, MOST_PLANS = 4, 5

LOSS_BYTES = 8
"""What a script holds of the last step, and no fake step knows of: its loss, and the Trainer's sum of losses."""


@pytest.fixture(scope="module")
def look(place, scripts):
    def look(script, *options, arguments=()):
        rest = ["--", *arguments] if arguments else []
        command = ("-m", "autorecompute", "plans", str(scripts / script), "--fake", *options, *rest)
        return place.finish(place.start(*command))

    return look


def drawn(space):
    chance, configs = random.Random(0), dict.fromkeys(space.presets.values())
    for _ in range(CONFIGS):
        config = Config()
        for plan in chance.sample(space.plans, chance.randint(2, MOST_PLANS)):
            config = space.with_plan(config, plan, chance.choice([None, chance.randint(1, plan.occurrences)]))
        configs[space.normalize(config)] = None
    return list(configs)


@pytest.mark.parametrize("way", ["loop", "autocast", "lora", "trainer", "loaded", "lightning"])
def test_forecasts_are_the_bytes_of_real_steps(way, scripts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTORECOMPUTE_CHECK", "off")  # it keeps two numbers of each tensor that it compares
    if way == "loaded":
        GPT2LMHeadModel(GPT2Config(n_layer=3, n_embd=192, n_head=4, vocab_size=1500)).save_pretrained("stored")
    own = ("--folder", "stored") if way == "loaded" else ("--way", way)
    job = Job(script=scripts / SCRIPT, arguments=(*own, "--batch", str(BATCH)), backend="torch")
    with Bench(dataclasses.replace(job, fakes=True), BATCH, tmp_path) as bench:
        detection = bench.detect()
    memory = registry.backend_of(detection.versions).memory_of(detection)
    forecasts = {config: memory.forecast(config, memory.dims).live_bytes for config in drawn(detection.space)}
    # A measured step begins as the optimizer's last one ends, when the gradients are alive that its own will replace.
    # Lightning holds them until then, and a forecast as well.
    held = way == "lightning"
    gradients = 0 if held else sum(part.change for part in memory.steps.parts if part.phase != OUTSIDE)
    with Bench(job, BATCH, tmp_path) as bench:
        assert bench.detect().plans == detection.plans
        trials = {config: bench.measure(config, Effort(warmup=1, steps=1)) for config in forecasts}
    over = {config: trial.allocated_bytes + gradients - forecasts[config] for config, trial in trials.items()}
    assert {config: size for config, size in over.items() if not 0 <= size <= LOSS_BYTES} == {}
    assert len(set(forecasts.values())) > CONFIGS


@pytest.mark.usefixtures("cold_python")
def test_weights_in_a_file_become_fakes_of_their_stored_shapes(scripts, tmp_path):
    config = GPT2Config(n_layer=8, n_embd=8192, n_head=64, vocab_size=50000, architectures=["GPT2LMHeadModel"])
    with torch.device("meta"):
        model = GPT2LMHeadModel(config)
    weights = sum(parameter.numel() for parameter in model.parameters())
    assert weights * 2 > 12 * GIB
    config.save_pretrained(tmp_path / "stored")
    write_header(model, tmp_path / "stored" / "model.safetensors")
    job = Job(script=scripts / SCRIPT, arguments=("--folder", str(tmp_path / "stored")), backend="torch", fakes=True)
    with Bench(job, None, tmp_path) as bench:
        detection = bench.detect()
        (worker,) = [one for one in psutil.Process().children() if "autorecompute.worker" in one.cmdline()]
        assert worker.memory_info().rss < GIB
    size = 4 if detection.resting_bytes > weights * 3 else 2  # transformers 4 makes float32 of what is stored
    assert detection.resting_bytes == pytest.approx(weights * size, rel=0.01)


def write_header(model, file):
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, parameter in model.named_parameters():
        begin, end = end, end + 2 * parameter.numel()
        header[name] = {"dtype": "BF16", "shape": list(parameter.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with file.open("wb") as written:
        written.write(struct.pack("<Q", len(text)) + text)
        written.truncate(8 + len(text) + end)


@pytest.fixture(scope="module")
def told(look, place):
    picture = ("--picture", str(place.path / "peak.svg"), "--json")
    sizes = ("--batch", "64", "--batches", "8,16,32", "--batch-flag=--batch")
    limited = ("--memory-limit", "200MiB", "--with", "blocks", "--details")
    return look(SCRIPT, *sizes, *limited, *picture, arguments=("--way", "trainer"))


def test_the_command_tells_what_fits_with_what_and_up_to_which_batch(told, place):
    assert told.code == 0, told.stderr
    answer, peak = told.answer, told.answer["peak"]
    assert answer["dims"] == {"batch": 64, "sequence": 64} == answer["first_batch_dims"]
    forecasts = {forecast["config"]: forecast for forecast in peak["forecasts"]}
    none, blocks = forecasts["none"], forecasts["transformer.h.*"]
    assert (none["holds_limit"], blocks["holds_limit"]) == (False, True)
    assert none["largest_batch"] < 64 <= blocks["largest_batch"]
    largest = {preset["preset"]: preset["largest_batch"] for preset in peak["presets"]}
    assert (largest["none"], largest["blocks"]) == (16, 32)
    fitting = [forecast for forecast in peak["frontier"] if forecast["holds_limit"]]
    assert min(one["recompute_share"] for one in fitting) < blocks["recompute_share"]
    assert "step, estimated for this machine, ms" in (place.path / "peak.svg").read_text()


def test_the_batch_that_is_said_to_fit_fits_on_fakes_and_one_more_does_not(told, look):
    (blocks,) = [one for one in told.answer["peak"]["forecasts"] if one["config"] == "transformer.h.*"]
    batch = blocks["largest_batch"]
    options = ("--batch-flag=--batch", "--memory-limit", "200MiB", "--json", "--batch", str(batch))
    there = look(SCRIPT, *options, arguments=("--way", "trainer"))
    (found,) = [one for one in there.answer["peak"]["forecasts"] if one["config"] == "transformer.h.*"]
    assert found["holds_limit"]
    assert found["largest_batch"] == pytest.approx(batch, rel=0.01)


def test_a_card_is_told_with_what_its_allocator_reserves(look):
    answer = look(SCRIPT, "--card", "H100", "--json").answer
    Draft202012Validator(schema_of("plans")).validate(answer)
    forecasts = {forecast["config"]: forecast for forecast in answer["peak"]["forecasts"]}
    none, blocks = forecasts["none"], forecasts["transformer.h.*"]
    assert none["peak_bytes"] <= none["allocated_bytes"] <= none["reserved_bytes"]
    assert blocks["reserved_bytes"] < none["reserved_bytes"]
    assert blocks["reserved_holds_limit"], "without a limit it is the card's memory"
    assert not [plan["config"] for plan in answer["plans"] if "dropout_mask" in plan["config"]]


def test_the_time_of_a_step_is_an_estimate_for_the_card_or_for_this_machine(look):
    options = ("--memory-limit", "60MiB", "--json")
    card, other = (look(SCRIPT, "--card", name, *options).answer["peak"] for name in ("H100", "T4"))
    here = look(SCRIPT, *options).answer["peak"]
    assert [peak["machine"]["name"] for peak in (card, other, here)] == ["H100", "T4", "this machine"]
    assert [peak["machine"]["is_measured"] for peak in (card, other, here)] == [False, False, True]
    assert "H100" in card["machine"]["source"]
    for peak in (card, other, here):
        assert all(one["estimate"]["step_seconds"] > 0 for one in (*peak["forecasts"], *peak["frontier"]))
        seconds = [one["estimate"]["step_seconds"] for one in peak["frontier"]]
        assert seconds == sorted(seconds, reverse=True)
    first, second, third = (
        next(one["estimate"] for one in peak["forecasts"] if one["config"] == "none") for peak in (card, other, here)
    )
    assert first["flops"] == second["flops"]
    assert first["step_seconds"] < second["step_seconds"] < third["step_seconds"]
    assert first["flops_again"] == 0


def test_several_cards_are_one_table_with_the_largest_batch_on_each(look):
    table = look(SCRIPT, "--card", "h100, 1GiB").stdout.partition("The presets on 2 cards")[2].splitlines()
    largest = {(line.split()[0], line.split()[1]): int(line.split()[-1]) for line in table if "should fit" in line}
    assert {card for card, _ in largest} == {"H100", "1GiB"}
    for card in ("H100", "1GiB"):
        assert largest[card, "blocks"] > largest[card, "none"] > 0
    assert largest["H100", "none"] == pytest.approx(79.18 * largest["1GiB", "none"], rel=0.5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--fake", "--card", "H900"), ["H100", "24GiB"]),
        (("--fake", "--card", "H100,H900"), ["'H900' is not known"]),
        (("--fake", "--card", "H100,A100", "--picture", "a.png"), ["--picture", "one card"]),
        (("--card", "H100"), ["--fake"]),
        (("--ranks", "2"), ["Add --fake"]),
        (("--fake", "--launcher", "torchrun --nproc-per-node 2"), ["--launcher", "--fake"]),
        (("--fake", "--backend", "ortmodule"), ["--backend", "--fake"]),
    ],
)
def test_what_fakes_alone_can_tell_and_what_they_cannot_is_wrong_usage(place, scripts, options, words):
    looked = place.finish(place.start("-m", "autorecompute", "plans", str(scripts / SCRIPT), *options))
    assert (looked.code, looked.stdout) == (UsageError.exit_code, "")
    assert all(word in looked.complaint for word in words)


def test_a_model_without_forecasts_is_no_question_of_a_limit(place, scripts):
    options = ("--memory-limit", "1GiB", "--", "--leaves", "--steps", "3")
    looked = place.finish(place.start("-m", "autorecompute", "plans", str(scripts / "own_training.py"), *options))
    assert (looked.code, looked.stdout) == (SetupError.exit_code, "")
    assert "Leave out --memory-limit to see its plans" in looked.complaint
    assert "autorecompute tune" in looked.complaint
    assert "cannot be run on fake tensors" in looked.stderr


def test_a_limit_below_what_is_held_at_rest_ends_with_both_figures(look):
    looked = look(SCRIPT, "--memory-limit", "4MiB")
    assert (looked.code, looked.stdout) == (NothingFitsError.exit_code, "")
    assert "6 MiB are weights" in looked.complaint
    assert "the limit of 4 MiB" in looked.complaint


NEVER = """
import torch
model = torch.nn.Linear(1024, 1024)
model(torch.randn(4, 1024)).sum().item()
"""

TRAINING = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(1024, 1024)

    def forward(self, x):
        return self.one(x)[torch.nonzero(x[:, 0])].sum()

model = Model()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(9):
    model(torch.randn(1024, 1024)).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (NEVER, "The script ended before it trained."),
        (TRAINING.replace("= Model()", "= torch.compile(Model())"), "leave --fake out, or torch.compile"),
        (TRAINING, "script.py:11 looks at values"),
    ],
    ids=["never", "compiled", "values"],
)
def test_a_script_that_cannot_train_on_fakes_ends_with_the_reason(look, tmp_path, text, sentence):
    (tmp_path / "script.py").write_text(text)
    looked = look(tmp_path / "script.py")
    assert (looked.code, looked.stdout) == (ScriptError.exit_code, "")
    assert sentence in looked.complaint
    assert "Traceback" not in looked.stderr
