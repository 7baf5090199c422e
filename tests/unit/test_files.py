"""Files that several processes write."""

from __future__ import annotations

from pathlib import Path

from autorecompute.files import write_whole


def test_writers_with_one_process_id_do_not_meet(tmp_path, monkeypatch):
    """Two at once, as in containers that share a folder and count their processes alike: the later one's text stays."""
    file, write_bytes, others = tmp_path / "result.json", Path.write_bytes, ["the other's"]

    def write_beside_another(path, content):
        written = write_bytes(path, content)
        if others:
            write_whole(file, others.pop())
        return written

    monkeypatch.setattr(Path, "write_bytes", write_beside_another)
    write_whole(file, "mine")
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]
