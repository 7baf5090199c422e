"""A real PostgreSQL on the loopback: Debian's programs, a cluster of its own in a folder, a password for everybody."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import psycopg

DEBIAN = Path("/usr/lib/postgresql")
"""Debian keeps what runs a server here, a folder for each version, and not on the path."""

PATIENCE_SECONDS = 600
USER = "tuner"
PASSWORD = "known/p@ss:word%20?#"  # noqa: S105  (of a server that lives for these tests; no character of it may matter)
QUOTED_PASSWORD = quote(PASSWORD, safe="")

PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)

SETTINGS = {
    "fsync": "off",  # what these tests break is processes and connections, not the machine
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
}


class Server:
    """A PostgreSQL cluster in a temporary folder, which keeps its port when it is started again."""

    def __init__(self):
        # The server's user has to get there, which it could not within pytest's own private folders.
        self._folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
        # PostgreSQL refuses to run as root; Debian's package brings a user for it.
        self._identity = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
        if self._identity:
            shutil.chown(self._folder, "postgres", "postgres")
        self.port = free_port()
        self._make()

    def _make(self):
        password = self._folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)  # the folder is private
        asked = ("--auth=scram-sha-256", f"--username={USER}", f"--pwfile={password}", "--encoding=UTF8", "--no-sync")
        subprocess.run(
            [_programs() / "initdb", "-D", self._folder / "data", *asked],
            **self._identity,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def start(self):
        """Waits until it answers; it dies with who started it."""
        options = [
            word for name, value in (SETTINGS | {"port": self.port}).items() for word in ("-c", f"{name}={value}")
        ]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_programs() / "postgres", "-D", self._folder / "data", *options],
                **self._identity,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  (nothing else runs in the tests' threads that it could meet)
            )
        self._wait()

    def _wait(self):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self.connect("postgres").close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log = (self._folder / "log").read_text()
                    raise RuntimeError(f"PostgreSQL does not answer: {log}") from None
                time.sleep(0.05)

    def stop(self):
        """Ends it as a crash would: at once, without a word to those who are connected."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(PATIENCE_SECONDS)

    def remove(self):
        shutil.rmtree(self._folder)

    def make_database(self, name):
        with self.connect("postgres") as connection:
            connection.execute(f'CREATE DATABASE "{name}"')

    def connect(self, database):
        """Each statement counts at once."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, dbname=database, autocommit=True
        )


def url_of(database, port, password=PASSWORD):
    """The storage's URL as a user writes it."""
    return f"postgresql://{USER}:{quote(password, safe='')}@127.0.0.1:{port}/{database}"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def _die_with_parent():
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def _programs():
    versions = sorted(DEBIAN.glob("*/bin"), key=lambda folder: int(folder.parent.name))
    assert versions, "these tests need a PostgreSQL: apt-get install postgresql"
    return versions[-1]
