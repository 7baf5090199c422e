import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import autorecompute

PACKAGE = "autorecompute"
ROOT = Path(autorecompute.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# What each room may import beyond itself: "plans.*" stands for a module with all that is below it, "backends" for the
# door of that room and nothing behind it.
BASE = {
    *("errors", "units", "plans.*", "memory.*", "training_job", "measurement", "figures", "result", "codec", "files"),
    *("ranges", "tested", "waiting", "__init__"),
}
REGISTRY = {"backends.registry", "backends.interface", "backends.findings"}
ADAPTER = {"backends.ortmodule.adapter"}
FLOW = {
    "errors": set(),
    "files": {"errors"},
    "waiting": set(),
    "ranges": set(),
    "tested": set(),
    "plans": {"errors", "files", "ranges"},
    "memory": {"errors", "units", "ranges", "plans.*"},
    "units": BASE,
    "training_job": {"plans.*", "ranges"},
    "measurement": BASE,
    "figures": BASE,
    "result": BASE,
    "codec": BASE,
    "__init__": {"backends.registry", "worker.training", "integrations", *BASE},
    "integrations": {"worker.training", *BASE},
    "meters": BASE,
    "backends": {"meters.*", "startup.sitecustomize", *BASE},
    "worker": {*REGISTRY, "meters.*", *BASE},
    "trials": {"worker.protocol", *REGISTRY, *BASE},
    "search": {"studies.frozen", *BASE},
    "studies": BASE,
    "tuning": {"search.*", "trials.*", "studies.*", *REGISTRY, *BASE},
    "checking": {"trials.*", "studies.*", *BASE},
    "reports": {"studies.*", *REGISTRY, *BASE},
    "emit": {"studies.*", *REGISTRY, *BASE},
    "startup": set(),
    "schemas": {"cli", "reports.*", "emit.*", "studies.*", *BASE},
    "compat": ADAPTER,
    "cli": {"*"},
    "__main__": {"cli.*"},
}

# Runs inside the user's process, or in one of its own; everything else runs in the controller.
IN_THE_USERS_PROCESS = {
    *("worker.*", "meters.*", "compat", "integrations.*", "startup.*", "backends.common.*", "backends.torch.*"),
    *ADAPTER,
    *("backends.ortmodule.detection", "backends.ortmodule.diagnose", "backends.ortmodule.exceptions"),
    *("backends.ortmodule.installation", "backends.ortmodule.profiling", "backends.ortmodule.symbolics"),
    "backends.ortmodule.worker",
}
CONTROLLERS = {"backends.torch.controller", "backends.torch.forecast.*"}
"""Those of a folder that runs in the user's process which the controller may import."""

TRAINING = {"torch", "onnxruntime", "onnx", "transformers"}


def module_of(file):
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


MODULES = {module_of(file): file for file in FILES}


@functools.cache
def nodes_of(module):
    return list(ast.walk(ast.parse(MODULES[module].read_text())))


@functools.cache
def imports_of(module):
    names = []
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno} imports relatively, which this test cannot follow"
            names += [_module_meant(node.module, alias.name) for alias in node.names]
    return names


def _module_meant(parent, name):
    is_module = f"{parent}.{name}".removeprefix(f"{PACKAGE}.") in MODULES
    return f"{parent}.{name}" if is_module else parent


def own_imports_of(module):
    names = [name for name in imports_of(module) if name.partition(".")[0] == PACKAGE]
    return {name.removeprefix(PACKAGE).removeprefix(".") or "__init__" for name in names}


def room_of(module):
    return module.partition(".")[0]


def is_among(module, places):
    holders = [place.removesuffix("*") for place in places if place.endswith("*")]
    return module in places or any(f"{module}.".startswith(holder) for holder in holders)


def deep_in_backends(module):
    """Return the imports of a module of the inside of a backend."""
    return {name for name in own_imports_of(module) if name.count(".") > 1 and name.startswith("backends.")}


def test_every_file_has_its_room_in_the_table_and_imports_go_one_way():
    assert {room_of(module) for module in MODULES} == set(FLOW)
    elsewhere = [(module, name) for module in MODULES for name in own_imports_of(module)]
    assert [
        (module, name)
        for module, name in elsewhere
        if room_of(name) != room_of(module) and not is_among(name, FLOW[room_of(module)])
    ] == []


