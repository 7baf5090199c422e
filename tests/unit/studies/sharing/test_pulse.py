import queue

import pytest

from autorecompute.studies.sharing import pulse
from autorecompute.studies.sharing.pulse import BEAT, BLIND_SECONDS, DEAD_SECONDS, Pulse


@pytest.fixture
def watch():
    """Looks at another worker's attributes at given times, and tells whether it is dead."""
    now = [0.0]
    mine = Pulse("me", lambda *_: None, dict, clock=lambda: now[0])

    def watch(*looks, **attributes):
        for now[0], count in looks:
            mine.observe({f"{BEAT}other": count, **attributes})
        return mine.is_dead("other")

    watch.has_seen_a_beat = lambda: mine.has_beaten("other")
    return watch


def test_who_beats_or_was_never_seen_lives(watch):
    assert not watch()
    assert not watch(*((5.0 * place, place) for place in range(30)))


def test_who_stops_is_dead(watch):
    looks = [(5.0 * place, 1) for place in range(int(DEAD_SECONDS / 5) + 2)]
    assert not watch(*looks[:-2])
    assert watch(*looks)


def test_who_could_not_look_counts_anew(watch):
    gone = DEAD_SECONDS + BLIND_SECONDS
    assert not watch((0.0, 1), (5.0, 1), (gone, 1))
    assert not watch((gone + 5, 1))
    assert not watch((gone + 10, 2))


def test_who_never_beats_is_dead_after_a_while(watch):
    for place in range(int(DEAD_SECONDS / 5) + 2):
        assert watch((5.0 * place, None), **{"phase:other": "searching"}) == (5.0 * place > DEAD_SECONDS)
    assert not watch((5.0 * place, 0))
    assert not watch.has_seen_a_beat()


def test_who_was_not_seen_to_beat_may_be_gone(watch):
    watch((0.0, 7))
    assert not watch.has_seen_a_beat()
    watch((0.0, 8))
    assert watch.has_seen_a_beat()


def test_a_pulse_beats_by_itself(monkeypatch):
    monkeypatch.setattr(pulse, "BEAT_SECONDS", 0.001)
    beats = queue.Queue()
    mine = Pulse("me", lambda *beat: beats.put(beat), dict)
    mine.start()
    assert [beats.get() for _ in range(3)] == [(f"{BEAT}me", count) for count in range(3)]
    mine.stop()
