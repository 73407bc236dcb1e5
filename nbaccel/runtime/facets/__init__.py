"""The Accelerator's public methods, one topic a file. They hand on to the rooms of the runtime."""
