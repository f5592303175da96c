"""Producers: they send messages, one by one, many at once, or as files."""
