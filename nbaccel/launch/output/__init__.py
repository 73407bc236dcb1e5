"""From the workers' pipes to the cell."""
