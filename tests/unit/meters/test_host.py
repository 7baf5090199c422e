"""Peaks of a process on a CPU, and what others do on the host while a script is measured."""

import os
from types import SimpleNamespace

import psutil
import pytest

from autorecompute.errors import SetupError
from autorecompute.meters import host
from autorecompute.meters.host import HostMeter, Processors
from autorecompute.units import MIB

TUNER, CHILD = 10, 11


def test_a_kernel_that_resets_no_high_water_mark_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "CLEAR_REFS", tmp_path / "clear_refs" / "missing")
    with pytest.raises(SetupError, match=r"Peaks cannot be measured here: .*missing cannot be written"):
        HostMeter()


def test_the_host_is_not_limited_and_the_kernels_own_counters_can_be_read(monkeypatch):
    meter = HostMeter()
    meter.limit(1)
    assert len(bytearray(MIB)) == MIB
    meter.observe()
    assert meter.outside_bytes() is None
    assert meter.read().marks == ()
    monkeypatch.setattr(host, "TOO_SHORT_SECONDS", 0)
    assert 0 <= Processors(None, do_the_work=True).others_share() <= 1


class Host:
    """Counters in the place of psutil: a tuner has one child, and two of the four processors."""

    Error, NoSuchProcess = psutil.Error, psutil.NoSuchProcess

    def __init__(self):
        self.now, self.others_seconds, self.seconds = 0.0, 0.0, {TUNER: 0.0, CHILD: 0.0}

    def Process(self, pid):  # noqa: N802  (psutil's name)
        if pid not in self.seconds:
            raise psutil.NoSuchProcess(pid)
        return SimpleNamespace(
            cpu_times=lambda: (self.seconds[pid] / 2, self.seconds[pid] / 2, 0.0, 0.0, 99.0),
            children=lambda recursive: [self.Process(CHILD)] if recursive and pid == TUNER else [],
        )

    def cpu_times(self, *, percpu):
        assert percpu
        kinds = psutil.cpu_times()._fields
        nothing = psutil.cpu_times()._replace(**dict.fromkeys(kinds, 0.0))
        busy = (self.others_seconds + sum(self.seconds.values())) / 2
        # A guest's time is a part of the user's.
        ours = nothing._replace(user=busy, guest=busy / 2, iowait=1.0, idle=self.now - busy)
        return [nothing._replace(user=self.now), ours, ours, nothing]


@pytest.fixture
def paper(monkeypatch):
    paper = Host()
    clock = SimpleNamespace(monotonic=lambda: paper.now, process_time=lambda: 7.0)
    monkeypatch.setattr(host, "psutil", paper)
    monkeypatch.setattr(host, "time", clock)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {1, 2})
    return paper


@pytest.mark.parametrize("by", [TUNER, CHILD])
def test_what_the_tuning_does_is_not_others_work(paper, by):
    measured = Processors(TUNER, do_the_work=True)
    paper.now, paper.others_seconds, paper.seconds[by] = 10.0, 6.0, 8.0
    assert measured.others_share() == pytest.approx(0.3)


def test_a_moment_or_a_tuner_that_is_gone_leaves_no_figure_of_others(paper):
    measured = Processors(TUNER, do_the_work=True)
    paper.now, paper.others_seconds = 0.1, 0.2
    assert measured.others_share() is None
    paper.now = 10.0
    del paper.seconds[TUNER]
    assert measured.others_share() is None


@pytest.mark.usefixtures("paper")
def test_own_time_is_that_of_the_processor_and_untold_where_a_card_does_the_work():
    assert Processors(TUNER, do_the_work=True).own_seconds() == 7.0
    assert Processors(TUNER, do_the_work=False).own_seconds() is None
