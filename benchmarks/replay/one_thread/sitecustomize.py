"""Has ONNX Runtime compute with one thread: a recording needs one core, and leaves the others to others."""

import contextlib

with contextlib.suppress(ModuleNotFoundError):
    import onnxruntime

    class OneThread(onnxruntime.SessionOptions):
        """The options of a session with one thread."""

        def __init__(self) -> None:
            super().__init__()
            self.intra_op_num_threads = 1
            self.inter_op_num_threads = 1

    onnxruntime.SessionOptions = OneThread
