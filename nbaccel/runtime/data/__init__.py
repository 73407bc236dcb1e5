"""Sharing data among the ranks: what each reads, in which order, and which samples are filling."""
