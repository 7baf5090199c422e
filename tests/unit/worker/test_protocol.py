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


def assert_arrives(message):
    frame = encode(message)
    assert decode(frame) == message
    assert json.loads(frame)["kind"] == type(message).__name__


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent_in_json(message):
    assert_arrives(message)


def test_what_a_worker_measures_arrives(make_detection, make_measurement):
    for message in (make_detection(), make_measurement(), make_measurement(Outcome.DIVERGED)):
        assert_arrives(message)


@pytest.mark.parametrize("kind", ["Config", "object", "", "Settings"])
def test_an_unknown_kind_is_refused(kind):
    frame = json.dumps({"kind": kind, "value": {}}).encode()
    with pytest.raises(ValueError, match="unknown message"):
        decode(frame)


@pytest.mark.parametrize("watch", [None, ORDER])
@pytest.mark.parametrize("batch", [None, 32])
def test_settings_come_back(watch, batch):
    settings = Settings(address="/tmp/x.sock", target_batch=batch, override_loader=True, watch=watch)
    assert codec.decode(codec.encode(settings).decode(), Settings) == settings
