"""Jobs that read the relay's topics: copy one, and change it."""
