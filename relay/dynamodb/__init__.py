"""DynamoDB and its streams, for the relay and for Python users."""

from relay.dynamodb.batch_load import Loaded, batch_load

__all__ = ["Loaded", "batch_load"]
