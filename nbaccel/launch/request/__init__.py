"""From what a caller asks for to what will run, checked before anything starts."""
