"""Tells what a script can see of itself."""

import json
import os
import sys
from pathlib import Path

print(
    json.dumps(
        {
            "name": __name__,
            "file": __file__,
            "argv": sys.argv,
            "path": sys.path[0],
            "is_main_module": sys.modules["__main__"].__dict__ is globals(),
            "folder": str(Path.cwd()),
            "variables": sorted(name for name in os.environ if name.startswith("AUTORECOMPUTE_")),
        }
    )
)
