"""Side by side with the incumbent, in real kernels: `make bench`, or `python -m benchmarks --help`."""
