"""Event tokens that SQL can compare: they differ in one number only, and the larger one is newer.

They have one shard and no origin. Two DynamoDB sequence numbers are such positions, and two GTID sets in which only the
last sequence number differs. ``relay.token.compare`` has the rule for all tokens; on these it says the same.
"""

# GTIDs of more digits may be past the largest one that a server assigns.
_POSITION = (
    r"(?:DynamoDB/|(?:MySQL56/[0-9a-z_:,-]+:[0-9]+-|MariaDB/(?:[0-9]+-[0-9]+-[0-9]+,)*[0-9]+-[0-9]+-)"
    r'(?=[0-9]{1,18}"))'
)
PLAIN_TOKEN = (
    rf'^\{{"timestamp":[1-9][0-9]*,("shard":".+","position":"{_POSITION})([1-9][0-9]{{0,99}})","origin":null\}}$'
)
"""A regular expression for Python, Java and PostgreSQL. Its groups: what such tokens have in common, and the number."""

PLAIN_END = '","origin":null}'
"""What follows the number in a plain token."""
