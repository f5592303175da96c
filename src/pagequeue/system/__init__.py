"""Files, locks, ownership and errors of the operating system."""
