"""Inside a worker process: its start, its streams, its tasks, what it shows."""
