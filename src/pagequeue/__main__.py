"""`python -m pagequeue` is `pagequeue`."""

from __future__ import annotations

import sys

from pagequeue.cli import main

if __name__ == "__main__":
    sys.exit(main())
