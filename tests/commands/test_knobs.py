import pytest


@pytest.fixture(scope="module")
def place(make_desk):
    return make_desk()


@pytest.fixture(scope="module")
def turn_knobs(place):
    return lambda: place.tune("--memory-limit", "750MiB", "--max-trials", "4", "--knobs", "--json")


@pytest.fixture(scope="module")
def turned(turn_knobs):
    finished = turn_knobs()
    assert finished.code == 0, finished.stderr
    return finished


def test_the_answer_tells_of_every_knob_and_has_what_makes_it_faster(turned):
    fused, whole = turned.answer["knobs"]
    assert (fused["name"], fused["outcome"], fused["kept"]) == ("fused_kernels", "ok", True)
    assert fused["throughput_ratio"] == pytest.approx(1.25)
    assert (whole["name"], whole["outcome"], whole["kept"]) == ("whole_graph", "ok", False)
    assert whole["throughput_ratio"] == pytest.approx(1.0)
    best = turned.answer["best"]
    assert best["knobs"] == ["fused_kernels"]
    assert best["env"]["FAKE_FUSED"] == "1"
    assert "FAKE_MODE" not in best["env"]


def test_the_same_command_turns_no_knob_again(turned, turn_knobs, place):
    before, again = sorted(place.study().path.glob("workers/knobs/*.log")), turn_knobs()
    assert (again.code, again.answer) == (0, turned.answer)
    assert sorted(place.study().path.glob("workers/knobs/*.log")) == before
