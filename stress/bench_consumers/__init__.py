"""Measures the goals set for consumers, groups, retention and compression.

`python -m stress.bench_consumers [CASE ...]` runs all cases or some. A case is a function of one
module; both sides of each ratio are measured in one run, in turns, and medians are compared.
"""
