"""Whether a stored answer is still valid on this machine: a config held against its study."""
