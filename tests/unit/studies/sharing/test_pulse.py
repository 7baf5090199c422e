"""Who of several workers is alive."""

import pytest

from autorecompute.studies.sharing.pulse import BLIND_SECONDS, DEAD_SECONDS, Pulse


class TestPulse:
    """Who is alive, by the clock of the one who looks."""

    @pytest.fixture
    def watch(self):
        """Looks at beats at given times."""
        now = [0.0]
        pulse = Pulse("me", lambda *_: None, dict, clock=lambda: now[0])

        def watch(*looks):
            for seconds, count in looks:
                now[0] = seconds
                pulse.observe({"beat:other": count})
            return pulse.is_dead("other")

        return watch

    def test_who_beats_lives(self, watch):
        """A beat that changes is a life, whatever it counts."""
        assert not watch(*((5.0 * place, place) for place in range(30)))

    def test_who_stops_is_dead(self, watch):
        """A beat that stays the same for too long is none."""
        looks = [(5.0 * place, 1) for place in range(int(DEAD_SECONDS / 5) + 2)]
        assert not watch(*looks[:-2])
        assert watch(*looks)

    def test_who_could_not_look_counts_anew(self, watch):
        """After a storage was away for everybody, nobody is dead for not having beaten."""
        gone = DEAD_SECONDS + BLIND_SECONDS
        assert not watch((0.0, 1), (5.0, 1), (gone, 1))
        assert not watch((gone + 5, 1))
        assert not watch((gone + 10, 2))

    def test_who_was_never_seen_has_just_begun(self, watch):
        """A worker is not dead before its first beat."""
        assert not watch()

    def test_who_never_beats_is_dead_after_a_while(self):
        """A worker that went away right after it had said what it is at is not waited for."""
        now = [0.0]
        pulse = Pulse("me", lambda *_: None, dict, clock=lambda: now[0])
        for place in range(int(DEAD_SECONDS / 5) + 2):
            now[0] = 5.0 * place
            pulse.observe({"phase:other": "searching"})
            assert pulse.is_dead("other") == (now[0] > DEAD_SECONDS)
        pulse.observe({"phase:other": "searching", "beat:other": 0})
        assert not pulse.is_dead("other")
        assert not pulse.has_beaten("other")

    def test_who_was_not_seen_to_beat_may_be_gone(self):
        """A beat that was there already says nothing; one that changes does."""
        pulse = Pulse("me", lambda *_: None, dict, clock=lambda: 0.0)
        pulse.observe({"beat:other": 7})
        assert not pulse.has_beaten("other")
        pulse.observe({"beat:other": 8})
        assert pulse.has_beaten("other")
