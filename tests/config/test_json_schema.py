"""The JSON schema of configs refuses what ``relay check`` refuses, as far as one place of the file says it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import jsonschema
import pytest
import yaml

from relay.config import load
from relay.errors import ConfigError
from tests.command_line import relay
from tests.config.configs import ARN, GOOD, change, two_sources

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    found = json.loads(relay("check", "--schema").stdout)
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


class _Texts(yaml.SafeLoader):
    """Leaves times as texts, as the relay does."""


_Texts.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def data(text: str) -> Any:
    return json.loads(json.dumps(yaml.load(dedent(text), _Texts)))


def mysql(more: str) -> str:
    return two_sources("{name: m, type: mysql, database: d, shards: {'-': ['h:1']}, " + more + "}")


def vitess(more: str) -> str:
    return two_sources("{name: v, type: vitess, vtgate: 'h:1', keyspace: k, " + more + "}")


WRONG = [
    change("name: shop\n", "name: shop\n    sorces: []\n"),
    change("regoin".replace("oi", "io") + ":", "regoin:"),
    GOOD.replace("    name: shop\n", ""),
    change("name: shop\n", "name: 12\n"),
    change("name: shop\n", "name: my shop\n"),
    change("partitions: 6", "partitions: many"),
    change("partitions: 6", "partitions: 0"),
    change("producer: {}", "producer: []"),
    change("producer: {}", "producer: {linger.ms: [5]}"),
    change("127.0.0.1:9092", "127.0.0.1:65536"),
    change("127.0.0.1:9092", "127.0.0.1:9092, :"),
    change("127.0.0.1:9092", "http://127.0.0.1:9092"),
    change("127.0.0.1:9092", "127.0.0.1:9092,kafka://127.0.0.1:9093"),
    change("127.0.0.1:9092", "user:password@127.0.0.1:9092"),
    change("http://127.0.0.1:8080", "ftp://127.0.0.1:8080"),
    change("http://127.0.0.1:8080", "http://127.0.0.1:80800"),
    change('/ccompat/v7"', '/ccompat/v7", on_incompatible: ignore'),
    change('"{name}.{table}"', '"{name}.{tabel}"'),
    change('"{name}.{table}"', '"{name}.{table"'),
    change('"{name}.{table}"', "{}"),
    change('"{name}.{table}"', "{orders: a}\n    topic_settings: {}"),
    change("sources:\n", "topic_settings: {orders: {}}\n    sources:\n"),
    change("sources:\n", "topic_settings: {orders: {retention.m: 5}}\n    sources:\n"),
    change("sources:\n", "topic_settings: {orders: {retention.ms: 7d}}\n    sources:\n"),
    change("sources:\n", "topic_settings: {orders: {partitions: 0}}\n    sources:\n"),
    change("sources:\n", "topic_settings: {orders: {preallocate: 1}}\n    sources:\n"),
    change("sources:\n", "topic_settings: {orders: {unclean.leader.election.enable: true}}\n    sources:\n"),
    change("sources:\n", "topic_settings: {orders: {cleanup.policy: shrink}}\n    sources:\n"),
    change('["order:{order_id}"]', '"order:{order_id}"'),
    change('["order:{order_id}"]', "[]"),
    change('["order:{order_id}"]', '["order:{order_id"]'),
    change('{orders: ["order:{order_id}"]}', "{}"),
    change("key: hash", "key: hashed"),
    change("type: dynamodb", "type: postgres"),
    change("table: orders\n", "table: or\n"),
    change("table: orders\n", "tables: [or]\n"),
    change("table: orders\n", "tables: []\n"),
    change("table: orders\n", "stream_arn: nonsense\n"),
    change("key: hash", "columns: {a: text}"),
    change("key: hash", "columns: {a: {absent: text}}"),
    change("key: hash", "columns: {a: {absent: {absent: string}}}"),
    change("key: hash", "columns: {}"),
    change("key: hash", "columns: {rest: string}"),
    change("key: hash", "columns: {a: 'decimal(39,1)'}"),
    change("key: hash", "protect: {orders: {a: hide}}"),
    change("key: hash", "protect: {orders: {a: {hash: {salt: ''}}}}"),
    change("key: hash", "where: {orders: {}}"),
    change("start: trim_horizon", "start: -30"),
    change("start: trim_horizon", "start: soon"),
    change("start: trim_horizon", "start: {tokn: x}"),
    change("http://127.0.0.1:8000", "127.0.0.1:8000"),
    change('path: "file:///var/lib/relay/log"', ""),
    change("file:///var/lib/relay/log", "file://var/lib/relay/log"),
    change("file:///var/lib/relay/log", "file://"),
    change("delta:///var/lib/relay/copy", "delta://"),
    change("file:///var/lib/relay/log", "~/log"),
    change("file:///var/lib/relay/log", "log"),
    change("file:///var/lib/relay/log", "s3a/log//2026"),
    change("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/zero"),
    change("file:///var/lib/relay/log", "s3a//bucket/log"),
    change("file:///var/lib/relay/log", "delta+s3a//bucket/log"),
    change("delta:///var/lib/relay/copy", "delta+s3a//bucket/copy"),
    change("delta:///var/lib/relay/copy", "postgresql//u@a/shop"),
    change("file:///var/lib/relay/log", "delta+file:///var/lib/relay/log"),
    change("file:///var/lib/relay/log", ""),
    change("tombstone_ttl: 1h", "tombstone_ttl: 1 hour"),
    change("tombstone_ttl: 1h", "tombstone_ttl: 3600"),
    change("tombstone_ttl: 1h", "tombstone_ttl: 0s"),
    change("redis://127.0.0.1:6379/0", "redis://127.0.0.1:port"),
    change("redis://127.0.0.1:6379/0", "localhost"),
    change("redis://127.0.0.1:6379/0", "redis+cluster://a:1,b:port"),
    change("redis://127.0.0.1:6379/0", "redis+sentinel://a:1,b:2/"),
    change("redis://127.0.0.1:6379/0", "memcached://a:1,b:99999"),
    change("namespace: shop", "namespace: a b"),
    change("namespace: shop", 'namespace: ""'),
    change("delta:///var", "delta+://var"),
    change("delta:///var", "delta://var"),
    change("delta:///var", "delta+file:///var"),
    change("delta:///var", "delta+delta://var"),
    change("delta:///var/lib/relay/copy", "mysql://h/copy"),
    change("delta:///var/lib/relay/copy", "postgresql://relay@127.0.0.1"),
    change("copy: {", "copy: {items: text, "),
    change("spark://spark:7077", "spark:7077"),
    change("spark://spark:7077", "spark://spark:77077"),
    change("spark.cores.max", "cores.max"),
    change("spark.cores.max: 4", "spark.cores.max: [4]"),
    change('http: "127.0.0.1:9400"', 'http: "9400"'),
    change("9400", "65536"),
    mysql("key: [1]"),
    mysql("key: []"),
    mysql("keyrange: 80"),
    mysql("keyrange: '-8x'"),
    mysql("tls: {cacert: x}"),
    mysql("start: trim_horizon"),
    mysql("start: {gtid: {}}"),
    mysql("reshard_checkpoint_table: vreplication"),
    mysql("snapshot_rows_per_second: 1"),
    mysql("on_alter: fail"),
    vitess("on_alter: true"),
    change("on_gap: fail", "on_alter: resnapshot"),
    mysql("password: 12"),
    mysql("iam: {role: r}, user: u, tls: {}"),
    change("region: us-east-1", "role_arn: relay"),
    change("region: us-east-1", "role_arn: 'arn:aws:iam::123456789012:user/relay'"),
    change("region: us-east-1", "role_arn: 'arn:aws:iam::123456789012:role/relay'\n        role_session_name: a b"),
    change("sources:\n", "sources:\n      - {name: m, type: mysql, database: d, shards: {'-': ['h:65536']}}\n"),
    change("sources:\n", "sources:\n      - {name: m, type: mysql, database: d, shards: {'-': []}}\n"),
    change("sources:\n", "sources:\n      - {name: m, type: mysql, database: '', shards: {'-': ['h:1']}}\n"),
    vitess("start: latest"),
    vitess("start: {vgtid: {}}"),
    vitess("start: {vgtid: []}"),
    vitess("start: {vgtid: [{shard: '-'}]}"),
    vitess("on_gap: repair"),
    vitess("cells: []"),
    vitess("silence: 5"),
    change("partitions: 6", "partitions: 20000"),
    change("partitions: 6", "partitions: 6.5"),
    change("partitions: 6", "partitions: [6]"),
    change("partitions: 6", "partitions: yes"),
    change("partitions: 6", "replicas: 3"),
    change("127.0.0.1:9092", "127.0.0.1:0"),
    change("127.0.0.1:9092", ""),
    change("127.0.0.1:9092", "127.0.0.1:9092;127.0.0.1:9093"),
    change("producer: {}", "producer: {linger.ms: null}"),
    change("producer: {}", "iam: true"),
    change("producer: {}", "iam: {region: ''}"),
    change("name: shop\n", "name: ''\n"),
    change("name: shop\n", "name: [shop]\n"),
    change("sources:\n", "sources: []\n    more:\n"),
    change('"{name}.{table}"', "5"),
    change('http://127.0.0.1:8080/apis/ccompat/v7"', 'http://"'),
    change('/ccompat/v7"', '/ccompat/v7", bearer: ""'),
    change('/ccompat/v7"', '/ccompat/v7", timeout: 5s'),
    change("table: orders\n", "table: [orders]\n"),
    change("table: orders\n", "table: or ders\n"),
    change("table: orders\n", "tags: {}\n"),
    change("table: orders\n", "tags: {a: 1}\n"),
    change("region: us-east-1", "region: 1"),
    change("region: us-east-1", "profile: ''"),
    change("snapshot: none", "snapshot: always"),
    change("snapshot: none", "snapshot: true"),
    change("on_gap: fail", "on_gap: ignore"),
    change("key: hash", "columns: [a]"),
    change("key: hash", "columns: {a: 5}"),
    change("key: hash", "model: 5"),
    change("key: hash", "where: [orders]"),
    change("key: hash", "protect: {orders: exclude}"),
    change("start: trim_horizon", "start: [latest]"),
    change("start: trim_horizon", "start: {token: 5}"),
    change("tombstone_ttl: 1h", "tombstone_ttl: 1w"),
    change("tombstone_ttl: 1h", "tombstone_ttl: -1h"),
    change("tombstone_ttl: 1h", "ttl: 1h"),
    change("redis://127.0.0.1:6379/0", "http://127.0.0.1:6379"),
    change("redis://127.0.0.1:6379/0", "redis://127.0.0.1:0"),
    change("redis://127.0.0.1:6379/0", "memcached://"),
    change('["order:{order_id}"]', "[5]"),
    change('["order:{order_id}"]', '["order:{}"]'),
    change('["order:{order_id}"]', '[""]'),
    change('log: {path: "file:///var/lib/relay/log"}', 'log: "file:///var/lib/relay/log"'),
    change("log: {path", "log: {maintain_every: 1, path"),
    change("log: {path", "log: {keep_versions: 0d, path"),
    change("copy: {url", "copy: {apply_every: 0s, url"),
    change("copy: {url", "copy: {tombstone_retention: never, url"),
    change("copy: {url", "copy: {path: a, url"),
    change("delta:///var/lib/relay/copy", "postgresql://relay@h:99999/shop"),
    change("shared_folders: true", "shared_folders: 1"),
    change("shared_folders: true", "shared_folders: maybe"),
    change("shared_folders: true", "connectors: ''"),
    change('http: "127.0.0.1:9400"', "http: 9400"),
    change('http: "127.0.0.1:9400"', "http: {user: u, password: p}"),
    change('http: "127.0.0.1:9400"', "http: {address: '127.0.0.1:9400', peers: h:1}"),
    change('http: "127.0.0.1:9400"', "http: {address: '127.0.0.1:9400', password: ''}"),
    change('http: "127.0.0.1:9400"', "http: {address: '127.0.0.1:9400', user: 'u:v', password: p}"),
    mysql("user: [u]"),
    mysql("max_lag: 60"),
    mysql("snapshot: yes"),
    mysql("tables: []"),
    mysql("tables: a"),
    mysql("snapshot_rows_per_second: fast"),
    mysql("start: {gtid: MariaDB/0-1-5}"),
    mysql("port: 3306"),
    vitess("snapshot: initial"),
    vitess("tables: []"),
    vitess("keyrange: [80]"),
    vitess("silence: 0s"),
    vitess("cells: zone1"),
    vitess("tls: yes"),
    vitess("start: {vgtid: '-'}"),
    vitess("tablet_type: BACKUP"),
    two_sources("{name: x, type: vitess, keyspace: k}"),
    two_sources("{name: x, type: vitess, vtgate: h, keyspace: k}"),
    two_sources("{name: x, type: vitess, vtgate: 'h:1', keyspace: ''}"),
    two_sources("{name: x, type: mysql, database: d}"),
    two_sources("{name: x, type: mysql, database: d, shards: {}}"),
    two_sources("{name: x, type: mysql, database: d, shards: {'-': 'h:1'}}"),
    two_sources("{name: x, type: mysql, database: d, shards: ['h:1']}"),
    two_sources("{name: x, type: mysql, shards: {'-': ['h:1']}}"),
    two_sources("{name: x, table: t123}"),
    two_sources("{type: dynamodb, table: t123}"),
    two_sources("{name: 'x y', type: dynamodb, table: t123}"),
    two_sources("text"),
]  # fmt: skip
"""What one place of the file says alone."""

BEYOND_THE_SCHEMA = [
    change("producer: {}", "producer: {transactional.id: x}"),
    change("producer: {}", "producer: {acks: 1}"),
    change("producer: {}", "producer: {enable.idempotence: false}"),
    change('/ccompat/v7"', '/ccompat/v7", user: u'),
    change('/ccompat/v7"', '/ccompat/v7", password: p'),
    change('/ccompat/v7"', '/ccompat/v7", user: u, password: p, bearer: t'),
    change('/ccompat/v7"', '/ccompat/v7", tls: {ca: a}'),
    change('http://127.0.0.1:8080/apis/ccompat/v7"', 'https://h", tls: {cert: a}'),
    change("key: hash", "tombstones: true"),
    change("sources:\n", "topic_settings: {orders: {cleanup.policy: compact}}\n    sources:\n"),
    change("sources:\n", "topic_settings: {lines: {partitions: 2}}\n    sources:\n"),
    change("        table: orders\n", ""),
    change("table: orders\n", "table: orders\n        tags: {a: b}\n"),
    change("table: orders\n", f"table: orders\n        stream_arn: {ARN}\n"),
    change("table: orders\n", "tables: [orders]\n        columns: {a: string}\n"),
    change("copy: {", "copy: {keep_versions: 2d, ").replace("delta:///", "postgresql://host/"),
    change("spark.cores.max: 4", "spark.master: yarn"),
    mysql("tombstones: true"),
    mysql("tls: {cert: x}"),
    mysql("iam: {}, user: u"),
    mysql("iam: {}, tls: {}"),
    mysql("iam: {}, user: u, tls: {}, password: p"),
    change("region: us-east-1", "external_id: shop"),
    change("region: us-east-1", "role_session_name: shop"),
    change("producer: {}", "producer: {sasl.mechanism: PLAIN}, iam: {}"),
    change("producer: {}", "producer: {security.protocol: sasl_plaintext}, iam: {}"),
    change("producer: {}", "producer: {partitioner: random}"),
    change("producer: {}", "producer: {bootstrap.servers: a}"),
    change('http: "127.0.0.1:9400"', "http: {address: '127.0.0.1:9400', user: u}"),
    change('http: "127.0.0.1:9400"', "http: {address: '127.0.0.1:9400', user: u, password: null}"),
    change('http: "127.0.0.1:9400"', "http: {address: '127.0.0.1:9400', password: p}"),
    change('http: "127.0.0.1:9400"', "http: {address: '127.0.0.1:9400', key: k.pem}"),
    change('http: "127.0.0.1:9400"', "http: {address: '127.0.0.1:9400', authorities: a.pem}"),
    change("http://127.0.0.1:8080", "http://u:p@h").replace('/v7"', '/v7", bearer: t'),  # the parts of a URL
    change('/ccompat/v7"', '/ccompat/v7", user: "u:v", password: p'),
    two_sources("{name: orders, type: dynamodb, table: lines}"),  # names of two entries are compared
    two_sources("{name: more, type: dynamodb, table: orders}"),  # and their tables
    change('{orders: ["order:{order_id}"]}', '{lines: ["order:{order_id}"]}'),  # and those of the cache
    change("region: us-east-1", "region: us-east-1")
    .replace("table: orders\n", f"stream_arn: {ARN}\n")
    .replace('        endpoint_url: "http://127.0.0.1:8000"\n', ""),  # the region in an ARN
    change("name: shop\n", f"name: {'n' * 250}\n"),  # the lengths of topics
    change('"{name}.{table}"', '"{name}.checkpoints"'),  # topics that collide
    change("start: trim_horizon", "start: {token: nowhere.json}"),  # another file
    vitess("start: {vgtid: [{shard: '-', gtid: MariaDB/0}]}"),  # the syntax of a GTID set
    mysql("tables: [a], key: {b: [c]}"),
]
"""What several places say together, what another program's settings cannot be, and what a schema has no words for."""


