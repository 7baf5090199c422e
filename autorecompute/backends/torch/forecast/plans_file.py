"""The file that tells a training which plans to switch on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autorecompute import codec
from autorecompute.errors import UsageError
from autorecompute.files import shown
from autorecompute.plans import Choice, Config, Lengths

if TYPE_CHECKING:
    from collections.abc import Mapping


VARIABLE = "AUTORECOMPUTE_PLANS"  # names the file; unset or empty where nothing is recomputed

FORMAT = 1
LARGEST_FILE = 1 << 24  # bytes; the plans of a large model take a thousandth of that
LONGEST_NAME = 1000  # signs in the name of a model or in a choice, which messages print

_KEYS = frozenset({"format", "model", "torch", "plans"})
UNMEASURED = "unmeasured"  # this key stands in the file of a config that was only planned, and is true
LENGTHS = "lengths"  # configs for shorter batches, by their lengths in tokens
REPLACES = "replaces_checkpointing"
"""So does this one where the checkpoints that the script makes itself are to be off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansFile:
    """Content of a plans file.

    Attributes:
        model: The model that it was measured on, as ``identity.name_of`` calls it; empty where nobody said.
        torch: The version of torch that it was measured with; empty where nobody said.
        is_unmeasured: True if it was only planned: no step was run with it.
        replaces_checkpointing: True if it takes the place of the script's own checkpointing.
        lengths: The configs of shorter batches, and ``config`` as that of the longest; ``None`` for one for all.
    """

    config: Config
    model: str = ""
    torch: str = ""
    is_unmeasured: bool = False
    replaces_checkpointing: bool = False
    lengths: Lengths | None = None

    @property
    def choices(self) -> frozenset[Choice]:
        """Return all choices that are switched on for some length."""
        configs = () if self.lengths is None else self.lengths.configs
        return self.config.choices.union(*(config.choices for config in configs))

    @property
    def does_nothing(self) -> bool:
        """Tell whether a script trains with it as without."""
        return self.config.is_none and not self.replaces_checkpointing

    @property
    def text(self) -> str:
        """Return the file's text: a choice to a line."""
        marks = {UNMEASURED: self.is_unmeasured, REPLACES: self.replaces_checkpointing}
        marked = {name: True for name, is_so in marks.items() if is_so}
        plain = {"format": FORMAT, **marked, "model": self.model, "torch": self.torch, "plans": self.config.texts}
        if self.lengths is not None:
            plain |= {LENGTHS: codec.to_plain(self.lengths)}
        return json.dumps(plain, indent=2) + "\n"


def read_plans_file(file: Path) -> PlansFile:
    """Read a plans file.

    Raises:
        UsageError: it cannot be read, or is none.
    """
    if file.exists() and not file.is_file():  # a pipe would be waited for
        raise UsageError(f"{shown(file)} is no file of plans but something else. Emit it again from its study.")
    try:
        with file.open(encoding="utf-8") as stream:
            plain = json.loads(stream.read(LARGEST_FILE))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no JSON"
        raise UsageError(
            f"{shown(file)} cannot be read as a file of plans: {reason}. Emit it again from its study, or unset "
            f"{VARIABLE}."
        ) from error
    if not _is_ours(plain):
        raise UsageError(
            f"{shown(file)} is no file of plans that this autorecompute reads. Emit it again from its study."
        )
    config = Config.parse(plain["plans"])
    try:
        lengths = codec.from_plain(plain[LENGTHS], Lengths) if LENGTHS in plain else None
    except codec.UnreadableError as error:
        raise UsageError(f"{shown(file)} has no configs by length that can be read. Emit it again.") from error
    if lengths is not None and lengths.configs[-1] != config:
        raise UsageError(f"{shown(file)} has two configs for the longest batch. Emit it again from its study.")
    return PlansFile(
        config=config,
        lengths=lengths,
        model=plain["model"],
        torch=plain["torch"],
        is_unmeasured=UNMEASURED in plain,
        replaces_checkpointing=REPLACES in plain,
    )


def requested(environment: Mapping[str, str]) -> PlansFile | None:
    """Read the plans file that the variable names; return ``None`` where the variable names none.

    Raises:
        UsageError: the file cannot be read, or is none.
    """
    named = environment.get(VARIABLE, "")
    return read_plans_file(Path(named)) if named else None


def _is_ours(plain: Any) -> bool:
    marks = {UNMEASURED, REPLACES}
    if not isinstance(plain, dict) or any(plain.get(name, True) is not True for name in marks):
        return False
    if plain.keys() - marks - {LENGTHS} != _KEYS or plain["format"] != FORMAT:
        return False
    is_named = all(map(_is_name, (plain["model"], plain["torch"])))
    return is_named and isinstance(plain["plans"], list) and all(map(_is_name, plain["plans"]))


def _is_name(value: Any) -> bool:
    """Tell whether it is a text that a terminal shows as it is."""
    return isinstance(value, str) and len(value) <= LONGEST_NAME and value.isprintable()
