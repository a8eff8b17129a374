"""Find tables by their tags."""

from __future__ import annotations

from botocore.exceptions import BotoCoreError, ClientError

from relay.aws import Refused
from relay.config import DynamoDBConfig
from relay.dynamodb.describe import clients
from relay.errors import Unavailable


def tagged(source: DynamoDBConfig) -> list[str]:
    """Return the names of the region's tables that have all of ``source.tags``.

    Needs ListTables, ListTagsOfResource and DescribeTable. Raises ``Unavailable`` if DynamoDB does not answer, if no
    table has the tags, and if one of them has no stream.
    """
    wanted = set((source.tags or {}).items())
    client, streams = clients(source)
    at = f"in region {client.meta.region_name} at {client.meta.endpoint_url}"
    found: list[str] = []
    without: list[str] = []
    try:
        for page in client.get_paginator("list_tables").paginate():
            for name in page["TableNames"]:
                table = client.describe_table(TableName=name)["Table"]
                pages = client.get_paginator("list_tags_of_resource").paginate(ResourceArn=table["TableArn"])
                if wanted <= {(tag["Key"], tag["Value"]) for tags in pages for tag in tags["Tags"]}:
                    enabled = table.get("StreamSpecification", {}).get("StreamEnabled")
                    (found if enabled else without).append(name)
    except (ClientError, BotoCoreError, Refused) as error:
        raise Unavailable(f"source {source.name}: cannot find tables by tag {at}: {error}") from error
    finally:
        client.close()
        streams.close()
    if without:
        names = ", ".join(without)
        raise Unavailable(f"source {source.name}: tables with its tags {at} have no stream: {names}")
    if not found:
        tags = ", ".join(f"{key}={value}" for key, value in sorted(wanted))
        raise Unavailable(
            f"source {source.name}: no table {at} has the tags {tags}: check `tags`, `region` and `endpoint_url`"
        )
    return found
