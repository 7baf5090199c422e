"""A training system that does not exist: the controller tunes with it as with any other, and nothing is trained."""
