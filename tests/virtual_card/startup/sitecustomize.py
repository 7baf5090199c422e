"""Puts the virtual card into the processes of a tuning, at their start."""

import os

if os.environ.get("VIRTUAL_CARD"):
    import virtual_card

    virtual_card.enter_process()
