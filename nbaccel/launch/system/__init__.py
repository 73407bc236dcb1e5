"""What the operating system is asked for. Knows nothing of workers, payloads or the notebook."""
