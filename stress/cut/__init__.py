"""The power-cut simulator: runs are recorded, and states that a cut could leave are tried."""
