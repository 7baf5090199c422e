"""``dying.py EVENT PATH tune train.py ...`` kills the tuner just before an event of Python's audit about this file."""

import os
import runpy
import signal
import sys

from fake_backend import program

event, path, *arguments = sys.argv[1:]


def interfere(name, details):
    if name == event and path in str(details):
        os.kill(os.getpid(), signal.SIGKILL)


sys.argv[1:] = arguments
sys.addaudithook(interfere)
runpy.run_path(program.__file__, run_name="__main__")
