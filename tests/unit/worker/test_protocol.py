"""The messages between a worker and its controller."""

import json

import pytest

from autorecompute import codec
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.plans import Config
from autorecompute.worker.protocol import Beat, Check, Ended, Failed, Hello, Order, Refused, Settings, decode, encode

ORDER = Order(config=Config.parse(["blocks.*/gelu:drop"]), warmup=2, steps=5)
MESSAGES = [
    ORDER,
    Order(config=Config.parse(["whole model:light"]), warmup=1, steps=1),
    Ended(steps=7, exit_code=3),
    Failed(outcome=Outcome.OOM, message="no memory for\n'ü'", trace=("line 1", "line 2")),
    Refused(message="no torch"),
    Hello(rank=1, world_size=2, pid=7),
    Beat(step=3),
    Check(config=ORDER.config),
    GradientCheck(agrees=False, worst=0.5, parameter="fc.weight", steps=3),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message):
    """Each kind of message keeps its kind and its content."""
    assert decode(encode(message)) == message


def test_what_a_worker_measures_arrives(make_detection, make_measurement):
    """A detection and a measurement keep their kind among the other messages."""
    for message in (make_detection(), make_measurement(), make_measurement(Outcome.DIVERGED)):
        assert decode(encode(message)) == message


def test_a_frame_is_one_line_of_json(make_detection):
    """Nothing but JSON travels: a frame is read by any JSON parser."""
    assert json.loads(encode(make_detection()))["kind"] == "Detection"


@pytest.mark.parametrize("kind", ["Config", "object", "", "Settings"])
def test_an_unknown_kind_is_refused(kind):
    """A frame cannot name a class of its choice."""
    frame = json.dumps({"kind": kind, "value": {}}).encode()
    with pytest.raises(ValueError, match="unknown message"):
        decode(frame)


@pytest.mark.parametrize("watch", [None, ORDER])
@pytest.mark.parametrize("batch", [None, 32])
def test_settings_come_back(watch, batch):
    """What a worker is told at its start survives the environment variable."""
    settings = Settings(address="/tmp/x.sock", target_batch=batch, override_loader=True, watch=watch)
    assert codec.decode(codec.encode(settings).decode(), Settings) == settings
