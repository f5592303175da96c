"""Small helpers, independent of queues."""
