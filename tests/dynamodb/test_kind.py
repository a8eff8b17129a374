"""What the commands of the relay can do with a source in DynamoDB."""

from __future__ import annotations

from typing import Any

import pytest

from relay.config import DynamoDBConfig
from relay.dynamodb.kind import KIND
from relay.errors import RelayError, Unavailable
from tests.listening import NOBODY


def entry(endpoint_url: str, table: str) -> DynamoDBConfig:
    return DynamoDBConfig(name="shop", type="dynamodb", table=table, region="us-east-1", endpoint_url=endpoint_url)


@pytest.mark.services
def test_the_rows_of_a_table_that_does_not_exist_are_refused_and_other_tables_may_be_there(
    dynamodb: Any, unique: str
) -> None:
    """I12"""
    with pytest.raises(RelayError, match=f"table '{unique}' does not exist") as lost:
        next(KIND.rows(entry(dynamodb.endpoint_url, unique), list, [unique]))
    assert not isinstance(lost.value, Unavailable)
    with pytest.raises(Unavailable):
        next(KIND.rows(entry(f"http://{NOBODY}", unique), list, [unique]))
