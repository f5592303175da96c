"""What issue-sized goals say about consumers, groups, retention and compression, measured.

`python -m stress.bench_consumers [CASE ...]` runs all cases or some. A case is a function of one
module; both sides of each ratio are measured in one run, in turns, and medians are compared.
"""
