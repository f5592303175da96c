"""Several queues read as one, ordered by time."""
