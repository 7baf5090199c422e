"""What a verb prints that has no answer."""

import json


def has_no_data(verb, code, out):
    """Whether a verb that ended with this code printed nothing, or with ``--json`` the failure alone."""
    if "--json" not in verb:
        return out == ""
    failure = json.loads(out)
    return set(failure) == {"error", "exit_code"} and failure["exit_code"] == code
