"""Small applications that read through the cache, one for each framework. Copy what you need."""
