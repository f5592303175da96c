"""Files of other formats: written from a queue, and imported into one."""
