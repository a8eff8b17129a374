"""What a running relay shows of itself: metrics, health, and a status page. See ``README.md``."""
