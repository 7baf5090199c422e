"""Archives as they are written and taken in."""

from autorecompute.studies.archive_reading import read_archive
from autorecompute.studies.importing import Trusted, import_records
from autorecompute.units import MIB
from fake_backend.controller import KNOBS, NAME

TRUSTED = Trusted(knobs={NAME: frozenset(knob.name for knob in KNOBS)})
STANDING = {
    "trial": 1,
    "description": "all plans",
    "peak_bytes": 700 * MIB,
    "rounds": [{"step_seconds": [0.5], "reference_seconds": [], "marks": []}],
}
HOME = "/home/somebody/secret"


def take(file, name="bert", *, force=False):
    """Imports an archive."""
    return import_records(read_archive(file), name, TRUSTED, force=force)


def written(place, lines):
    """A file with these lines."""
    file = place / "a.jsonl"
    file.write_bytes(b"".join(lines))
    return file
