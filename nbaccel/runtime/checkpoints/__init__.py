"""Saving a run so that it can go on: weights, states, and the folder they stand in."""
