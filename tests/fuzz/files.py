"""The changes of a file or a folder as a whole: what else may stand in its place."""

from __future__ import annotations

import functools
import gzip
import os
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

MEGABYTE = 2**20
SECTOR = 512
HOLE = 3 * 2**30
"""Bytes of a file that takes no room on the disk."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file or folder that is replaced.

    Attributes:
        file: Where it is, from the working directory on.
        kind: What takes its place.
    """

    file: str
    kind: str

    def __str__(self):
        return f"{self.file}: {self.kind}"

    def change(self, draw):
        """Puts it there; what was done, in words."""
        path = Path(self.file)
        content = path.read_bytes() if path.is_file() else b""
        if path.exists():
            _remove(path)
        if self.kind in BOMBS:
            path.write_bytes(bomb(self.kind))
        else:
            KINDS[self.kind](path, content, draw)
        return f"{self.file} replaced: {self.kind}"


def places_of(file):
    """What can be done to a file or folder."""
    kinds = [*KINDS, *BOMBS] if file.suffix == ".jsonl" else KINDS
    return [Place(str(file), kind) for kind in kinds]


def _remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _outside(name):
    return Path.cwd().parent / "outside" / name


def _lead_elsewhere(path, content, _draw):
    # A readable copy outside: what is read through it is as it was, and what is written would be another's.
    elsewhere = _outside(f"copy of {path.name}")
    elsewhere.write_bytes(content)
    path.symlink_to(elsewhere)


def _replace_name(path, content, _draw):
    path.with_name("abc").write_bytes(content)


def _cut(path, content, draw):
    path.write_bytes(content[: draw.randrange(len(content) or 1)])


def _flip(path, content, draw):
    changed = bytearray(content or b"x")
    for _ in range(draw.choice((1, 8, 64))):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    path.write_bytes(changed)


def _dig(path, _content, _draw):
    with path.open("wb") as file:
        file.truncate(HOLE)


def _name_another(path, _content, _draw):
    # What SQLite leaves of a transaction over several databases: it deletes the file that is named when it is through.
    name, magic, page = os.fsencode(_outside("keep.txt")), bytes.fromhex("d9d505f920a163d7"), 4096
    head = (magic + struct.pack(">5I", 0, 1, 1, SECTOR, page)).ljust(SECTOR, b"\0")
    end = name + struct.pack(">2I", len(name), sum(name)) + magic
    path.write_bytes(head + struct.pack(">I", 2**30 // page + 1) + end)


BOMBS = {"bomb of lists": b"[],", "bomb of brackets": b"[", "bomb of zeros": b"\0", "bomb of lines": b"{}\n"}
"""What small archives unpack to, by what is done to them."""


@functools.cache
def bomb(kind):
    """A small file that unpacks to a text of 64 MiB; all of them are made before processes are forked."""
    text = BOMBS[kind] * (MEGABYTE // len(BOMBS[kind]))
    return gzip.compress(text * 64, compresslevel=1)


KINDS = {
    "gone": lambda *_: None,
    "empty": lambda path, *_: path.write_bytes(b""),
    "symlink to a copy outside": _lead_elsewhere,
    "symlink to a file outside": lambda path, *_: path.symlink_to(_outside("keep.txt")),
    "symlink to a folder outside": lambda path, *_: path.symlink_to(_outside("docs")),
    "symlink to nothing outside": lambda path, *_: path.symlink_to(_outside("missing")),
    "symlink to itself": lambda path, *_: path.symlink_to(path.name),
    "symlink to a device": lambda path, *_: path.symlink_to("/dev/zero"),
    "symlink to the root": lambda path, *_: path.symlink_to("/"),
    "pipe": lambda path, *_: os.mkfifo(path),
    "folder": lambda path, *_: (path / "deep" / "er").mkdir(parents=True),
    "cut short": _cut,
    "bytes changed": _flip,
    "random": lambda path, _, draw: path.write_bytes(draw.randbytes(4096)),
    "no UTF-8": lambda path, content, _: path.write_bytes(content.replace(b"a", b"\xff\xfe")),
    "NULs": lambda path, content, _: path.write_bytes(b"\0" * (len(content) or 64)),
    "twice": lambda path, content, _: path.write_bytes(content * 2),
    "deep": lambda path, *_: path.write_bytes(b"[" * 200_000),
    "many lists": lambda path, *_: path.write_bytes(b"[" + b"[]," * MEGABYTE + b"[]]\n"),
    "null": lambda path, *_: path.write_bytes(b"null\n"),
    "list": lambda path, *_: path.write_bytes(b"[]\n"),
    "object": lambda path, *_: path.write_bytes(b"{}\n"),
    "digits": lambda path, *_: path.write_bytes(b"9" * 5000),
    "sparse": _dig,
    "not for us": lambda path, content, _: (path.write_bytes(content), path.chmod(0)),
    "other name": _replace_name,
    "journal that names a file": _name_another,
}
