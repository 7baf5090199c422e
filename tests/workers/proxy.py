import contextlib
import socket
import threading

CHUNK_BYTES = 1 << 16


class Proxy:
    """Passes on what comes in at its port, until it is cut.

    Args:
        target_port: Where it passes everything on to, on the loopback.

    Attributes:
        port: Where it listens, also after it was cut.
    """

    def __init__(self, target_port):
        self._target_port = target_port
        self._ends = set()
        self.port = 0
        self.mend()

    def cut(self):
        """Drops all connections and refuses new ones."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in list(self._ends):
            _drop(end)

    def mend(self):
        """Takes connections again, after it was cut."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener):
        while True:
            try:
                near, _ = listener.accept()
            except OSError:  # it was cut
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:  # nobody listens there
                _drop(near)
                continue
            for one, other in ((near, far), (far, near)):
                self._ends.add(one)
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, source, sink):
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                sink.sendall(chunk)
        for end in (source, sink):
            self._ends.discard(end)
            _drop(end)


def _drop(end):
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
