import json
import sys

if __name__ == "__main__":
    sys.stdout.write(json.dumps([{"name": "fake", "status": "ok", "found": "3.1"}]))
