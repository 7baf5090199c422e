"""The training systems, each in a folder of its own. Only ``registry`` knows which there are."""
