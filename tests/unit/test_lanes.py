import ast
import functools
import subprocess
from pathlib import Path, PurePosixPath

import lanes
import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "autorecompute"
WITHOUT_A_LANE = {"tests/gpu"}
"""They need a card."""

LANES = {lane.name: lane for lane in lanes.read_lanes(ROOT)}
BY_CHANGE = [name for name, lane in LANES.items() if lane.files]
SCRIPTS = "tests/scripts"
"""Of all that these import, a lane trains with some."""
APART = lanes.read_apart(ROOT)

MODULES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for folder in (PACKAGE, "tests")
    for file in sorted((ROOT / folder).rglob("*.py"))
}


def is_named(file, names):
    path = PurePosixPath(file.relative_to(ROOT))
    globs = (PurePosixPath(name) for name in names)
    return any(
        path.is_relative_to(glob) or (len(path.parts) == len(glob.parts) and path.match(str(glob))) for glob in globs
    )


@functools.cache
def imports_of(file):
    """Modules of the package, and of the tests, that are imported when this one runs."""
    found = []
    for node in ast.walk(without_types(ast.parse(file.read_text()))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{name}" for name in names)]
        for name in names:
            found += [module for module in (name, f"tests.{name}") if module in MODULES and module != PACKAGE]
    return found


def without_types(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    return tree


def missed_by(files):
    """What the named files import, and what that imports in turn, that is neither named nor set apart."""
    own = [name for name in files if name != SCRIPTS]
    todo, seen = [file for file in MODULES.values() if is_named(file, own)], set()
    while todo:
        file = todo.pop()
        if file not in seen and (is_named(file, files) or not is_named(file, APART)):
            seen.add(file)
            todo += [MODULES[module] for module in imports_of(file)]
    return sorted(str(file.relative_to(ROOT)) for file in seen if not is_named(file, files))


def test_every_test_has_a_lane():
    tests = [file for module, file in MODULES.items() if file.name.startswith("test_")]
    named = [*WITHOUT_A_LANE, *(name for lane in LANES.values() for name in lane.tests)]
    assert [file for file in tests if not is_named(file, named)] == []


@pytest.mark.parametrize("name", BY_CHANGE)
def test_a_lane_names_every_module_that_it_reaches(name):
    assert missed_by(LANES[name].files) == [], f"name them, or their folder, in lane {name} of .ci/lanes.toml"


def test_every_module_is_named_by_a_lane_or_set_apart():
    named = [*APART, *(file for name in BY_CHANGE for file in LANES[name].files)]
    package = [file for module, file in MODULES.items() if module.startswith(PACKAGE)]
    assert [str(file.relative_to(ROOT)) for file in package if not is_named(file, named)] == []


@pytest.mark.parametrize("name", LANES)
def test_every_lane_has_a_command_and_names_of_files(name):
    names = (*LANES[name].files, *LANES[name].tests)
    assert [each for each in names if not list(ROOT.glob(each))] == []
    subprocess.run(["make", "--dry-run", f"test-{name}"], cwd=ROOT, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    """A project with a lane that depends on a folder, and one that is always run."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "deep" / "code.py").touch()
    (tmp_path / lanes.LANES).write_text('[common]\nfiles = ["pins.txt"]\napart = []\n[lint]\n[deep]\nfiles = ["src"]\n')
    (tmp_path / "pins.txt").touch()
    for command in (["init", "-q"], ["config", "user.email", "a@b.c"], ["config", "user.name", "a"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    commit(tmp_path)
    return tmp_path


def commit(checkout):
    subprocess.run(["git", "add", "--all"], cwd=checkout, check=True)
    subprocess.run(["git", "commit", "-q", "--allow-empty", "-m", "change"], cwd=checkout, check=True)


def reason(checkout):
    always, lane = lanes.read_lanes(checkout)
    assert lanes.reason_to_run(checkout, always, {}) == "always"
    return lanes.reason_to_run(checkout, lane, lanes.read_passed(checkout))


def test_a_lane_that_has_passed_is_not_due_until_a_file_changes(checkout):
    assert reason(checkout) == "has never passed"
    assert "commit .ci/passed.toml" in lanes.record(checkout, "deep")
    commit(checkout)
    assert reason(checkout) is None
    (checkout / "README.md").touch()
    commit(checkout)
    assert reason(checkout) is None


@pytest.mark.parametrize("file", ["src/deep/code.py", "src/new.py", "pins.txt"])
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_change_makes_a_lane_due(checkout, file, is_committed):
    lanes.record(checkout, "deep")
    (checkout / file).write_text("changed")
    if is_committed:
        commit(checkout)
    assert reason(checkout).startswith(f"{file} changed since ")
