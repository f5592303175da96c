"""The small files of a queue: its metadata, cursors, group tables and ledgers."""
