"""The benchmark's parts: what is run (cases), how (loops, harness), against whom (peers).

Contract. Every contender of a case runs in real processes started by spawn, through one start
barrier, on one clock (CLOCK_MONOTONIC), with the same message-building and the same checks; a
failed check fails the run. Contenders of a case are interleaved, repeat by repeat, so that drift
hits all of them, and medians are compared. Floors, lowest first: plan, wire, loops, peers,
figures, harness, cases, report, command. `turns` is for all benchmarks.
"""
