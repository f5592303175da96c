"""A pytest plugin that gives the tests of persist-queue the classes of the adapter.

PYTHONPATH=. python -m pytest -p persist_plugin DIRECTORY_OF_ITS_TESTS/test_queue.py
"""

import persist_adapter
import persistqueue.sqlackqueue

for module in (persistqueue, persistqueue.sqlackqueue):
    for name in ("Empty", "Full", "Queue", "SQLiteQueue", "SQLiteAckQueue"):
        if hasattr(module, name):
            setattr(module, name, getattr(persist_adapter, name))
