"""Whether a loop goes through several batches for a step of its optimizer."""

import linecache
import textwrap
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from autorecompute.backends.torch.accumulation import accumulates_gradients


class Asking(nn.Module):
    """Notes what its callers' code says."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.found = None

    def forward(self, x):
        """A loss."""
        if self.found is None:
            self.found = accumulates_gradients()
        return (self.weight * x).sum()


def found_in(source, tmp_path, **names):
    """What is found at the first call of a model in a script of its own."""
    file, model = tmp_path / "script.py", Asking()
    file.write_text(textwrap.dedent(source))
    linecache.checkcache(str(file))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    batches = [torch.ones(2)] * 8
    given = dict(model=model, optimizer=optimizer, schedule=schedule, batches=batches, **names)
    exec(compile(file.read_text(), str(file), "exec"), {"__name__": "__main__", **given})  # noqa: S102
    return model.found


AT_TIMES = """
    for number, batch in enumerate(batches):
        model(batch).backward()
        if (number + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
NAMED = """
    for epoch in range(2):
        for number, batch in enumerate(batches):
            loss = model(batch)
            is_last = (number + 1) % args.accumulation == 0 or number + 1 == len(batches)
            loss.backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
"""
GOES_ON = """
    for number, batch in enumerate(batches):
        model(batch).backward()
        if number % args.accumulation != 0:
            continue
        optimizer.step()
        optimizer.zero_grad()
"""
ROUNDS = """
    for batch in batches:
        for _ in range(args.accumulation):
            with torch.enable_grad():
                loss = model(batch)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
PARTS = """
    def train(parts):
        for part in parts:
            model(part).backward()
        optimizer.step()
        optimizer.zero_grad()

    train(batches)
"""
SCALED = """
    scaler = torch.amp.GradScaler("cpu")
    for number, batch in enumerate(batches):
        scaler.scale(model(batch)).backward()
        if number % args.accumulation == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""
IN_A_CLASS = """
    class Learner:
        def __init__(self):
            self.optimizer, self.every = optimizer, args.accumulation

        def loss(self, batch):
            return model(batch)

        def fit(self):
            for number, batch in enumerate(batches):
                self.loss(batch).backward()
                if number % self.every == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad()

    Learner().fit()
"""
IN_A_FUNCTION = """
    def go_through(batch):
        loss = lose(batch)
        return loss

    def lose(batch):
        loss = model(batch)
        loss.backward()
        return loss

    for batch in batches:
        for _ in range(args.accumulation):
            go_through(batch)
        optimizer.step()
        optimizer.zero_grad()
"""
BEHIND_THE_MODEL = """
    def go_back(loss):
        loss.backward()

    for batch in batches:
        for _ in range(args.accumulation):
            loss = model(batch)
            go_back(loss)
        optimizer.step()
        optimizer.zero_grad()
"""
IN_A_METHOD = """
    class Learner:
        def go_back(self, loss):
            loss.backward()

        def fit(self):
            for batch in batches:
                for _ in range(args.accumulation):
                    loss = model(batch)
                    self.go_back(loss)
                optimizer.step()
                optimizer.zero_grad()

    Learner().fit()
"""
BEFORE = """
    for batch in batches:
        optimizer.step()
        optimizer.zero_grad()
        for _ in range(args.accumulation):
            model(batch).backward()
"""
BEFORE_IN_A_FUNCTION = """
    def train():
        for batch in batches:
            optimizer.step()
            optimizer.zero_grad()
            for _ in range(args.accumulation):
                model(batch).backward()

    train()
"""


@pytest.mark.parametrize("source", [NAMED, GOES_ON, ROUNDS, SCALED, IN_A_CLASS])
@pytest.mark.parametrize("count", [1, 4])
def test_a_count_decides(source, count, tmp_path):
    """The same loop accumulates with a count of four, and does not with that of one."""
    assert found_in(source, tmp_path, args=SimpleNamespace(accumulation=count), torch=torch) is (count > 1)


@pytest.mark.parametrize("source", [IN_A_FUNCTION, BEHIND_THE_MODEL, IN_A_METHOD])
@pytest.mark.parametrize("count", [1, 4])
def test_a_loop_goes_back_in_what_it_calls(source, count, tmp_path):
    """Around the model, or behind it in a function or a method."""
    assert found_in(source, tmp_path, args=SimpleNamespace(accumulation=count)) is (count > 1)


@pytest.mark.parametrize("source", [BEFORE, BEFORE_IN_A_FUNCTION], ids=["loops", "function"])
@pytest.mark.parametrize("count", [1, 4])
def test_what_ends_on_one_line_is_read_from_the_inside(source, count, tmp_path):
    """The loop around the model comes first, though the one around it, or the function, ends with it."""
    assert found_in(source, tmp_path, args=SimpleNamespace(accumulation=count)) is (count > 1)


@pytest.mark.parametrize("source", [AT_TIMES, PARTS])
def test_loops_that_say_it_themselves(source, tmp_path):
    """A number in the code, or parts of a batch."""
    assert found_in(source, tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        """
        for number, batch in enumerate(batches):
            optimizer.zero_grad()
            model(batch).backward()
            optimizer.step()
            if number % 4 == 0:
                schedule.step()
        """,
        """
        for number, batch in enumerate(batches):
            if number % 4 == 0:
                loss = model(batch)
                loss.backward()
                optimizer.step()
        """,
        """
        def close():
            optimizer.zero_grad()
            loss = model(batch)
            loss.backward()
            return loss

        for number, batch in enumerate(batches):
            optimizer.step(close)
            if number % 4 == 0:
                print(number)
        """,
        """
        def lose(part):
            return model(part)

        for batch in batches:
            losses = []
            for part in (batch, batch):
                losses.append(lose(part))
            sum(losses).backward()
            optimizer.step()
        """,
        """
        def go_back(batch):
            model(batch).backward()

        def update():
            optimizer.step()

        for epoch in range(2):
            for batch in batches:
                go_back(batch)
                update()
        """,
        "model(batches[0])",
    ],
    ids=["schedule", "all-of-it", "closure", "back-at-once", "step-in-a-function", "no-step"],
)
def test_loops_that_step_after_each_batch(source, tmp_path, capsys):
    """What else is done at times is not the optimizer's step."""
    assert not found_in(source, tmp_path)
    capsys.readouterr()


