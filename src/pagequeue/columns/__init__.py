"""Messages as columns: batches, Arrow, and arrays that are sent."""
