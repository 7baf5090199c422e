import contextlib
import dataclasses
import socket
from multiprocessing.connection import Connection

import pytest

from autorecompute.backends import registry
from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.plans import Config, Lengths
from autorecompute.training_job import Detection
from autorecompute.worker import agent, training, training_line
from autorecompute.worker.guard import Guard, TrainingAgent
from autorecompute.worker.protocol import Beat, Check, Ended, Failed, KeepConfig, Settings, decode, encode
from autorecompute.worker.training_line import SideChannel
from stand_ins.live import Live
from stand_ins.training import ADVICE, CONFIG, FIRST, SECOND, TARGET, Loss, Training

OTHER = Config.parse(["blocks.*/softmax:drop"])
GOES_ON = "tuning has stopped, and the training goes on"


class Beside(Training):
    """A training with its guard, and the controller's end of its line."""

    def __init__(self, detection, longest=None):
        super().__init__(detection, None, ())
        theirs, ours = socket.socketpair()
        self.line, self.controller = SideChannel(theirs.detach()), Connection(ours.detach())
        settings = Settings(backend="torch", longest=longest)
        self.inner = TrainingAgent(self.line, self, settings, ())
        self.agent = self.guard = Guard(self.inner, training.say)
        self.length = longest

    def order(self, *messages):
        for message in messages:
            self.controller.send_bytes(encode(message))

    @property
    def told(self):
        """What the controller has heard since it was asked last, heartbeats aside."""
        found = []
        with contextlib.suppress(EOFError):
            while self.controller.poll(0):
                found.append(decode(self.controller.recv_bytes()))
        return [message for message in found if not isinstance(message, Beat)]

    def classify(self, error):
        return (Outcome.OOM if isinstance(error, MemoryError) else Outcome.SCRIPT_ERROR), str(error)

    def give_length(self, length):
        self.length = length

    def step_beside(self, config):
        self.happened.append((config, self.length))
        if config in self.lacks:
            raise self.lacks[config]
        return Loss(1.0)

    def follow_lengths(self, lengths):
        self.happened.append(lengths)


@pytest.fixture
def longest():
    """Tokens of the longest sample; nobody has told it."""


@pytest.fixture
def beside(make_detection, monkeypatch, longest):
    training = Beside(make_detection(batch=0), longest)
    monkeypatch.setattr(agent, "meter_for", lambda _: training)
    monkeypatch.setattr(registry, "other_in_use", lambda _: "")
    monkeypatch.setattr(training_line, "FAREWELL_SECONDS", 0.0)
    with training.controller:
        yield training
    training.line.close()


@pytest.fixture
def begun(beside):
    beside.order(FIRST)
    beside.begin()
    beside.step()
    return beside


@pytest.mark.parametrize("longest", [400])
def test_the_longest_is_measured_beside_the_training_which_keeps_the_first_config(begun):
    shorter = dataclasses.replace(SECOND, length=100)
    begun.steps(3, batch=TARGET - 1)  # the last batch of an epoch is no measure
    begun.order(Check(config=OTHER), shorter)
    begun.happened.clear()
    begun.steps(1)
    ran = [what for what in begun.happened if isinstance(what, tuple)]
    longest = [(CONFIG, 400)] * (FIRST.warmup + 1 + FIRST.steps)
    assert ran == [*longest, ("checked", OTHER), *[(shorter.config, 100)] * (shorter.warmup + shorter.steps)]
    _, first, check, second = begun.told
    assert (first.outcome, check.agrees, len(second.step_seconds)) == (Outcome.OK, True, shorter.steps)
    assert not any(isinstance(what, Config) for what in begun.happened)


@pytest.mark.parametrize("longest", [400])
@pytest.mark.parametrize(
    ("error", "outcome"), [(MemoryError("no room"), Outcome.OOM), (IndexError("600"), Outcome.SCRIPT_ERROR)]
)
def test_what_a_longer_batch_raises_ends_nothing(begun, error, outcome):
    live = Live(begun)
    begun.live_meter = lambda: live
    begun.lacks[CONFIG] = error
    begun.happened.clear()
    begun.steps(3)
    _, measured = begun.told
    assert (measured.outcome, measured.message) == (outcome, str(error))
    assert "release" in begun.happened


