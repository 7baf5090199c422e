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
from autorecompute.worker.in_script import FollowedTraining, start_search
from autorecompute.worker.protocol import SETTINGS_VARIABLE, Settings, is_first
from autorecompute.worker.script import from_script, run_words, script_file
from autorecompute.worker.side_channel import SideChannel

if TYPE_CHECKING:
    from types import TracebackType


def main() -> None:
    """Run the script to its own end, which is this process's end."""
    # The script and what it starts must not take themselves for workers.
    settings = codec.decode(os.environ.pop(SETTINGS_VARIABLE).encode(), Settings)
    result.take(os.environ)
    following = _Following(settings)
    # Not before: a script may set variables that are read when torch is imported.
    registry.call_when_imported(settings.backend, following.begin)
    try:
        words = sys.argv[1:]
        _show_own_frames_alone(script_file(words))
        run_words(words)
    except BaseException as error:
        following.end(error)
        raise
    following.end(None)


class _Following:
    """Follows the script from the import of torch on."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._channel = SideChannel(int(settings.address)) if settings.search is None else None
        self._training: FollowedTraining | None = None
        self._has_begun = False

    def begin(self) -> None:
        """Put the hooks in; say so where that cannot be done."""
        self._has_begun = True
        try:
            if self._settings.search is not None and is_first():
                self._channel = start_search(self._settings.search)
            self._training = FollowedTraining(self._channel, self._settings, say)
        except Exception as error:  # noqa: BLE001  (nothing of ours may end the training)
            if self._channel is not None:
                self._channel.close()
            if is_first():
                say(logging.WARNING, f"the script trains without autorecompute: {str(error).rstrip('.')}.")

    def end(self, error: BaseException | None) -> None:
        """Note that the script has ended."""
        if self._training is not None:
            self._training.guard.end(error)
        elif not self._has_begun and "torch" in sys.modules:
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
