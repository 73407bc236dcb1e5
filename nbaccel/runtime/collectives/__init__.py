"""Talking to the other ranks: primitives (communicators) and the operations built from them."""
