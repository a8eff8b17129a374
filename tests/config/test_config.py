"""The config file: valid values, defaults, and the errors about invalid ones."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from relay.config import INTERNAL, CacheConfig, Config, CopyConfig, DynamoDBConfig, load, redacted
from relay.config.config import json_schema, loaded
from tests.config.configs import ARN, GOOD, ONE_TABLE, change, only, read, refused, two_sources


def test_a_complete_config_is_read(file: Path) -> None:
    config = read(file, GOOD)
    assert config.name == "shop"
    assert config.kafka.client() == {"bootstrap.servers": "127.0.0.1:9092"}
    assert config.schema_registry is not None
    assert only(config).table_name == "orders"
    assert only(config).key == "hash"
    assert config.cache is not None
    assert config.cache.tombstone_ttl == 3600
    assert config.cache.keys == {"orders": ["order:{order_id}"]}
    assert config.log is not None
    assert config.copy_ is not None
    assert config.copy_.url == "delta:///var/lib/relay/copy"
    assert config.spark.conf == {"spark.executor.memory": "2g", "spark.cores.max": "4"}
    assert config.topic("orders") == "shop.orders"
    assert [config.internal(kind) for kind in INTERNAL] == [f"shop.{kind}" for kind in INTERNAL]


def test_missing_keys_have_defaults(file: Path) -> None:
    config = read(
        file,
        """\
        name: shop
        kafka: {bootstrap_servers: "127.0.0.1:9092"}
        sources: [{name: orders, type: dynamodb, table: orders}]
        """,
    )
    source = only(config)
    assert config.kafka.partitions == 6
    assert (source.start, source.snapshot, source.key, source.on_gap) == ("trim_horizon", "none", "hash", "fail")
    assert (config.schema_registry, config.cache, config.log, config.copy_) == (None, None, None, None)


def test_two_files_that_say_the_same_have_equal_configs(file: Path, tmp_path: Path) -> None:
    config, other = read(file, GOOD), read(tmp_path / "other.yaml", GOOD)
    assert config == other
    assert config.file != other.file


def test_a_config_can_be_pickled(file: Path) -> None:
    config = read(file, GOOD)
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: shop\n", "name: shop\n    sorces: []\n", "2:1: unknown key `sorces`; did you mean `sources`?"),
        ("region:", "regoin:", "9:5: unknown key `regoin` in `sources[0]`; did you mean `region`?"),
        ("namespace: shop", "namspace: shop, namespace: shop",
         "15:42: unknown key `namspace` in `cache`; did you mean `namespace`?"),
        ("partitions: 6", "partitons: 6",
         "2:46: unknown key `partitons` in `kafka`; did you mean `partitions`?"),
        ("copy: {", "copy: {zzz: 1, ", "17:8: unknown key `zzz` in `copy`; known keys: "
         + ", ".join(CopyConfig.model_fields)),
        ("copy: {", "copy_: {", "17:1: unknown key `copy_`; did you mean `copy`?"),
    ],
)  # fmt: skip
def test_an_unknown_key_is_an_error_that_names_the_nearest_known_key(file: Path, old: str, new: str, said: str) -> None:
    assert refused(file, change(old, new)) == [said]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: shop\n", "name: 12\n",
         "1:7: `name` must be text (quote it if it looks like something else), not 12"),
        ("partitions: 6", "partitions: many", "2:58: `kafka.partitions` must be an integer, not 'many'"),
        ("partitions: 6", "partitions: 6.5", "2:58: `kafka.partitions` must be an integer, not 6.5"),
        ("partitions: 6", "partitions: yes",
         "2:58: `kafka.partitions` must be an integer, not true"),
        ("partitions: 6", "partitions: 0",
         "2:58: `kafka.partitions` must be at least 1, not 0"),
        ("partitions: 6", "partitions: 20000", "2:58: `kafka.partitions` must be at most 10,000, not 20000"),
        ('["order:{order_id}"]', "[]", "15:74: `cache.keys.orders`: needs a template such as order:{order_id}"),
        ("region: us-east-1", "role_arn: relay",
         "9:15: `sources[0].role_arn`: 'relay' is not the ARN of a role, such as arn:aws:iam::123456789012:role/relay"),
        ("region: us-east-1", "role_arn: 'arn:aws:iam::123456789012:role/relay'\n        role_session_name: a b",
         "10:24: `sources[0].role_session_name`: 'a b' must consist of 2 to 64 letters, digits and +=,.@_-"),
        ("region: us-east-1", "role_arn: 'arn:aws:iam::123456789012:role/relay'\n        external_id: e",
         "10:18: `sources[0].external_id` must have at least 2 characters"),
        ("producer: {}", "producer: []", "2:71: `kafka.producer` must be a mapping of keys to values, not a list"),
        ("producer: {}", "producer: {linger.ms: [5]}",
         "2:83: `kafka.producer.linger.ms`: must be text, a number, true or false, not a list"),
        ('["order:{order_id}"]', '"order:{order_id}"',
         "15:74: `cache.keys.orders` must be a list, not 'order:{order_id}'"),
        ("key: hash", "key: hashed", "13:10: `sources[0].key` must be 'hash' or 'item', not 'hashed'"),
        ("type: dynamodb", "type: postgres",
         "7:11: `sources[0].type` must be one of dynamodb, vitess, mysql, not 'postgres'"),
        ('path: "file:///var/lib/relay/log"', "", "16:6: `log.path` is missing"),
        ("tombstone_ttl: 1h", "tombstone_ttl: 1 hour",
         "15:112: `cache.tombstone_ttl`: '1 hour' is not a duration; write, for example, 30s, 5m, 1h or 7d"),
        ("tombstone_ttl: 1h", "tombstone_ttl: 3600",
         "15:112: `cache.tombstone_ttl`: a duration needs a unit: write, for example, 30s, 5m, 1h or 7d"),
        ("tombstone_ttl: 1h", "tombstone_ttl: 0s",
         "15:112: `cache.tombstone_ttl`: a duration must be greater than zero"),
        ("start: trim_horizon", "start: -30", "11:12: `sources[0].start`: a start needs a unit, such as -30s"),
        ("region: us-east-1", "region: us-east-1\n        stream_arn: nonsense",
         "10:17: `sources[0].stream_arn`: is not a stream ARN; write "
         "arn:aws:dynamodb:REGION:ACCOUNT:table/NAME/stream/LABEL"),
        ("table: orders\n", "table: or\n",
         "8:12: `sources[0].table`: 'or' is not a valid table name; use "
         "3 to 255 letters, digits, dots, dashes and underscores"),
        ('"127.0.0.1:9092"', '"127.0.0.1:9092, :"',
         "2:28: `kafka.bootstrap_servers`: ' :' is not a broker address, such as 127.0.0.1:9092 or ssl://[::1]:9093"),
        ('"redis://127.0.0.1:6379/0"', '"redis://127.0.0.1:port"',
         "15:14: `cache.url`: 'redis://127.0.0.1:***' needs a host and a port from 1 to 65535: redis://host:port"),
        ('"redis://127.0.0.1:6379/0"', "localhost",
         "15:14: `cache.url`: must start with redis:// or rediss:// or unix:// or redis+cluster:// or "
         "rediss+cluster:// or redis+sentinel:// or rediss+sentinel:// or memcached:// or memcacheds://"),
        ('"redis://127.0.0.1:6379/0"', '"redis+cluster://a:1,b:port"',
         "15:14: `cache.url`: 'redis+cluster://a:1,b:***' needs hosts with ports from 1 to 65535: "
         "redis+cluster://host:port,host:port"),
        ('"redis://127.0.0.1:6379/0"', '"redis+sentinel://a:1,b:2/"',
         "15:14: `cache.url`: 'redis+sentinel://a:1,b:2/' needs hosts with ports from 1 to 65535 and a service: "
         "redis+sentinel://host:port,host:port/service"),
        ('"redis://127.0.0.1:6379/0"', '"memcached://a:1,b:port"',
         "15:14: `cache.url`: 'memcached://a:1,b:***' needs hosts with ports from 1 to 65535: "
         "memcached://host:port,host:port"),
        ("namespace: shop", "namespace: a b", "15:53: `cache.namespace`: must be text without spaces or braces"),
        ("name: shop\n", "name: my shop\n",
         "1:7: `name`: 'my shop' may contain only letters a-z and A-Z, digits, dots, underscores and dashes"),
        ("file:///var/lib/relay/log", "file://var/lib/relay/log",
         "16:13: `log.path`: 'var' stands for a host: write file:///var/lib/relay/log"),
        ("delta:///var/lib/relay/copy", "delta://s3a://bucket/copy",
         "17:13: `copy.url`: is not a local folder: write s3a://bucket/copy, or delta+s3a://bucket/copy for a copy"),
        ("file:///var/lib/relay/log", "s3a//bucket/log",
         "16:13: `log.path`: there is no colon after 's3a': write s3a://bucket/log, or a folder in full"),
        ("file:///var/lib/relay/log", "~/log",
         "16:13: `log.path`: ~ does not stand for a home folder here: write the full path"),
        ("delta:///var/lib/relay/copy", "delta:s3a://b/copy",
         "17:13: `copy.url`: is not a local folder: write s3a://b/copy, or delta+s3a://b/copy for a "
         "copy"),
        ("delta:///var/lib", "delta+file:///var/lib",
         "17:13: `copy.url`: is a local folder: write delta:///var/lib/relay/copy"),
        ("delta:///var", "delta+://var",
         "17:13: `copy.url`: 'delta+://var/lib/relay/copy' must start with delta:// or postgresql:// or postgres:// or "
         "iceberg:// or delta+ and the URL of another store, such as delta+s3a://bucket/folder"),
        ("spark://spark:7077", "spark:7077",
         "18:17: `spark.master`: 'spark:7077' is not a Spark master, such as local[*], spark://host:7077, yarn or "
         "k8s://URL"),
        ("spark.cores.max", "cores.max",
         "18:84: `spark.conf.cores.max`: is not a Spark setting: their names begin with `spark.`"),
        ("spark.cores.max: 4", "spark.master: yarn",
         "18:87: `spark.conf.spark.master`: cannot be set to 'yarn': use `spark.master`, or --master"),
        ("spark.cores.max: 4", "spark.cores.max: [4]",
         "18:90: `spark.conf.spark.cores.max`: must be text, a number, true or false, not a list"),
        ('http: "127.0.0.1:9400"', 'http: "9400"',
         "19:7: `http`: '9400' is not an address to listen on, such as 127.0.0.1:9400 or [::1]:9400"),
        ("9092", "65536",
         "2:28: `kafka.bootstrap_servers`: '127.0.0.1:65536' is not a broker address, such as 127.0.0.1:9092 or "
         "ssl://[::1]:9093"),
        ("127.0.0.1:9092", "http://127.0.0.1:9092",
         "2:28: `kafka.bootstrap_servers`: 'http://127.0.0.1:9092' is not a broker address, such as 127.0.0.1:9092 or "
         "ssl://[::1]:9093"),
        ("127.0.0.1:9092", "user:secret@127.0.0.1:9092",
         "2:28: `kafka.bootstrap_servers`: a text with @ is not a broker address, such as 127.0.0.1:9092 or "
         "ssl://[::1]:9093"),
        ("spark:7077", "spark:77077",
         "18:17: `spark.master`: 'spark://spark:77077' is not a Spark master, such as local[*], spark://host:7077, "
         "yarn or k8s://URL"),
        ("9400", "65536",
         "19:7: `http`: '127.0.0.1:65536' is not an address to listen on, such as 127.0.0.1:9400 or [::1]:9400"),
    ],
)  # fmt: skip
def test_an_invalid_value_is_reported_with_line_and_column(file: Path, old: str, new: str, said: str) -> None:
    assert refused(file, change(old, new)) == [said]


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2/x@h:1",
        "redis://me:hunter2",
        "redis://:hunter2:6379/0",
        "redis://h:0/?password=hunter2",
        "hunter2",
        "redis:/:hunter2@h",
        "redis://:hunter2@ho\u2100st:1",
    ],
)
def test_a_wrong_url_that_may_hold_a_password_is_not_shown(file: Path, url: str) -> None:
    (said,) = refused(file, change("redis://127.0.0.1:6379/0", url))
    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("delta:///var/lib/relay/copy", "postgresql://relay@127.0.0.1",
         "17:13: `copy.url`: needs a host, a port from 1 to 65535, and a database: postgresql://user:password@host:port/database"),
        ("delta:///var/lib/relay/copy", "mysql://h/copy",
         "17:13: `copy.url`: 'mysql://h/copy' must start with delta:// or postgresql:// or postgres:// or "
         "iceberg:// or delta+ and the URL of another store, such as delta+s3a://bucket/folder"),
    ],
)  # fmt: skip
def test_settings_that_are_not_built_yet_are_refused_and_never_ignored(
    file: Path, old: str, new: str, said: str
) -> None:
    assert refused(file, change(old, new)) == [said]


def test_all_problems_are_reported_at_once_in_the_order_of_the_file(file: Path) -> None:
    said = refused(file, change("key: hash", "keyz: hash").replace("name: shop\n", "name: 1\n"))
    assert [line.split(":")[0] for line in said] == ["1", "13"]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ("{name: orders, type: dynamodb, table: lines}",
         "15:12: `sources[1].name`: another source is already called 'orders'"),
        ("{name: again, type: dynamodb, table: orders, region: eu-west-1}",
         "15:42: `sources[1].table`: source 'orders' already reads table 'orders', and both would write to "
         "topic 'shop.orders'"),
        (f'{{name: again, type: dynamodb, stream_arn: "{ARN}"}}',
         "15:47: `sources[1].stream_arn`: source 'orders' already reads table 'orders', and both would write "
         "to topic 'shop.orders'"),
        ("{name: b, type: dynamodb}", f"15:5: `sources[1]`: {ONE_TABLE}"),
        (f'{{name: b, type: dynamodb, table: abc, stream_arn: "{ARN}"}}',
         f"15:5: `sources[1]`: {ONE_TABLE}"),
        (f'{{name: b, type: dynamodb, region: us-east-1, stream_arn: "{ARN}"}}',
         "15:39: `sources[1].region`: is us-east-1, but the stream is in eu-west-1"),
        ("{name: b/c, type: dynamodb, table: abc}",
         "15:12: `sources[1].name`: 'b/c' may contain only letters a-z and A-Z, digits, dots, underscores and dashes"),
    ],
)  # fmt: skip
def test_sources_that_contradict_each_other_or_themselves_are_refused(file: Path, second: str, said: str) -> None:
    assert refused(file, two_sources(second)) == [said]


def test_on_incompatible_is_fail_or_register(file: Path) -> None:
    registry = read(file, GOOD).schema_registry
    assert registry is not None
    assert registry.on_incompatible == "fail"
    text = change('/ccompat/v7"', '/ccompat/v7", on_incompatible: ignore')
    (said,) = refused(file, text)
    assert "`schema_registry.on_incompatible` must be 'fail' or 'register'" in said


def test_secrets_are_never_shown(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    producer = "{sasl.password: '${SECRET}', ssl.key.password: '${SECRET}', ssl.key.pem: '${SECRET}', linger.ms: 5}"
    text = (
        change("producer: {}", f"producer: {producer}")
        .replace("redis://", "redis://:${SECRET}@")
        .replace("http://127.0.0.1:8080", "http://me:${SECRET}@127.0.0.1:8080")
    )
    config = read(file, text)
    assert config.kafka.producer["sasl.password"] == "hunter2"
    for shown in (repr(config), str(config), repr(config.kafka), repr(config.cache), f"{config.schema_registry}"):
        assert "hunter2" not in shown
    assert "linger.ms" in repr(config)
    said = refused(file, text.replace("linger.ms: 5", "linger.ms: [5]").replace("hash", "'hunter3'"))
    assert not any("hunter2" in line for line in said)


def test_a_wrong_value_is_shown_unless_it_may_be_a_secret(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    kafka = "{bootstrap_servers: b, partitions: '${SECRET}'}"
    legacy = "{name: legacy, type: mysql, database: d, shards: {'-': ['db:1']}, password: 1234, key: '${SECRET:-x}'}"
    text = f"name: [shop]\nkafka: {kafka}\nsources:\n- {legacy}\nspark: {{master: yarn, conf: http://me:hunter2@h}}\n"
    text += f"http: {'9' * 70}\n"
    assert [line.partition(": ")[2] for line in refused(file, text)] == [
        "`name` must be text (quote it if it looks like something else), not a list",
        "`kafka.partitions` must be an integer, not what its variable contains",
        "`sources[0].password` must be text (quote it if it looks like something else), not a number",
        "`sources[0].key`: must be `hash`, `item`, a list of columns that serve as the primary key, such as [a, b], or "
        "{table: [a, b]}",
        "`spark.conf` must be a mapping of keys to values, not 'http://***@h'",
        "`http` must be text (quote it if it looks like something else), not a number",
    ]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://:p@h:1/0", "redis://***@h:1/0"),
        ("redis://u:p@x@h:1/0", "redis://***@h:1/0"),
        ("https://token@h", "https://***@h"),
        ("memcached://u:p@h:1,i:2?sentinel_password=p&a=b", "memcached://***@h:1,i:2?sentinel_password=***&a=b"),
        ("file:///a@b", "file:///a@b"),
    ],
)
def test_a_url_is_shown_without_user_and_password(url: str, shown: str) -> None:
    assert redacted(url) == shown


def test_a_config_built_in_python_is_checked_too() -> None:
    source: dict[str, Any] = {"name": "a", "type": "dynamodb", "table": "orders"}
    with pytest.raises(ValueError, match="another source is already called 'a'"):
        Config(
            name="shop",
            kafka={"bootstrap_servers": "b:1"},  # type: ignore[arg-type]
            sources=[DynamoDBConfig(**source), DynamoDBConfig(**source | {"table": "lines"})],
        )
    assert CacheConfig(url="redis://h", namespace="n", keys={"t": ["a"]}, tombstone_ttl=1.5).tombstone_ttl == 1.5


def test_tombstones_require_the_full_primary_key_as_the_kafka_key(file: Path) -> None:
    """I1: under the hash key alone, compaction would drop all of its items."""
    assert refused(file, change("key: hash", "tombstones: true")) == [
        "13:17: `sources[0].tombstones`: requires `key: item`: under a hash key, a tombstone would delete all of its "
        "items"
    ]
    file.write_text(change("key: hash", "key: item\n        tombstones: true"))
    assert load(file).sources[0].tombstones


def test_a_function_that_takes_a_config_takes_its_file_too(file: Path) -> None:
    file.write_text(dedent(GOOD))
    config = load(file)
    assert loaded(file) == loaded(str(file)) == config
    assert loaded(config) is config


def test_the_json_schema_has_every_key_of_the_file(file: Path) -> None:
    schema = json_schema()
    assert json.loads(json.dumps(schema)) == schema
    assert set(schema["properties"]) == {*yaml.safe_load(dedent(GOOD)), "envelope", "topic_settings"}
    assert schema["required"] == ["name", "kafka", "sources"]
    source = schema["$defs"]["DynamoDBConfig"]
    assert source["additionalProperties"] is False
    assert set(source["properties"]) == {
        "name", "type", "table", "tables", "tags", "stream_arn", "region", "endpoint_url", "start", "snapshot", "key",
        "on_alter", "on_gap", "on_unencodable", "tombstones", "columns", "model", "protect", "where", "envelope",
        "profile", "role_arn", "external_id", "role_session_name",
    }  # fmt: skip
    assert schema["$defs"]["CacheConfig"]["properties"]["tombstone_ttl"]["type"] == "string"
    undescribed = {"snapshot", "type", "kafka", "sources"}
    for part in (schema, *schema["$defs"].values()):
        for key, rules in part["properties"].items():
            assert rules.get("description") or key in undescribed


def test_the_defaults_in_the_json_schema_are_values_that_a_file_may_have() -> None:
    defaults = {
        key: rules["default"]
        for part in json_schema()["$defs"].values()
        for key, rules in part["properties"].items()
        if "pattern" in rules and "default" in rules
    }
    assert defaults == {
        "tombstone_ttl": "1h", "tombstone_retention": "30d", "maintain_every": "1d", "keep_versions": "7d",
        "apply_every": "2s", "silence": "30s", "max_lag": "60s", "keyrange": "-", "master": "local[*]",
        "reshard_checkpoint_table": "_vt.vreplication",
    }  # fmt: skip
