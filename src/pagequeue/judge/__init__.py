"""Where a queue ends: evidence, read once, and the diagnosis that the core's judge makes of it."""
