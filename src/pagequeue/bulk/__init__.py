"""Publishing any number of messages at once: staged pages, and one step that commits them."""
