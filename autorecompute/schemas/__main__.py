"""Prints a schema: ``python -m autorecompute.schemas tune > tune.schema.json``."""

from __future__ import annotations

import argparse
import json
import sys

from autorecompute.schemas import NAMES, schema_of


def main() -> None:
    """Print the schema that is named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m autorecompute.schemas", description="Prints a JSON Schema.")
    parser.add_argument("name", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    sys.stdout.write(json.dumps(schema_of(parser.parse_args().name), indent=2) + "\n")


if __name__ == "__main__":
    main()