@pytest.mark.parametrize("longest", [400])
def test_a_count_of_live_tensors_is_over_where_the_step_that_is_counted_raises(begun):
    live = Live(begun)
    begun.live_meter, ran = lambda: live, []

    def step_beside(_config):
        ran.append(None)
        if live.log:
            raise MemoryError
        return Loss(1.0)

    begun.step_beside = step_beside
    begun.steps(3)
    assert [entry if isinstance(entry, str) else entry[0] for entry in live.log] == ["start", "stop"]


@pytest.mark.parametrize("longest", [400])
def test_what_is_noticed_in_the_training_is_told_of_trials_beside_it(begun):
    begun.warnings, begun.wrong = ("two calls",), ""
    begun.steps(2)
    begun.wrong = "another bit"
    begun.order(SECOND)
    begun.steps(2)
    _, first, second = begun.told
    assert (first.outcome, first.warnings) == (Outcome.OK, ("two calls",))
    assert (second.outcome, second.message) == (Outcome.WRONG_GRADIENT, "another bit")


@pytest.mark.parametrize("longest", [400])
def test_a_search_that_begins_with_a_shorter_batch_measures_it(beside):
    beside.order(dataclasses.replace(FIRST, length=100))
    beside.begin()
    beside.steps(4)
    assert {what for what in beside.happened if isinstance(what, tuple)} == {(CONFIG, 100)}


@pytest.mark.parametrize("longest", [400])
def test_batches_whose_size_never_comes_again_end_the_search(begun, capsys):
    begun.steps(20, batch=TARGET - 1)
    assert "receives a batch of 7 now, not 8" in capsys.readouterr().err


def test_a_measurement_is_told_and_the_next_order_obeyed_when_it_comes(begun):
    begun.steps(3)
    detection, measurement = begun.told
    assert (type(detection), measurement.outcome) == (Detection, Outcome.OK)
    begun.steps(4)
    assert begun.told == []
    begun.order(SECOND)
    begun.steps(1 + SECOND.warmup + SECOND.steps)
    assert [len(measured.step_seconds) for measured in begun.told] == [SECOND.steps]
    assert begun.inner.steps == 4 + 4 + 1 + SECOND.warmup + SECOND.steps


def test_a_training_holds_what_its_detection_left(beside, make_detection):
    """This process trains on with it, so that it counts."""
    beside.detection = make_detection(batch=0, left_bytes=120)
    beside.live_meter = lambda: Live(beside, 50)
    beside.order(FIRST)
    beside.begin()
    beside.steps(1 + 1 + 1 + FIRST.steps)
    told, measured = beside.told
    assert (told.resting_bytes, measured.peak_bytes) == (500, 500 + 50)


def test_the_first_config_is_compared_before_the_first_step(beside):
    beside.order(Check(config=OTHER), Check(config=CONFIG), FIRST)
    assert beside.begin() == CONFIG
    assert [what for what in beside.happened if "checked" in what] == [("checked", OTHER), ("checked", CONFIG)]
    assert [type(message) for message in beside.told] == [Detection, GradientCheck, GradientCheck]


def test_a_config_is_compared_on_the_next_batch_and_then_measured(begun):
    begun.steps(3)
    begun.order(Check(config=OTHER), SECOND)
    begun.steps(1)
    begun.happened.clear()
    begun.steps(1)
    assert begun.happened[:2] == [("checked", OTHER), SECOND.config]


def test_what_stays_on_is_told_with_its_step(begun, capsys):
    begun.steps(3)
    lengths = Lengths(batch=8, ends=(50, 400), configs=(Config(), OTHER))
    begun.order(KeepConfig(config=OTHER, message="the best", lengths=lengths))
    begun.steps(1)
    assert begun.happened[-2:] == [lengths, OTHER]
    assert capsys.readouterr().err == "autorecompute: from step 6 on: the best\n"
    begun.steps(5)
    assert begun.inner.steps == 5


def test_a_known_answer_is_the_config_of_the_first_step(beside, capsys):
    beside.order(Check(config=OTHER), KeepConfig(config=OTHER, message="as the study has it"))
    assert beside.begin() == OTHER
    assert "from step 1 on: as the study has it" in capsys.readouterr().err


