import pytest

from workplace import PLAIN_BATCH


@pytest.fixture(scope="module")
def place(make_plain_copy):
    """A working directory with a study that has an answer."""
    return make_plain_copy("checked")


def test_the_answer_is_checked(place, scripts):
    command = (str(scripts / "plain_transformer.py"), "--bs", str(PLAIN_BATCH))
    checked = place.finish(place.start("-m", "autorecompute", "check", "limited", "--", *command))
    assert checked.code == 0, checked.stderr
    assert "gradients" in checked.stdout
    assert "plans" in checked.stdout


def test_a_config_whose_gradients_could_not_be_compared_is_not_confirmed(place, scripts):
    for command in (("export", "limited", "-o", "theirs.jsonl"), ("import", "theirs.jsonl", "--study", "theirs")):
        assert place.finish(place.start("-m", "autorecompute", "studies", *command)).code == 0
    command = (str(scripts / "fragile.py"), "--bs", str(PLAIN_BATCH))
    checked = place.finish(place.start("-m", "autorecompute", "check", "theirs", "--json", "--", *command))
    lines = {line["what"]: line for line in checked.answer["lines"]}
    assert (checked.code, checked.answer["valid"]) == (4, False), checked.stderr
    assert (lines["gradients"]["here"], lines["gradients"]["verdict"]) == ("not compared", "fails")
    assert not (place.study("theirs").path / "checked.json").exists()
    assert place.finish(place.start("-m", "autorecompute", "emit", "theirs")).code == 2
