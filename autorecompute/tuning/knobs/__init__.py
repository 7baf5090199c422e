"""Settings other than recompute, turned on the winner in processes that alternate."""
