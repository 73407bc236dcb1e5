"""The training runtime inside a worker. Knows torch, and nothing of notebooks or launching."""
