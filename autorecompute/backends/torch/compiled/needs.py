"""What has to be compiled for a config where blocks are compiled and not the model. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.backends.torch.options import BUDGET

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autorecompute.plans import Config, Plan


def code_of_blocks(config: Config, plans: Iterable[Plan]) -> frozenset[str]:
    """Name of what is compiled: a block for each way in which the config runs blocks of its group.

    A budget has all blocks compiled with it. Blocks that no choice is about run as the script has them.
    """
    budgets = [str(on) for on in config.choices if on.option.startswith(BUDGET)]
    if budgets:
        return frozenset(budgets)
    groups = {choice.site: plan.occurrences for plan in plans if plan.counts for choice in plan.choices}
    chosen = {on.site: on for on in config.choices}
    checkpointed = {f"{on.site}:{on.option}" for on in config.choices}
    plain = {
        site
        for site, blocks in groups.items()
        if site not in chosen or (chosen[site].count is not None and (chosen[site].count or 0) < blocks)
    }
    return frozenset(checkpointed | plain)
