"""Flows: iterators whose elements are stored in a queue on their way."""
