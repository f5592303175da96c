"""Worked examples that the command line runs."""
