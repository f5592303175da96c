"""An open queue directory: opening, rolling, flushing and recovery."""
