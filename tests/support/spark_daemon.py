"""What forks the Python workers of the tests' session, after the imports that each would repeat.

A task that fails ends its worker, so the tests have a hundred of them. PySpark's own daemon leaves
the imports to them; it forks those of the campaigns, of the README and of the cluster's tests.
"""

from __future__ import annotations

import importlib
import sys

from pyspark import daemon

import pagequeue.spark.source  # noqa: F401 - it is what all tasks of the tests import

if __name__ == "__main__":
    importlib.import_module(sys.argv[1])
    daemon.manager()
