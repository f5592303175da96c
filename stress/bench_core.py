"""Measures pagequeue against its peers: python -m stress.bench_core [--help].

Prints figures, ratios of the same run, and each target with whether it was reached. The exit code
is 0 even when targets are missed, and 1 when a message was lost, torn or out of order anywhere.
"""

import sys

if __name__ == "__main__":
    # Imported here because every spawned process imports this file, and none may import the
    # peers it does not run.
    from stress.bench.command import main

    sys.exit(main())
