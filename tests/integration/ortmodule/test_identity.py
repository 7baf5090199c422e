import pytest

from autorecompute.trials import Bench, Job


@pytest.fixture(scope="module")
def digest(scripts, tmp_path_factory):
    def digest(*arguments, seed="0"):
        job = Job(script=scripts / "naming.py", arguments=arguments)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONHASHSEED", seed)
            with Bench(job, None, tmp_path_factory.mktemp("logs")) as bench:
                return bench.detect().graph

    return digest


@pytest.fixture(scope="module")
def plain(digest):
    return digest()


@pytest.mark.parametrize("arguments", [(), ("--names", "other")], ids=["another process", "other names"])
def test_the_same_model_is_the_same_graph(digest, plain, arguments):
    assert digest(*arguments, seed="7") == plain


@pytest.mark.parametrize("arguments", [("--width", "24"), ("--swaps",)], ids=["width", "connection"])
def test_another_model_is_another_graph(digest, plain, arguments):
    assert digest(*arguments) != plain
