"""Thin adapters, one a library. Each imports its library when it is started, and no earlier."""
