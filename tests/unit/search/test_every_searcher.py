import pytest

from autorecompute.plans import Config
from autorecompute.search import NAMES, Proposal, make_searcher

WORKERS = 3
OWN = ("model", "greedy")


@pytest.fixture
def make_search(make_bench, make_profiled):
    def make(name, share=0.4, **fields):
        bench = make_profiled(**fields) if name == "model" else make_bench(plans=7, **fields)
        bench.limit_to(share)
        if name in OWN:
            return bench, bench.searcher
        return bench, lambda: make_searcher(name, bench.space, budget=40, limit_bytes=bench.limit_bytes)

    return make


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_that_fits_as_it_is_needs_no_search(make_search, name):
    bench, make = make_search(name, share=1.0)
    first = bench.try_out(make().propose([]), 0)
    assert first.config.is_none
    assert make().propose([first]) is None


@pytest.mark.parametrize("runs_out", [False, True])
@pytest.mark.parametrize("name", OWN)
def test_an_interrupted_search_goes_on_where_it_stopped(make_search, name, runs_out):
    bench, make = make_search(name, runs_out=runs_out)
    trials = bench.run()
    for count, trial in enumerate(trials):
        proposal = make().propose(trials[:count])
        assert (proposal.config, proposal.reason, proposal.prediction) == (trial.config, trial.reason, trial.prediction)


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
