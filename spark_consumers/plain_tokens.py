"""Event tokens that SQL can compare: they differ only in one number, and the larger number is newer.

They have the same shard and no origin, and are DynamoDB sequence numbers, or GTID sets that differ only in the last
sequence number. ``relay.token.compare`` says the same about them.
"""

# GTIDs with more digits may exceed the largest one that a server assigns.
_POSITION = (
    r"(?:DynamoDB/|(?:MySQL56/[0-9a-z_:,-]+:[0-9]+-|MariaDB/(?:[0-9]+-[0-9]+-[0-9]+,)*[0-9]+-[0-9]+-)"
    r'(?=[0-9]{1,18}"))'
)
PLAIN_TOKEN = (
    rf'^\{{"timestamp":[1-9][0-9]*,("shard":".+","position":"{_POSITION})([1-9][0-9]{{0,99}})","origin":null\}}$'
)
"""A regular expression for Python, Java and PostgreSQL. Its groups: the common part of such tokens, and the number."""

PLAIN_END = '","origin":null}'
"""The text after the number in a plain token."""
