"""One tuning over several batches: each has a study of its own, and the curve of all of them has the answer."""
