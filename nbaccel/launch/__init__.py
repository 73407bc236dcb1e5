"""How workers come to life and die. Knows the runtime, and nothing of magics, widgets or the command line."""
