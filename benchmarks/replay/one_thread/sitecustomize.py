"""Has ONNX Runtime compute with one thread where it is imported: one core is enough, and others need the rest."""

import importlib.util
import sys


class OneThread:
    """Changes ONNX Runtime's options when it is imported, and nothing where it is not."""

    def find_spec(self, name, path=None, target=None):  # noqa: ARG002  (Python's interface)
        """Where ONNX Runtime is, with what follows its import."""
        if name != "onnxruntime":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), compute_with_one_thread(module))
        return spec


def compute_with_one_thread(onnxruntime):
    """Makes one thread the default of every session."""
    if not hasattr(onnxruntime, "SessionOptions"):
        return

    class SessionOptions(onnxruntime.SessionOptions):
        """The options of a session with one thread."""

        def __init__(self) -> None:
            super().__init__()
            self.intra_op_num_threads = 1
            self.inter_op_num_threads = 1

    onnxruntime.SessionOptions = SessionOptions


sys.meta_path.insert(0, OneThread())
