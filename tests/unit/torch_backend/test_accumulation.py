"""Whether a loop goes through several batches for a step of its optimizer."""

from types import SimpleNamespace

import pytest
import torch

from autorecompute.backends.torch.find.source import accumulates_gradients
from stand_ins.asking import Asking, run_script


def found_in(source, tmp_path, **names):
    model = Asking(accumulates_gradients)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    given = {"model": model, "optimizer": optimizer, "schedule": schedule, "batches": [torch.ones(2)] * 8}
    return run_script(source, tmp_path / "script.py", given | names)


COUNTED = {
    "a name for the last of several": """
        for epoch in range(2):
            for number, batch in enumerate(batches):
                is_last = (number + 1) % args.accumulation == 0 or number + 1 == len(batches)
                model(batch).backward()
                if is_last:
                    optimizer.step()
    """,
    "goes on without a step": """
        for number, batch in enumerate(batches):
            model(batch).backward()
            if number % args.accumulation != 0:
                continue
            optimizer.step()
    """,
    "a loop of its own": """
        for batch in batches:
            for _ in range(args.accumulation):
                with torch.enable_grad():
                    loss = model(batch)
                loss.backward()
            optimizer.step()
    """,
    "a scaler's step, in a class": """
        class Learner:
            def __init__(self):
                self.scaler, self.every = torch.amp.GradScaler("cpu"), args.accumulation

            def fit(self):
                for number, batch in enumerate(batches):
                    self.scaler.scale(model(batch)).backward()
                    if number % self.every == 0:
                        self.scaler.step(optimizer)
                        self.scaler.update()

        Learner().fit()
    """,
    "goes back in a function around the model": """
        def go_through(batch):
            model(batch).backward()

        for batch in batches:
            for _ in range(args.accumulation):
                go_through(batch)
            optimizer.step()
    """,
    "both loops end on one line with their function": """
        def train():
            for batch in batches:
                optimizer.step()
                for _ in range(args.accumulation):
                    model(batch).backward()

        train()
    """,
}


@pytest.mark.parametrize("source", COUNTED.values(), ids=COUNTED)
@pytest.mark.parametrize("count", [1, 4])
def test_a_loop_accumulates_with_a_count_of_four_and_not_with_that_of_one(source, count, tmp_path):
    assert found_in(source, tmp_path, args=SimpleNamespace(accumulation=count)) is (count > 1)


SEVERAL = {
    "a number in the code": """
        for number, batch in enumerate(batches):
            model(batch).backward()
            if (number + 1) % 4 == 0:
                optimizer.step()
    """,
    "parts of a batch": """
        def train(parts):
            for part in parts:
                model(part).backward()
            optimizer.step()

        train(batches)
    """,
}
SINGLE = {
    "the schedule steps at times": """
        for number, batch in enumerate(batches):
            model(batch).backward()
            optimizer.step()
            if number % 4 == 0:
                schedule.step()
    """,
    "all of it is done at times": """
        for number, batch in enumerate(batches):
            if number % 4 == 0:
                model(batch).backward()
                optimizer.step()
    """,
    "a closure": """
        def close():
            loss = model(batch)
            loss.backward()
            return loss

        for number, batch in enumerate(batches):
            optimizer.step(close)
            if number % 4 == 0:
                noted = number
    """,
    "all losses go back at once": """
        def lose(part):
            return model(part)

        for batch in batches:
            losses = 0
            for part in (batch, batch):
                losses += lose(part)
            losses.backward()
            optimizer.step()
    """,
    "a function that takes whole steps, behind a step to warm up": """
        def take_a_step(batch):
            model(batch).backward()
            for each in [optimizer]:
                each.step()

        optimizer.step()
        for batch in batches:
            take_a_step(batch)
    """,
    "no step": "model(batches[0])",
}


@pytest.mark.parametrize(
    ("source", "accumulates"),
    [*((source, True) for source in SEVERAL.values()), *((source, False) for source in SINGLE.values())],
    ids=[*SEVERAL, *SINGLE],
)
def test_a_loop_says_itself_whether_it_steps_after_each_batch(source, accumulates, tmp_path):
    assert found_in(source, tmp_path) is accumulates


@pytest.mark.parametrize("count", [1, 2])
def test_accelerate_is_asked(count, tmp_path):
    """It has the number of batches, and the loop steps after each."""
    accelerate = pytest.importorskip("accelerate")
    source = """
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            optimizer.step()
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
    names = {"__name__": "lightning.pytorch.core", "ask": accumulates_gradients}
    exec("def call(self):\n    return ask()", names)  # noqa: S102  (only there is a frame the library's)
    assert names["call"](lightning.LightningModule()) is False


class Proxy:
    """What an object behind it has, which is not there yet."""

    def __getattribute__(self, name):
        raise RuntimeError(f"nothing is behind this yet, nor is its {name}")


class Slotted:
    """Answers to any name, its own dictionary's among them."""

    __slots__ = ()

    def __getattr__(self, name):
        return None


@pytest.mark.parametrize("kind", [Proxy, Slotted])
def test_no_code_of_what_a_loop_names_is_run(kind, tmp_path):
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
