"""Conducts a tuning: search proposes, trials measure, the study keeps, the winner is confirmed."""
