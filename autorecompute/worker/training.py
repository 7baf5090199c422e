"""``python -m autorecompute.worker.training SCRIPT ARGS``: the user's script, tuned while it trains."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING

from autorecompute import codec, result
from autorecompute.backends import registry
from autorecompute.worker import script
from autorecompute.worker.in_script import follow_training, start_search
from autorecompute.worker.protocol import SETTINGS_VARIABLE, Settings, is_first
from autorecompute.worker.script import from_script, run_words, script_file
from autorecompute.worker.side_channel import SideChannel

if TYPE_CHECKING:
    from types import TracebackType

    from autorecompute.worker.guard import Guard


def main() -> None:
    """Run the script to its own end, which is this process's end."""
    # The script and what it starts must not take themselves for workers.
    settings = codec.decode(os.environ.pop(SETTINGS_VARIABLE).encode(), Settings)
    result.take(os.environ)
    channel = SideChannel(int(settings.address)) if settings.search is None else None
    begun: list[Guard | None] = []
    # Not before: a script may set variables that are read when torch is imported.
    registry.call_when_imported(settings.backend, lambda: begun.append(_follow(settings, channel)))
    try:
        words = sys.argv[1:]
        _show_own_frames_alone(script_file(words))
        run_words(words)
    except BaseException as error:
        _end(begun, error)
        raise
    _end(begun, None)


def _follow(settings: Settings, channel: SideChannel | None) -> Guard | None:
    """Put the hooks in; say so where that cannot be done."""
    try:
        if settings.search is not None and is_first():
            channel = start_search(settings.search)
        return follow_training(channel, settings, say)[0]
    except Exception as error:  # noqa: BLE001  (nothing of ours may end the training)
        if channel is not None:
            channel.close()
        if is_first():
            say(logging.WARNING, f"the script trains without autorecompute: {str(error).rstrip('.')}.")
        return None


def _end(begun: list[Guard | None], error: BaseException | None) -> None:
    """Note that the script has ended, by this error or by itself."""
    guard = begun[-1] if begun else None
    if guard is not None:
        guard.end(error)
    elif not begun and "torch" in sys.modules:
        say(logging.WARNING, f"nothing was tuned. {script.PASSED_BY}")


def say(level: int, text: str) -> None:
    """Print a line for the user, if there is anybody to read it."""
    del level
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"autorecompute: {text}\n")
        sys.stderr.flush()


def _show_own_frames_alone(script: str) -> None:
    """Have a traceback begin with the script, as it does without this tool."""
    show = sys.excepthook

    def show_own(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        own = from_script(trace, script)
        show(kind, error.with_traceback(own), own)

    sys.excepthook = show_own


if __name__ == "__main__":
    main()
