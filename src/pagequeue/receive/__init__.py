"""Reading messages: consumers, replays and batches; how they are woken is in the package `wait`."""
