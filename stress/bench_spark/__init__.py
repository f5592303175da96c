"""Measures the Spark source and sink: `python -m stress.bench_spark [--quick] [--gigabytes N]`.

local[2], one session for all cases, ratios of medians within one run. The peers are a source that
gives a row at a time, the best source that Python can be (the same Arrow batch from memory again
and again), and Parquet's own scan, for scale. Goals are those of the project; a goal that is
missed is printed as missed.
"""
