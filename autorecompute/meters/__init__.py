"""Memory as the process, the CUDA allocator and the driver see it. Knows nothing of plans."""
