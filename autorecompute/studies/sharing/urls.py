"""The address of a shared storage, whose password goes to the database driver and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy

from autorecompute.errors import UsageError
from autorecompute.paths import shown
from autorecompute.units import printable

JOURNAL = "journal:"
DIALECTS = ("postgresql", "postgres", "postgresql+psycopg")
DRIVER = "postgresql+psycopg"
SECRETS = ("password", "sslpassword")
"""Parts of a URL that are told to nobody but the driver."""

FORMS = "journal:PATH or postgresql://USER@HOST/DATABASE"
ENCODING = "In a password, write / as %2F, : as %3A, @ as %40 and so on, or leave it to PGPASSWORD or ~/.pgpass."


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageUrl:
    """Where a shared study is kept.

    Attributes:
        journal: The file, for a shared file system; ``None`` for a database.
        database: The URL for SQLAlchemy, without any secret; empty for a file.
        display: The same for people, without options.
        secrets: What only the driver is told, by its names for it.
    """

    journal: Path | None = None
    database: str = ""
    display: str
    secrets: dict[str, str] = field(default_factory=dict, repr=False)

    def hide(self, text: str) -> str:
        """The text with every secret in it blotted out."""
        for secret in filter(None, self.secrets.values()):
            text = text.replace(secret, "***")
        return text


def parse_storage(text: str, source: str = "--storage") -> StorageUrl:
    """Reads where a shared study is kept.

    Args:
        text: What the user gave.
        source: How, for what is said of it.

    Raises:
        UsageError: it is none of the forms there are; what was given is not repeated, for it may hold a password.
    """
    if not text:
        raise UsageError(f"{source} is empty. Give {FORMS}, or leave it away to tune alone.")
    if text.startswith(JOURNAL) and (path := text.removeprefix(JOURNAL)):
        return _journal(path, source)
    if text.count("@") > 1:
        # Where the password ends is anybody's guess: a part of it would be taken for the host, and told.
        raise UsageError(f"{source} has more than one @. Write the one before the host as it is, and any other as %40.")
    try:
        url = sqlalchemy.make_url(text)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise UsageError(f"{source} cannot be read. Give {FORMS}. {ENCODING}") from None
    if url.drivername not in DIALECTS or not url.database:
        raise UsageError(f"{source} knows {FORMS}, with the name of a database at its end. Give one of these.")
    return _database(url)


def _journal(path: str, source: str) -> StorageUrl:
    if "://" in path:
        raise UsageError(
            f"{source} has a URL after {JOURNAL}, where a path is expected. Leave {JOURNAL} away for a database."
        )
    # The script that is tuned may change the working directory, and messages are to tell which file it is.
    try:
        journal = Path(path).expanduser().absolute()
    except RuntimeError:
        home = shown(path.partition("/")[0])
        raise UsageError(f"{source} has {home} in it, and there is no such home. Write the path out.") from None
    return StorageUrl(journal=journal, display=f"{JOURNAL}{printable(str(journal), '')}")


def _database(url: sqlalchemy.URL) -> StorageUrl:
    options = {name: value if isinstance(value, str) else value[-1] for name, value in url.query.items()}
    secrets = {name: options.pop(name) for name in SECRETS if name in options}
    if url.password:
        secrets["password"] = url.password
    bare = sqlalchemy.URL.create(DRIVER, username=url.username, host=url.host, port=url.port, database=url.database)
    return StorageUrl(
        database=bare.set(query=options).render_as_string(hide_password=False),
        display=bare.set(drivername="postgresql").render_as_string(),
        secrets=secrets,
    )
