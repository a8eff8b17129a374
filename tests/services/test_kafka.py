"""How the embedded broker is set up."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.errors import Unavailable
from relay.jvm.jars import SETS, cache_folder, jars
from relay.services.kafka import KafkaBroker, coordinates, random_id
from tests.services.kafka_classes import archive_classes, use

TEMPLATE = f"kafka-data-{SETS['kafka'].version}"


def test_random_ids_are_16_bytes_and_never_look_like_an_option() -> None:
    ids = {random_id() for _ in range(500)}
    assert len(ids) == 500
    assert {len(base64.urlsafe_b64decode(each + "==")) for each in ids} == {16}
    assert not any(each.startswith("-") for each in ids)


def test_a_data_folder_that_was_not_copied_completely_does_not_seem_to_be_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers would share the ids of the template."""
    monkeypatch.setenv("RELAY_CACHE", str(tmp_path))
    template = tmp_path / TEMPLATE
    template.mkdir()
    (template / "meta.properties").write_text("cluster.id=shared\n")
    (template / "cannot-be-copied").symlink_to(tmp_path / "missing")
    with pytest.raises(shutil.Error, match="cannot-be-copied"):
        KafkaBroker(tmp_path / "broker").start()
    assert not (tmp_path / "broker/data/meta.properties").exists()


def test_no_archive_in_a_cache_that_cannot_be_written_to_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cache_with_jars(tmp_path, monkeypatch)
    (tmp_path / "classes").write_text("not a folder")
    with pytest.raises(Unavailable, match=r"cannot make an archive of Kafka's classes: .*File exists"):
        archive_classes()


@pytest.fixture(scope="module")
def uncached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker on a cache that cannot be written to."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        _cache_with_jars(cache, patch)
        (cache / f"{TEMPLATE}.lock").mkdir()  # even root cannot open it
        with KafkaBroker() as broker:
            yield broker


@pytest.mark.services
def test_a_broker_starts_although_the_cache_cannot_be_written_to(uncached: KafkaBroker) -> None:
    assert coordinates(uncached.bootstrap_servers)


@pytest.mark.services
def test_a_broker_that_cannot_be_used_for_an_archive_is_an_error_that_says_so(uncached: KafkaBroker) -> None:
    use(uncached.bootstrap_servers)
    with pytest.raises(Unavailable, match="Topic 'training' already exists"):
        use(uncached.bootstrap_servers)


def _cache_with_jars(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars("kafka")
    (cache / "jars").symlink_to(cache_folder() / "jars")
    monkeypatch.setenv("RELAY_CACHE", str(cache))