def test_backends_are_asked_for_by_name_and_know_nothing_of_each_other():
    inside = {module: deep_in_backends(module) for module in MODULES if not module.startswith("backends.")}
    assert inside.pop("compat") <= ADAPTER
    assert {module: names for module, names in inside.items() if names} == {}
    inside = [module for module in MODULES if module.startswith("backends.")]
    others = [(module, name) for module in inside for name in deep_in_backends(module)]
    assert [pair for pair in others if pair[1].split(".")[1] not in (pair[0].split(".")[1], "common")] == []


def circles_among(ways):
    """Names what can be reached from itself, once all that leads nowhere is taken away."""
    while ends := {start for start, targets in ways.items() if not targets}:
        ways = {start: targets - ends for start, targets in ways.items() if start not in ends}
    return sorted(ways)


def test_neither_rooms_nor_files_lead_back_to_themselves_nor_a_folder_through_one_inside_it():
    ways = {room: set() for room in FLOW}
    for module in MODULES:
        ways[room_of(module)] |= {room_of(name) for name in own_imports_of(module)} - {room_of(module)}
    assert circles_among(ways) == []
    assert circles_among({module: own_imports_of(module) - {module} for module in MODULES}) == []
    folder_of = {name: name if file.stem == "__init__" else name.rpartition(".")[0] for name, file in MODULES.items()}
    ways = {(folder_of[name], folder_of[to]) for name in MODULES for to in own_imports_of(name)}
    assert {(inner, outer) for inner, outer in ways if outer and inner.startswith(f"{outer}.")} & {
        (inner, outer) for outer, inner in ways
    } == set()


def test_the_controller_has_no_word_of_the_training_system():
    own = [name for name in MODULES if is_among(name, CONTROLLERS) or not is_among(name, IN_THE_USERS_PROCESS)]
    assert [(module, name) for module in own for name in imports_of(module) if name.partition(".")[0] in TRAINING] == []


def imported_by(*arguments):
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


def test_tuning_leaves_the_training_system_out_plans_the_database_and_help_all_that_is_heavy():
    modules = "autorecompute.cli, autorecompute.tuning.session, autorecompute.studies, autorecompute.reports.answer"
    imported = imported_by("-c", f"import {modules}")
    assert imported >= {"optuna", "sqlalchemy"}
    assert imported & TRAINING == set()
    modules = "autorecompute.cli.plans, autorecompute.tuning.searcher_factory"
    assert "sqlalchemy" not in imported_by("-c", f"import {modules}")
    imported = imported_by("-m", PACKAGE, "--help")
    assert "argparse" in imported
    assert imported & {*TRAINING, "optuna", "sqlalchemy", "rich", "sympy", "numpy"} == set()


def test_no_decision_is_taken_by_a_clock_that_jumps():
    """Steps, patience and timeouts are measured by clocks that nobody sets: the date is for people to read."""
    own = [name for name in MODULES if name.startswith(("worker", "trials", "tuning"))]
    names = [(name, node.attr) for name in own for node in nodes_of(name) if isinstance(node, ast.Attribute)]
    assert [pair for pair in names if pair[1] in {"time", "time_ns", "now", "utcnow", "today"}] == []


def test_a_file_can_be_read_at_one_sitting():
    lengths = {name: len(file.read_text().splitlines()) for name, file in MODULES.items()}
    assert {name: length for name, length in lengths.items() if not 1 <= length <= 600} == {}


OWN_WORDS = re.compile(r"\bORT\b|onnx|ortmodule|recompute levels?|level_?[12]\b|probe config", re.IGNORECASE)
COMPAT = "compat.py"
"""The one line that scripts with an ORTModule of their own import."""

NAMED = {"backends/registry.py": r"PACKAGES = \{.*?\}", "tested.py": r"VERSIONS = \{.*?\}"}
"""Files that may name a backend, and with which words."""


def neutral_files():
    for file in sorted(ROOT.rglob("*")):
        place = file.relative_to(ROOT)
        is_of_a_backend = place.parts[0] == "backends" and len(place.parts) > 2 and place.parts[1] != "common"
        if (
            file.suffix in {".py", ".json", ".html", ".css", ".js", ".j2"}
            and not is_of_a_backend
            and file.name != COMPAT
        ):
            yield str(place)


def test_no_training_system_is_spoken_of_outside_its_folder():
    found = {}
    for place in neutral_files():
        text = (ROOT / place).read_text(encoding="utf-8")
        found[place] = OWN_WORDS.findall(re.sub(NAMED.get(place, r"(?!)"), "", text, flags=re.DOTALL))
    assert found
    assert {place: words for place, words in found.items() if words} == {}
