"""What the creation time of a record says, and what it does not."""

from __future__ import annotations


def may_be_from(created: float, since: float) -> bool:
    """Whether a record of creation time ``created`` may have been written at ``since`` or later; both in seconds.

    DynamoDB rounds the time down to the second, DynamoDB Local to the minute; in doubt nothing is lost (I1).
    """
    return created + (60 if created % 60 == 0 else 1) > since
