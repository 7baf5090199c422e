"""Recompute, switched on in the model that trains; and the state that a second run must not change."""
