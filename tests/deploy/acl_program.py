"""Takes the options of ``kafka-acls.sh`` that deploy/kafka/acls.sh uses; the embedded broker has no such program."""

from __future__ import annotations

import argparse

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
}


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for option in ("--bootstrap-server", "--allow-principal", "--resource-pattern-type", "--command-config"):
        parser.add_argument(option, required=True)
    parser.add_argument("--add", action="store_true", required=True)
    parser.add_argument("--operation", action="append", required=True)
    names = parser.add_mutually_exclusive_group(required=True)
    for resource in RESOURCES:
        names.add_argument(f"--{resource.replace('_', '-')}")
    given = parser.parse_args()
    with open(given.command_config, encoding="utf-8") as file:
        settings = dict(line.strip().split("=", 1) for line in file if line.strip())
    ((resource, name),) = ((each, getattr(given, each)) for each in RESOURCES if getattr(given, each) is not None)
    pattern = ResourcePatternType[given.resource_pattern_type.upper()]
    # In Kafka's own program an operation is written like DescribeConfigs.
    operations = ["".join(f"_{c}" if c.isupper() else c for c in each).lstrip("_").upper() for each in given.operation]
    bindings = [
        AclBinding(
            RESOURCES[resource], name, pattern, given.allow_principal, "*", AclOperation[each], AclPermissionType.ALLOW
        )
        for each in operations
    ]
    client = AdminClient({"bootstrap.servers": given.bootstrap_server, **settings})
    for future in client.create_acls(bindings).values():
        future.result(120)


if __name__ == "__main__":
    main()
