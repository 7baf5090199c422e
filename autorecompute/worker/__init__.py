"""Worker inside the user's process: loads the script, counts its steps, obeys the controller."""

from __future__ import annotations
