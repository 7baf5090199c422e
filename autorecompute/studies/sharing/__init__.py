"""One study of several workers, in a storage that all of them reach."""

from __future__ import annotations

from autorecompute.studies.sharing.messages import PublishedAnswer
from autorecompute.studies.sharing.study import SharedStudy
from autorecompute.studies.sharing.urls import StorageUrl, parse_storage

__all__ = ["PublishedAnswer", "SharedStudy", "StorageUrl", "parse_storage"]
