"""The power-cut simulator: runs of the library recorded, and every state a cut could leave tried."""
