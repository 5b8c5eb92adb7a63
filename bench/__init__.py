"""Benchmarks: `make bench` (`ONLY=name` for one). Each number stands beside its floor, measured in the same run."""
