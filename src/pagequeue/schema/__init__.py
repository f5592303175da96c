"""What the messages of a queue hold: codecs and dtypes."""
