"""Names of the kernel on their way to a session's workers."""
