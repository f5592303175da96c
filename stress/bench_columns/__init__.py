"""Measures reading and writing in columns: `python -m stress.bench_columns [--quick]`.

Each case prints ratios of medians within one run: absolute figures of this machine say nothing of
another. Goals are those of the project; a goal that is missed is printed as missed.
"""
