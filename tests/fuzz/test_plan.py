"""Every field and every verb has its turn, and a short run finds nothing."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from autorecompute import cli
from fuzz import arguments

CASES = 2000
TESTS = Path(__file__).parents[1]


def fuzz(*words):
    """Runs the fuzzer as ``make fuzz`` does."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.run(
        [sys.executable, "-m", "fuzz", *words], env=environment, capture_output=True, text=True, check=False
    )


def test_nothing_is_wrong_in_two_thousand_changes():
    """No traceback, no exit code that is not documented, nothing written outside, nothing that takes too much."""
    done = fuzz("--cases", str(CASES))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_verb_is_tried():
    """Those of the parser, with what the verb ``studies`` does."""
    parser = cli.make_parser()
    verbs = next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    actions = next(a.choices for a in verbs["studies"]._actions if isinstance(a, argparse._SubParsersAction))
    tried = {words[:2] if words[:1] == ("studies",) else words[:1] for words in arguments.VALID.values()}
    assert tried - {()} == {(verb,) for verb in verbs if verb != "studies"} | {("studies", name) for name in actions}
