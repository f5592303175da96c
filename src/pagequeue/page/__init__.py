"""One page file, plain or compressed: header, frames and index."""
