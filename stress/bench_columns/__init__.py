"""Measures reading and writing in columns: `python -m stress.bench_columns [--quick]`.

Each case prints ratios of medians within one run: absolute figures of this machine do not transfer
to another one. Goals are those of the project; a missed goal is printed as missed.
"""
