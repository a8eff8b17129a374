"""Finds Java, and fetches the jars of Spark and of the embedded services."""