@pytest.mark.parametrize("count", [1, 2])
def test_accelerate_is_asked(count, tmp_path):
    """It has the number of batches, and the loop steps after each."""
    accelerate = pytest.importorskip("accelerate")
    source = """
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            optimizer.step()
            optimizer.zero_grad()
    """
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=count)
    try:
        assert found_in(source, tmp_path, accelerator=accelerator) is (count > 1)
    finally:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        accelerate.state.GradientState._reset_state()


def test_a_module_of_lightnings_without_a_trainer_is_not_asked():
    """It has an attribute that raises; the script then says by its loop what it does."""
    lightning = pytest.importorskip("lightning")

    class Learner(lightning.LightningModule):
        """Is called from the library's own code, and by nobody's trainer."""

    names = {"__name__": "lightning.pytorch.core", "ask": accumulates_gradients}
    exec("def call(self):\n    return ask()", names)  # noqa: S102  (only there is a frame the library's)
    assert names["call"](Learner()) is False


class Proxy:
    """What an object behind it has, which is not there yet."""

    def __getattribute__(self, name):
        raise RuntimeError(f"nothing is behind this yet, nor is its {name}")


class Slotted:
    """Answers to any name, its own dictionary's among them."""

    __slots__ = ()

    def __getattr__(self, name):
        """Nothing."""


@pytest.mark.parametrize("kind", [Proxy, Slotted])
def test_no_code_of_what_a_loop_names_is_run(kind, tmp_path):
    """Whatever a script's objects do where they are asked for something, its training goes on."""
    source = """
        def run(batch):
            return model(batch)

        for batch in batches:
            for part in batch.split(1):
                if part.sum() < 0:
                    strange.inner.note()
                    strange.step()
                loss = run(part.expand(2))
            loss.backward()
            optimizer.step()
    """
    assert found_in(source, tmp_path, strange=kind()) is False


def test_a_function_that_steps_itself_takes_whole_steps(tmp_path):
    """A warm-up step before a loop over them says nothing."""
    source = """
        def take_a_step(batch):
            model(batch).backward()
            for each in [optimizer]:
                each.step()

        optimizer.step()
        for batch in batches:
            take_a_step(batch)
    """
    assert found_in(source, tmp_path) is False
