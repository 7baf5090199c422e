"""What people see: the lines while tuning, the last screen, the tables. Knows nothing of how numbers were measured."""

from __future__ import annotations
