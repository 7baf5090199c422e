"""Files that are written whole or not at all."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Writes a text file whole; on any failure what was there before stays.

    Raises:
        OSError: the disk is full, or the place cannot be written.
    """
    # Paths need not be UTF-8: what Python took in as a surrogate goes out as the byte it was.
    write_whole_bytes(path, text.encode("utf-8", errors="surrogateescape"))


def write_whole_bytes(path: Path, content: bytes) -> None:
    """The same for what is no text.

    Raises:
        OSError: the disk is full, or the place cannot be written.
    """
    # Process ids are no names: containers that share a folder may each have the same.
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
