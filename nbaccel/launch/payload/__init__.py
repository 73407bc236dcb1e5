"""What travels beside the messages: pickled objects, and their large buffers without copies."""
