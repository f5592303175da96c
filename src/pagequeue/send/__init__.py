"""Appending to pages: the end of a queue, pages that are in none yet, and what is refused."""
