# The executable that stands for the interpreter. The server's copy of it begins with ADDRESS and AS_STARTED.
import array
import ctypes
import json
import os
import signal
import socket
import sys

AT_START = ("GLIBC_", "KMP_", "LD_", "MKL_", "OMP_", "OPENBLAS_", "PYTORCH_", "TORCH", "CUDA_")
"""Libraries read such variables when they are loaded: to a fork of the server they would be nothing."""

WHENEVER = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TORCHINDUCTOR_CACHE_DIR")
"""These are read when a card is first used, or whenever something is compiled; each process of a tuning has them."""

PR_SET_PDEATHSIG = 1
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


def at_start():
    return {name: os.environ[name] for name in os.environ if name.startswith(AT_START) and name not in WHENEVER}


def main():
    is_plain = len(sys.argv) > 1 and (sys.argv[1] in {"-m", "-c"} or not sys.argv[1].startswith("-"))
    if is_plain and at_start() == AS_STARTED:  # noqa: F821
        run_warm()
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606


def is_open(file):
    try:
        return os.get_inheritable(file) or file < 3
    except OSError:
        return False


def run_warm():
    # The fork's parent is the server: this process dies in its place with whoever started it.
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    server = socket.socket(socket.AF_UNIX)
    server.connect(ADDRESS)  # noqa: F821
    inherited = sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) != server.fileno())  # noqa: PTH208
    files = [file for file in inherited if is_open(file)]  # not the one of the folder itself
    asked = {
        "files": files,
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),  # noqa: PTH109
        "group": os.getpgrp(),
        "session": os.getsid(0),
        "ignores": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
    }
    content = json.dumps(asked).encode()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
    server.sendmsg([len(content).to_bytes(4, "big")], [rights])
    server.sendall(content)
    answers = server.makefile("r")
    pid = int(answers.readline())
    for number in FORWARDED:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    # Whoever reads the other ends of these must not wait for this process as well.
    null = os.open(os.devnull, os.O_RDWR)
    for file in files:
        os.dup2(null, file)
    code = int(answers.readline() or -signal.SIGKILL)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