@pytest.mark.parametrize(
    "break_it",
    [
        lambda training: setattr(training, "end_step", lambda: 1 / 0),
        lambda training: setattr(training, "mark", lambda: 1 / 0),
        lambda training: training.guard.on_fault(ZeroDivisionError("division by zero")),
    ],
)
def test_what_fails_in_the_tool_ends_the_search_alone(begun, break_it, capsys):
    break_it(begun)
    begun.steps(3)
    assert f"{GOES_ON}: division by zero." in capsys.readouterr().err


def test_several_models_train_as_without_the_tool(begun, capsys):
    """What is on was chosen for one of them."""
    begun.guard.on_several_models()
    assert begun.happened[-1] == Config()
    assert "several models" in capsys.readouterr().err


def test_a_script_of_another_training_system_is_left_alone(beside, monkeypatch, capsys):
    monkeypatch.setattr(registry, "other_in_use", lambda _: "ortmodule")
    assert beside.begin().is_none
    assert "the script uses ortmodule" in capsys.readouterr().err
    assert beside.told == []


def test_a_release_leaves_nothing_on_and_says_nothing(begun, capsys):
    begun.controller.send_bytes(encode(KeepConfig(config=None, message="bye")))
    begun.guard.release(None)
    assert [type(message) for message in begun.told] == [Detection, Ended]
    assert begun.happened[-1] == Config()
    assert capsys.readouterr().err == ""


def test_an_error_before_a_release_is_told(begun, capsys):
    """Memory that ran out in a cell of a notebook is known to the study when the next search begins."""
    begun.guard.release(MemoryError("no memory"))
    assert [message.outcome for message in begun.told if isinstance(message, Failed)] == [Outcome.OOM]
    assert "with a lower memory limit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("act", "told"),
    [(Guard.leave, [Detection]), (lambda guard: guard.on_failure(ValueError("sample 17")), [Detection, Measurement])],
    ids=["a process that the script forks", "what else a step raises"],
)
def test_what_is_the_scripts_own_is_not_spoken_of(begun, capsys, act, told):
    act(begun.guard)
    begun.steps(9)
    assert [type(message) for message in begun.told] == told
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda guard: guard.end(MemoryError("no memory")), "out of memory at step 2"),
        (lambda guard: guard.on_failure(MemoryError("no memory")) or guard.end(None), "in step 2"),
    ],
    ids=["raised to the end", "caught in the last step"],
)
def test_memory_that_runs_out_is_told_to_the_controller_and_the_user(begun, capsys, end, words):
    end(begun.guard)
    assert [type(message) for message in begun.told] == [Detection, Failed]
    assert words in capsys.readouterr().err


def test_memory_that_runs_out_in_a_step_that_the_script_skips_ends_the_search(begun, capsys):
    """The study hears of it once the script has gone on, and the config stays on."""
    begun.guard.on_failure(MemoryError("no memory"))
    assert [type(message) for message in begun.told] == [Detection]
    begun.happened.clear()
    begun.steps(3)
    assert [message.outcome for message in begun.told] == [Outcome.OOM]
    assert f"{GOES_ON}: out of memory in step 2, and the script went on" in capsys.readouterr().err
    assert begun.happened == []


def test_a_script_that_never_trained_is_advised(beside, capsys):
    beside.order(KeepConfig(config=None, message="bye"))
    beside.guard.end(None)
    assert ADVICE in capsys.readouterr().err


def test_a_closed_stderr_ends_nothing(begun, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    begun.controller.close()
    begun.steps(3)
    assert not [message for message in begun.sent if isinstance(message, Measurement)]


def test_a_step_waits_for_a_config_where_none_that_was_tried_has_room(begun):
    begun.lacks = {CONFIG: "CUDA out of memory"}
    begun.order(SECOND)
    begun.steps(1)
    assert begun.told[-1].outcome is Outcome.OOM
    begun.steps(SECOND.warmup + SECOND.steps)
    assert begun.told[-1].outcome is Outcome.OK


def test_where_nothing_has_room_a_training_goes_on_as_without_the_tool(begun):
    begun.lacks = dict.fromkeys([CONFIG, SECOND.config], "CUDA out of memory")
    begun.order(SECOND, KeepConfig(config=None, message="nothing fits"))
    begun.steps(1)
    assert [told.outcome for told in begun.told[1:]] == [Outcome.OOM, Outcome.OOM]
    begun.steps(2)
    assert [one for one in begun.happened if isinstance(one, Config)][-1].is_none
    assert begun.told == []
