"""`python -m stress.bench_field [--help]`; 1 if a message was lost, torn or out of order."""

import sys

if __name__ == "__main__":
    # Imported here because every spawned process imports this file, and none may import the
    # peers it does not run.
    from stress.bench_field.command import main

    sys.exit(main())
