"""Inspecting, verifying, repairing and salvaging the files of a queue."""
