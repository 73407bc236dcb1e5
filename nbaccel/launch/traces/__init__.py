"""What can be told of running code: frames, stacks, whose code it is, where a worker is."""
