"""The schemas of a registry that a consumer keeps."""

from __future__ import annotations

from pathlib import Path

from relay.config import Config
from spark_consumers.kept_schemas import KeptSchemas
from spark_consumers.locations import LocalFolder


def kept(folder: Path, registry: str | None) -> KeptSchemas:
    source = {"name": "s", "type": "dynamodb", "table": "orders", "region": "us-east-1"}
    config = {"name": "n", "kafka": {"bootstrap_servers": "k:9092"}, "sources": [source]}
    return KeptSchemas(
        LocalFolder(folder), Config.model_validate(config | {"schema_registry": registry and {"url": registry}})
    )


def test_the_schemas_of_a_registry_are_kept_and_not_those_of_another_one(tmp_path: Path) -> None:
    """I1, I8: its ids are those of other schemas."""
    one, two = (kept(tmp_path, f"http://{name}") for name in ("one", "two"))
    assert one.read() == {}
    one.note({b"\0\0\0\0\1": {"name": "a"}})
    one.note({b"\0\0\0\0\2": {"name": "b"}})
    assert one.read() == {b"\0\0\0\0\1": {"name": "a"}, b"\0\0\0\0\2": {"name": "b"}}
    assert two.read() == {}
    two.note({b"\0\0\0\0\1": {"name": "c"}})
    assert two.read() == {b"\0\0\0\0\1": {"name": "c"}}
    assert one.read() == {}


def test_a_batch_without_new_schemas_does_not_read_the_file(tmp_path: Path) -> None:
    schemas = kept(tmp_path, "http://one")
    schemas.note({b"\0\0\0\0\1": {"name": "a"}})
    (file,) = tmp_path.iterdir()
    text = file.read_text()
    file.write_text("not JSON")
    schemas.note({b"\0\0\0\0\1": {"name": "a"}})
    file.write_text(text)
    schemas.note({b"\0\0\0\0\1": {"name": "a"}, b"\0\0\0\0\2": {"name": "b"}})
    assert schemas.read() == {b"\0\0\0\0\1": {"name": "a"}, b"\0\0\0\0\2": {"name": "b"}}


def test_without_a_registry_nothing_is_kept(tmp_path: Path) -> None:
    kept(tmp_path, None).note({b"\xc3\x01": {"name": "a"}})
    assert list(tmp_path.iterdir()) == []


def test_without_a_home_folder_nothing_is_known(tmp_path: Path) -> None:
    """A file, such as /dev/null, stands where the folder would be."""
    (tmp_path / "file").touch()
    assert kept(tmp_path / "file", "http://one").read() == {}
