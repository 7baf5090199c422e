import stat

import pytest

from autorecompute.backends import registry
from autorecompute.trials.private import (
    cache_variables,
    compiled_code_of,
    forget_compiled_code,
    variables_of_known_code,
)

pytestmark = pytest.mark.usefixtures("own_temporary_directory")


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "studies" / "bert"
    path.mkdir(parents=True)
    return path


def test_each_study_has_a_folder_that_is_the_users_alone(study):
    folder = compiled_code_of(study)
    assert folder == compiled_code_of(study)
    assert folder != compiled_code_of(study.parent / "gpt2")
    assert not folder.is_relative_to(study)
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


def test_all_compilers_are_told_but_where_the_user_has_chosen(study):
    variables = cache_variables(study, {})
    assert variables
    assert variables == dict.fromkeys(registry.gather("CACHE_VARIABLES"), str(compiled_code_of(study)))
    name, *others = variables
    assert cache_variables(study, {name: "/mine"}).keys() == {*others}


def test_a_training_is_told_only_where_something_was_compiled(study):
    """A model that is not compiled may have parts of its own that are, with caches of their own."""
    assert variables_of_known_code(study, {}) == {}
    compiled_code_of(study).mkdir()
    assert variables_of_known_code(study, {}) == cache_variables(study, {})


def test_compiled_code_goes_with_its_study(study):
    other = compiled_code_of(study.parent / "gpt2")
    for folder in (compiled_code_of(study), other):
        (folder / "ab").mkdir(parents=True)
        (folder / "ab" / "kernel.cpp").write_text("")
    forget_compiled_code(study)
    forget_compiled_code(study)
    assert not compiled_code_of(study).exists()
    assert (other / "ab" / "kernel.cpp").exists()
