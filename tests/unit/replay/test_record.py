"""The recorder's journal."""

from journal import Journal, read_lines


def test_a_recording_goes_on_behind_a_half_written_line(write_journal):
    """A recorder that was killed while it wrote goes on; what it writes then is a line of its own."""
    file = write_journal()
    whole = read_lines(file)
    with file.open("a") as growing:
        growing.write('{"config": "ab')
    journal = Journal(file)
    assert [journal.head, *journal.rows] == whole
    journal.add(whole[-1])
    assert read_lines(file) == [*whole, whole[-1]]


def test_a_recording_that_was_killed_in_its_head_begins_anew(tmp_path):
    """Without a whole first line nothing is known of the table."""
    file = tmp_path / "model.journal"
    file.write_text('{"study": "mo')
    journal = Journal(file)
    assert (journal.head, journal.rows) == (None, [])
    journal.begin({"study": "model"})
    assert Journal(file).head == {"study": "model"}
