"""Measurements beside peers, in one process and one run: `make bench`, or `python -m benchmarks`."""
