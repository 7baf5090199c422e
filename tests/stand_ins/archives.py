from autorecompute.studies.archive import read_archive
from autorecompute.studies.importing import import_records
from fake_backend.controller import KNOBS, NAME

TRUSTED = {NAME: frozenset(knob.name for knob in KNOBS)}
HOME = "/home/jane doe/secret project"
COMMAND = {
    "python": "python",
    f"{HOME}/train.py": "train.py",
    f"--data={HOME}/data": "--data=data",
    "--bs=1/2": "--bs=1/2",
    "/home/doe, jane/train.py": "train.py",
    f"{HOME}/one:{HOME}/two": "one:two",
    f"python '{HOME}/train.py'": "python 'train.py'",
    "~/projects/train.py": "train.py",
    "s3://bucket/data": "s3://bucket/data",
    "data/train.py": "data/train.py",
}
"""The words of a command, and what they are on another machine."""


def take(file, name="bert", *, force=False):
    return import_records(read_archive(file), name, TRUSTED, force=force)


def written(place, lines):
    file = place / "a.jsonl"
    file.write_bytes(b"".join(lines))
    return file
