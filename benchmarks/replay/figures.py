"""The figures of a comparison: kept as columns of runs, summed up, and printed beside the goals."""

from __future__ import annotations

import json
import math
import statistics
from itertools import chain

from rich.table import Table as Grid

from play import BUDGET, CHECKPOINTS
from replay import SHARES
from searchers import OPTUNAS, OURS, SEARCHERS

GOAL_TRIALS = {"ORTModule": (12, 25), "plain PyTorch": (8, 15)}
"""Trials to the best by system: in the median, and in nine of ten searches."""

GOAL_RATIO, GOAL_SECONDS = 3.0, 0.050
"""How many times fewer they are than the best of Optuna's samplers takes, and the time of a proposal."""

PARTS = (0.5, 0.9)
"""Quantiles that are told."""


def as_columns(runs):
    """The runs of one searcher on one table, limit by limit, as they are kept."""
    return {
        "seeds": len(runs) // len(SHARES),
        "trials": [run.trials for run in runs],
        "ended": [run.ended for run in runs],
        **{f"regret_{count}": [_short(run.regrets[place]) for run in runs] for place, count in enumerate(CHECKPOINTS)},
        "answer_regret": [_short(run.answer_regret) for run in runs],
        "is_infeasible": [run.is_infeasible for run in runs],
        "proposal_ms": round(1000 * statistics.fmean(run.proposal_seconds for run in runs), 2),
        "longest_proposal_ms": round(1000 * max(run.longest_seconds for run in runs), 2),
    }


def _short(share):
    return None if share is None else round(share, 4)


def merge(file, found):
    """Puts what was found, by table and searcher, in the place of what the file has of them; gives all of it.

    The file has a JSON object a line: the columns of one searcher on one table.
    """
    tables = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        columns = json.loads(line)
        tables.setdefault(columns.pop("table"), {})[columns.pop("searcher")] = columns
    for table, searchers in found.items():
        tables.setdefault(table, {}).update(searchers)
    entries = ((table, name, tables[table][name]) for table in sorted(tables) for name in sorted(tables[table]))
    lines = (json.dumps({"table": table, "searcher": name, **columns}) for table, name, columns in entries)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tables


def join(columns):
    """The columns of several tables as one."""
    names = [
        name
        for name, values in columns[0].items()
        if isinstance(values, list) and all(name in found for found in columns)
    ]
    joined = {name: list(chain.from_iterable(found[name] for found in columns)) for name in names}
    return {
        **joined,
        "proposal_ms": statistics.fmean(found["proposal_ms"] for found in columns),
        "longest_proposal_ms": max(found["longest_proposal_ms"] for found in columns),
    }


def quantile(figures, share):
    """What this share of the runs came to at most; ``None`` counts as infinite, as in runs that never got there."""
    ordered = sorted(math.inf if figure is None else figure for figure in figures)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def times_fewer(searchers):
    """How many times fewer trials ours takes than the best Optuna sampler, at least where that took too many; and who.

    ``None`` where ours came to the best in less than half of its runs, or none of Optuna's was played.
    """
    medians = {name: quantile(searchers[name]["trials"], 0.5) for name in OPTUNAS if name in searchers}
    ours = quantile(searchers[OURS]["trials"], 0.5) if OURS in searchers else math.inf
    if not medians or math.isinf(ours):
        return None
    best = min(medians, key=medians.__getitem__)
    return min(BUDGET, medians[best]) / ours, best


def draw_searchers(title, searchers):
    """A row for each searcher: medians and 90th percentiles."""
    grid = Grid(title=title, title_justify="left")
    names = (
        "trials",
        "ended",
        *(f"regret {count}" for count in CHECKPOINTS),
        f"none fits at {CHECKPOINTS[0]}",
        "answer",
    )
    for name in ("searcher", *names, "infeasible", "propose", "longest"):
        grid.add_column(name, justify="left" if name == "searcher" else "right")
    for name in (name for name in SEARCHERS if name in searchers):
        grid.add_row(name, *_cells(searchers[name]))
    return grid


def _cells(found):
    trials, first = found["trials"], found[f"regret_{CHECKPOINTS[0]}"]
    return (
        _counts(trials),
        # Results that were kept before do not tell it.
        _counts(found["ended"]) if "ended" in found else "-",
        *(_share(found[f"regret_{count}"]) for count in CHECKPOINTS),
        f"{sum(share is None for share in first)} of {len(first)}",
        _share(found["answer_regret"]),
        f"{sum(found['is_infeasible'])}",
        f"{found['proposal_ms']:.1f} ms",
        f"{found['longest_proposal_ms']:.0f} ms",
    )


def _counts(numbers):
    return " / ".join(_count(quantile(numbers, part)) for part in PARTS)


def _count(number):
    return f"> {BUDGET}" if math.isinf(number) else f"{number}"


def _share(shares):
    known = [share for share in shares if share is not None]
    return " / ".join(f"{100 * quantile(known, part):.1f}" for part in PARTS) + " %" if known else "-"


def draw_limits(tables):
    """Median trials of ours at each limit of each table."""
    grid = Grid(
        title=f"{OURS}: median trials by limit, from the least peak (0 %) to no recompute", title_justify="left"
    )
    for name in ("table", *(f"{share:.0%}" for share in SHARES)):
        grid.add_column(name, justify="left" if name == "table" else "right")
    for name, searchers in tables.items():
        if OURS in searchers:
            trials, seeds = searchers[OURS]["trials"], searchers[OURS]["seeds"]
            by_limit = (trials[place * seeds : (place + 1) * seeds] for place in range(len(SHARES)))
            grid.add_row(name, *(_count(quantile(found, 0.5)) for found in by_limit))
    return grid


def judge_goals(tables):
    """A sentence for each goal of each system: what it asks for, and what ours came to."""
    systems = {
        system: {name: found for name, found in tables.items() if system_of(name) == system} for system in GOAL_TRIALS
    }
    return [sentence for system, own in systems.items() if own for sentence in _judge_system(system, own)]


def system_of(table):
    """The training system that a table was recorded on, by the table's name."""
    return "plain PyTorch" if table.startswith("torch_") else "ORTModule"


def _judge_system(system, tables):
    goal_median, goal_late = GOAL_TRIALS[system]
    ours = join([searchers[OURS] for searchers in tables.values() if OURS in searchers])
    ratios = {name: times_fewer(searchers) for name, searchers in tables.items()}
    median, late = quantile(ours["trials"], 0.5), quantile(ours["trials"], 0.9)
    longest, infeasible = ours["longest_proposal_ms"], sum(ours["is_infeasible"])
    listed = ", ".join(
        f"{name} {f'{found[0]:.1f}x {found[1]}' if found else 'not at all'}" for name, found in ratios.items()
    )
    is_ahead = all(found is not None and found[0] >= GOAL_RATIO for found in ratios.values())
    return [
        _sentence(median <= goal_median, f"{system}: median of {goal_median} trials to the best", _count(median)),
        _sentence(late <= goal_late, f"{system}: 90 % within {goal_late} trials", _count(late)),
        _sentence(is_ahead, f"{GOAL_RATIO:.0f}x fewer than the best Optuna sampler on every table", listed),
        _sentence(not infeasible, "no infeasible answer", f"{infeasible} of {len(ours['trials'])}"),
        _sentence(longest < 1000 * GOAL_SECONDS, f"proposals under {1000 * GOAL_SECONDS:.0f} ms", f"{longest:.0f} ms"),
    ]


def _sentence(is_met, goal, figure):
    return f"{'met   ' if is_met else 'missed'}  {goal}: {figure}"
