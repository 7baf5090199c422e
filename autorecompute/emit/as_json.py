"""For programs: all that the other formats say, with numbers as numbers and ``null`` where nothing was measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from autorecompute import __version__, codec
from autorecompute.emit.provenance import require_best, stray_variables

if TYPE_CHECKING:
    from autorecompute.backends.interface import Emission
    from autorecompute.result import Best, Result


def render(result: Result, rendered: Emission) -> str:
    """One object: ``environment``, ``config`` (its choices), and where they come from; bytes and seconds throughout."""
    best = require_best(result)
    plain = {
        "environment": rendered.variables,
        "unset": stray_variables(rendered, result),
        **_describe_best(best),
        **_describe_origin(result),
        "autorecompute": __version__,
    }
    return json.dumps(plain, indent=2) + "\n"


def _describe_best(best: Best) -> dict[str, object]:
    return {
        "config": best.config.texts,
        "config_hash": best.config.hash,
        "description": best.description,
        "batch": best.batch,
        "samples_per_second": best.samples_per_second,
        "relative_throughput": best.relative_throughput,
        "peak_bytes": best.peak_bytes,
        "limit_bytes": best.limit_bytes,
        "confirmed": best.confirmed,
    }


def _describe_origin(result: Result) -> dict[str, object]:
    return {
        "study": result.study,
        "problem": result.problem,
        "verdict": codec.to_plain(result.verdict),
        "baseline": codec.to_plain(result.baseline),
        "rival": codec.to_plain(result.rival),
        "knobs": codec.to_plain(result.knobs),
        "device": codec.to_plain(result.device),
        "versions": result.versions,
        "command": result.command,
        "wrap": result.wrap,
    }
