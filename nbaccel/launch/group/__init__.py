"""Workers brought up together, and the ways to bring one up."""
