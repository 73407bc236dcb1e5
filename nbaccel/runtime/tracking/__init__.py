"""Experiment trackers. A new one is a subclass of GeneralTracker and a line in the table."""
