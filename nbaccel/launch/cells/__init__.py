"""Cells that run on the workers of a session."""
