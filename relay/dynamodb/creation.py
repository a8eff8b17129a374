"""What the approximate creation time of a stream record says about when it was written."""

from __future__ import annotations


def may_be_from(created: float, since: float) -> bool:
    """Whether a record with the creation time ``created`` may have been written at ``since`` or later, in seconds.

    DynamoDB rounds the time down to the second, DynamoDB Local to the minute. If in doubt, the record is kept (I1).
    """
    return created + (60 if created % 60 == 0 else 1) > since
