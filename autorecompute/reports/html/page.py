"""The page: the template filled, with a policy that lets it load nothing and run nothing but its own script."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute import __version__
from autorecompute.errors import SetupError
from autorecompute.reports.curve import FIGURES
from autorecompute.reports.knob_table import COLUMNS
from autorecompute.units import printable

if TYPE_CHECKING:
    from autorecompute.reports.html.story import Story
    from autorecompute.studies import StudyFolder

HERE = Path(__file__).parent
TEMPLATE, STYLE, SCRIPT = "report.html.j2", "report.css", "report.js"


def make_page(folder: StudyFolder, page: Path) -> str:
    """Return the report of a study as one HTML page.

    Args:
        folder: The study.
        page: The file it is for: the logs are linked relative to that.

    Raises:
        UsageError: there is no such study, or another version of autorecompute made it.
        SetupError: the study cannot be read, or jinja2 or matplotlib is not installed.
    """
    folder.head()
    try:
        import jinja2  # noqa: F401  (looked for before anything is done)
        from matplotlib import rc_context

        from autorecompute.reports.html.story import tell
        from autorecompute.reports.html.svg import style

        with rc_context(style()):  # type: ignore[arg-type]  # names as plain text
            return _fill(tell(folder, page))
    except ModuleNotFoundError as error:
        raise SetupError(f'A report needs {error.name}. Install it: pip install "autorecompute[report]".') from error


def _fill(story: Story) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    style, script = _read(STYLE), _read(SCRIPT)
    text = environment.get_template(TEMPLATE).render(
        story=story,
        style=style,
        script=script,
        policy=_policy(style, script),
        curve_headings=(*FIGURES, "config", "study"),
        knob_headings=COLUMNS,
        version=__version__,
    )
    # A path that is no UTF-8 comes as surrogates, which no page can hold.
    return printable(text.lstrip()).encode(errors="replace").decode()


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
