"""What the workers of a task are at, told to whoever shows it."""
