"""Looking after a queue: retention, compression, replicas, statistics."""
