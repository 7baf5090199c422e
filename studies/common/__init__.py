"""What the studies' training scripts share: their data, their flags and their loop."""
