"""Makes the table of DynamoDB that compose/relay.yaml reads, unless it is there."""

import boto3

client = boto3.client("dynamodb", endpoint_url="http://dynamodb:8000", region_name="eu-west-1")
if "orders" not in client.list_tables()["TableNames"]:
    client.create_table(
        TableName="orders",
        KeySchema=[{"AttributeName": "customer", "KeyType": "HASH"}, {"AttributeName": "order_id", "KeyType": "RANGE"}],
        AttributeDefinitions=[
            {"AttributeName": "customer", "AttributeType": "S"},
            {"AttributeName": "order_id", "AttributeType": "N"},
        ],
        BillingMode="PAY_PER_REQUEST",
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    )
