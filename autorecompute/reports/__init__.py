"""Texts, tables and pages for people. Knows nothing of how numbers were measured."""

from __future__ import annotations