@pytest.mark.parametrize("text", WRONG)
def test_what_check_refuses_the_schema_refuses(
    text: str, schema: jsonschema.Draft202012Validator, tmp_path: Path
) -> None:
    path = tmp_path / "relay.yaml"
    path.write_text(dedent(text))
    result = relay("check", path, "--offline")
    assert result.exit_code == 2, result.output
    assert not schema.is_valid(data(text))


@pytest.mark.parametrize("text", BEYOND_THE_SCHEMA)
def test_what_only_check_knows_it_refuses(text: str, tmp_path: Path) -> None:
    path = tmp_path / "relay.yaml"
    path.write_text(dedent(text))
    with pytest.raises(ConfigError):
        load(path)


GOOD_ONES = [
    GOOD,
    change("127.0.0.1:9092", "b1:9092, [::1]:9092,ssl://b3,SASL_SSL://b4:9094"),
    change("redis://127.0.0.1:6379/0", "redis+sentinel://:p@a:1,b/service/0?sentinel_password=x"),
    change("redis://127.0.0.1:6379/0", "memcacheds://u:p@[::1]:11211,b"),
    change("redis://127.0.0.1:6379/0", "unix:///run/redis.sock"),
    change("redis://127.0.0.1:6379/0", "${CACHE:-redis://h}"),
    change("delta:///var/lib/relay/copy", "postgresql://u:p@a:5432,b/shop?sslmode=verify-full"),
    change("delta:///var/lib/relay/copy", "delta+s3a://bucket/copy"),
    change("9400", "0"),
    change("start: trim_horizon", "start: 2026-11-21 06:00:00"),
    change("start: trim_horizon", "start: 2026-11-21T06:00:00+02:00"),
    change("start: trim_horizon", "start: -1.5h"),
    change('/ccompat/v7"', '/ccompat/v7", user: u, password: "${P}"'),
    change('http://127.0.0.1:8080/apis/ccompat/v7"', 'https://h", bearer: t, tls: {ca: a, cert: b, key: c}'),
    change("key: hash", "tombstones: true\n        key: item"),
    change("key: hash", "columns: {a: {absent: 'decimal( 9, 2 )'}, b: timestamp, c: set}"),
    mysql("key: {t: [a]}, tls: {}, keyrange: '-80', start: {gtid: {'-80': 'MariaDB/0-1-5'}}"),
    mysql("tls: {ca: a, cert: b, key: c}, start: -30s"),
    change('http: "127.0.0.1:9400"', "http: {address: 'h:1', user: '${U:-u}', password: p, bearer: t}"),
    change('http: "127.0.0.1:9400"', "http: {address: 'h:1', user: null, password: null, certificate: c, key: k}"),
    mysql("iam: {region: eu-west-1, profile: shop}, user: u, tls: {ca: bundle.pem}"),
    change("region: us-east-1", "role_arn: 'arn:aws:iam::123456789012:role/a/relay'\n        external_id: shop"),
    change("producer: {}", "producer: {security.protocol: SASL_SSL, ssl.ca.location: a, linger.ms: 5}, iam: {}"),
    vitess("start: {vgtid: [{keyspace: k, shard: '-', gtid: MariaDB/0-1-5}]}, key: item, tombstones: true"),
    change(
        "sources:\n",
        "topic_settings: {orders: {partitions: '12', retention.ms: -1, preallocate: 'true', redpanda.a: 1, "
        "min.cleanable.dirty.ratio: 0.5, unclean.leader.election.enable: false}, 'a*': {partitions: '${P}'}}\n"
        "    sources:\n",
    ).replace("${P}", "${P:-3}"),
    *(path.read_text() for path in sorted((ROOT / "deploy" / "examples").glob("*.yaml"))),
]


@pytest.mark.parametrize("text", GOOD_ONES)
def test_what_check_takes_the_schema_takes(
    text: str, schema: jsonschema.Draft202012Validator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in re.findall(r"\$\{(\w+)\}", text):
        monkeypatch.setenv(name, "secret")
    path = tmp_path / "relay.yaml"
    path.write_text(dedent(text))
    load(path)
    schema.validate(data(text))
