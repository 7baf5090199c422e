"""A study as one HTML page that needs nothing from elsewhere."""

from autorecompute.reports.html.page import make_page

__all__ = ["make_page"]
