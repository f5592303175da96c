"""The peers: one module each, imported only by the processes that run it."""
