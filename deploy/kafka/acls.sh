#!/bin/sh
# Allows a principal all that a relay and its consumers do in Kafka, and nothing else:
#   acls.sh BOOTSTRAP_SERVERS NAME PRINCIPAL [OPTION...]
#   acls.sh broker-1:9093 shop User:relay --command-config admin.properties
# NAME is `name` of the config. KAFKA_ACLS: the program, kafka-acls.sh of Kafka by default. Options are passed on to it.
# With another `topics` template than {name}.{table}, run the first command for those topics as well.
set -eu
[ $# -ge 3 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
bootstrap=$1 name=$2 principal=$3
shift 3

allow() {
    "${KAFKA_ACLS:-kafka-acls.sh}" --bootstrap-server "$bootstrap" --add --allow-principal "$principal" \
        --resource-pattern-type prefixed "$@"
}

# Its topics: those of changes, checkpoints, schemas, gaps, dead letters, watermarks and statements.
allow "$@" --topic "$name." --operation Create --operation Describe --operation DescribeConfigs --operation Read \
    --operation Write
# The group of the workers, and those of the consumers.
allow "$@" --group "$name." --operation Read
# The transactions of each worker.
allow "$@" --transactional-id "$name-" --operation Describe --operation Write
