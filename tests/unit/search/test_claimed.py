import pytest

from autorecompute.plans import Config
from autorecompute.search import NAMES, Proposal, make_searcher

WORKERS = 3


@pytest.fixture
def make_search(make_bench, make_profiled):
    def make(name):
        bench = make_profiled() if name == "model" else make_bench(plans=4)
        bench.limit_to(0.4)
        if name == "model":
            return bench, bench.searcher
        return bench, lambda: make_searcher(name, bench.space, budget=40, limit_bytes=bench.limit_bytes)

    return make


@pytest.mark.parametrize("name", [name for name in NAMES if name != "gp"])
def test_no_searcher_wants_what_others_have(make_search, name):
    bench, make = make_search(name)
    trials = [bench.try_out(Proposal(config=Config(), reason="preset"), 0)]
    for _ in range(6):
        claimed = []
        while len(claimed) < WORKERS:
            wanted = make().propose(trials, [proposal.config for proposal in claimed])
            if wanted is None:
                break
            claimed.append(wanted)
        configs = [known.config for known in (*trials, *claimed)]
        assert len(set(configs)) == len(configs)
        trials += [bench.try_out(wanted, len(trials) + place) for place, wanted in enumerate(claimed)]
    assert len(trials) > 2 * WORKERS
