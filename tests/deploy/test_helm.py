"""The chart, rendered by Helm for the values in its folder ``ci`` and checked against the schemas of Kubernetes."""

from __future__ import annotations

import copy
import re
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
import yaml

import relay
from relay.config import load
from relay.observe.observer import Observer
from relay.observe.server import answer
from relay.process import supervisor
from spark_consumers import runner, session
from tests.deploy import DEPLOY
from tests.deploy.tools import run, tool

CHART = DEPLOY / "helm" / "relay"
VALUES = [*sorted((CHART / "ci").glob("*.yaml")), DEPLOY / "README.md"]
"""The README has values as an example."""

OLDEST, NEWEST = "1.25", "1.37"
"""Of Kubernetes: what the chart says that it needs, and the newest of which there are schemas."""


def test_the_chart_has_the_version_of_the_relay() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == relay.__version__


@cache
def given(values: Path) -> dict[str, Any]:
    """Return the values in a file."""
    text = values.read_text()
    if values.suffix == ".md":
        (text,) = re.findall(r"^```yaml\n(# values.yaml\n.*?)^```", text, re.DOTALL | re.MULTILINE)
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def helm(command: str, values: Path, *arguments: str) -> str:
    """Run Helm on the chart with the values in a file, and return its output."""
    with NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(given(values), file)
        file.flush()
        return run(tool("helm"), *command.split(), CHART, "--values", file.name, "--kube-version", OLDEST, *arguments)


@cache
def rendered(values: Path) -> list[dict[str, Any]]:
    """Return the objects that Helm makes of the values in a file."""
    return [each for each in yaml.safe_load_all(helm("template shop", values)) if each]


def of_kind(values: Path, kind: str) -> list[dict[str, Any]]:
    return [each for each in rendered(values) if each["kind"] == kind]


def pods(values: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the name and the spec of the pods of each workload."""
    return [
        (each["metadata"]["name"], each["spec"]["template"]["spec"])
        for each in rendered(values)
        if each["kind"] in ("StatefulSet", "Deployment")
    ]


def problem(found: dict[str, Any], version: str) -> str | None:
    """Return what Kubernetes would refuse of an object, unknown fields among it; None if it accepts it."""
    import jsonschema
    import kubernetes_validate

    try:
        if found["kind"] == "ServiceMonitor":
            jsonschema.validate(found, strict(service_monitor_schema()))
        else:
            kubernetes_validate.validate(found, version, strict=True)
    except jsonschema.ValidationError as error:
        return str(error.message)
    return None


def service_monitor_schema() -> dict[str, Any]:
    (version,) = yaml.safe_load(tool("servicemonitor.yaml").read_text())["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def strict(schema: Any) -> Any:
    """Return a schema that refuses fields that it does not name."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    # The metadata is that of any object.
    if isinstance(found.get("properties"), dict) and found["properties"]:
        found.setdefault("additionalProperties", False)
    return found


@pytest.mark.deploy
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_kubernetes_accepts_what_the_chart_renders(values: Path) -> None:
    helm("lint --strict", values)
    for version in (OLDEST, NEWEST):
        assert {each["kind"]: problem(each, version) for each in rendered(values)} == {
            each["kind"]: None for each in rendered(values)
        }


@pytest.mark.deploy
def test_the_schemas_notice_a_wrong_field() -> None:
    everything = CHART / "ci" / "everything-values.yaml"
    for kind in {each["kind"] for each in rendered(everything)}:
        wrong = copy.deepcopy(of_kind(everything, kind)[0])
        if kind in ("ConfigMap", "ServiceAccount"):
            wrong["sepc"] = {}
        else:
            wrong["spec"]["selectr"] = {}
        assert problem(wrong, NEWEST), kind


@pytest.mark.deploy
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_relay_loads_the_config_of_the_chart(values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _, pod in pods(values):
        for each in pod["containers"][0].get("env", []):
            monkeypatch.setenv(each["name"], "secret")
    (config,) = of_kind(values, "ConfigMap")
    (tmp_path / "relay.yaml").write_text(config["data"]["relay.yaml"])
    loaded = load(tmp_path / "relay.yaml").http
    assert loaded is not None
    assert loaded.address == "0.0.0.0:9400"
    written = yaml.safe_load(config["data"]["relay.yaml"])
    assert {key: value for key, value in written.items() if key != "http"} == given(values)["config"]


@pytest.mark.deploy
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_pods_are_restricted_and_are_asked_what_they_answer(values: Path) -> None:
    for name, pod in pods(values):
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"], name
        security = container["securityContext"]
        assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
        assert security["capabilities"] == {"drop": ["ALL"]}
        # Wherever the process writes there is a volume.
        assert {"/tmp", "/var/lib/relay"} <= {each["mountPath"] for each in container["volumeMounts"]}
        assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            assert answer(Observer("shop"), container[probe]["httpGet"]["path"])[0] != 404
            assert container[probe]["httpGet"]["port"] == container["ports"][0]["name"]
        # One that is red while a database is down would stop what is read of others.
        assert container["livenessProbe"]["httpGet"]["path"] == "/livez"


@pytest.mark.deploy
@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_a_pod_has_longer_to_stop_than_its_process_takes(values: Path) -> None:
    for name, pod in pods(values):
        slowest = supervisor._DRAIN_TIMEOUT if name == "shop-relay" else runner._DRAIN_TIMEOUT + session._EXIT_TIMEOUT
        assert pod["terminationGracePeriodSeconds"] > slowest, name


@pytest.mark.deploy
def test_a_consumer_is_replaced_before_the_next_begins_and_keeps_its_checkpoint() -> None:
    everything = CHART / "ci" / "everything-values.yaml"
    claims = {each["metadata"]["name"] for each in of_kind(everything, "PersistentVolumeClaim")}
    deployments = of_kind(everything, "Deployment")
    assert {each["metadata"]["name"] for each in deployments} == claims == {
        f"shop-relay-{kind}" for kind in ("cache", "log", "copy")
    }  # fmt: skip
    for each in deployments:
        assert (each["spec"]["strategy"], each["spec"]["replicas"]) == ({"type": "Recreate"}, 1)
        (state,) = (volume for volume in each["spec"]["template"]["spec"]["volumes"] if volume["name"] == "state")
        assert state["persistentVolumeClaim"]["claimName"] == each["metadata"]["name"]
    # Without Spark the progress is in Kafka.
    assert of_kind(CHART / "ci" / "python-cache-values.yaml", "PersistentVolumeClaim") == []


@pytest.mark.deploy
def test_the_executors_of_a_cluster_reach_the_driver_in_its_pod() -> None:
    """No DNS has the name of a pod, and a NetworkPolicy lets nobody in but at the ports that it names."""
    everything = CHART / "ci" / "everything-values.yaml"
    asked = {name: pod["containers"][0] for name, pod in pods(everything)}
    assert "--conf=spark.driver.host=$(POD_IP)" in asked["shop-relay-log"]["args"]
    assert not [arg for arg in asked["shop-relay-cache"]["args"] if "driver.host" in arg]  # its executors are its own
    assert asked["shop-relay-log"]["env"][0] == {
        "name": "POD_IP",
        "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
    }
    (lets_in,) = [
        each["spec"] for each in of_kind(everything, "NetworkPolicy") if each["spec"]["policyTypes"] == ["Ingress"]
    ]
    assert lets_in["ingress"] == [{"from": [{"podSelector": {"matchLabels": {"spark-role": "worker"}}}]}]
    assert lets_in["podSelector"]["matchExpressions"][0]["values"] == ["worker"]
    # Without Spark, `relay consume` takes no settings of it.
    python = CHART / "ci" / "python-cache-values.yaml"
    assert "driver.host" not in helm("template shop", python, "--set", "config.spark.master=spark://spark:7077")


@pytest.mark.deploy
def test_no_secret_is_in_what_the_chart_renders() -> None:
    everything = CHART / "ci" / "everything-values.yaml"
    assert of_kind(everything, "Secret") == []
    for _, pod in pods(everything):
        (container,) = pod["containers"]
        hidden = {each["name"] for each in container["env"] if "secretKeyRef" in each.get("valueFrom", ())}
        assert hidden == {
            "KAFKA_PASSWORD", "LEGACY_PASSWORD", "POSTGRES_PASSWORD",
            "RELAY_HTTP_USER", "RELAY_HTTP_PASSWORD", "RELAY_HTTP_BEARER",
        }  # fmt: skip


@pytest.mark.deploy
def test_a_variable_and_a_secret_may_look_like_something_else() -> None:
    for _, pod in pods(CHART / "ci" / "everything-values.yaml"):
        found = {each["name"]: each for each in pod["containers"][0]["env"]}
        assert [found[name]["value"] for name in ("RELAY_STALLED_AFTER", "NO", "TRACED")] == ["120", "on", "true"]
        assert found["POSTGRES_PASSWORD"]["valueFrom"] == {"secretKeyRef": {"name": "2024", "key": "on"}}


def page_of(values: Path) -> dict[str, Any]:
    """Return `http` of the config that the chart makes."""
    (config,) = of_kind(values, "ConfigMap")
    found: dict[str, Any] = yaml.safe_load(config["data"]["relay.yaml"])["http"]
    return found


@pytest.mark.deploy
def test_the_page_of_each_worker_shows_all_workers_and_consumers() -> None:
    values = CHART / "ci" / "everything-values.yaml"
    (workers,) = of_kind(values, "StatefulSet")
    name = workers["spec"]["serviceName"]
    services = {each["metadata"]["name"]: each["spec"]["ports"][0]["port"] for each in of_kind(values, "Service")}
    expected = [f"{name}-{n}.{name}.default.svc:{services[name]}" for n in range(workers["spec"]["replicas"])]
    expected += [f"{each}:{port}" for each, port in services.items() if each != name]
    assert page_of(values)["peers"] == expected
    # They may reach each other.
    policy, *_ = of_kind(values, "NetworkPolicy")
    allowed = [each for rule in policy["spec"]["ingress"] for each in rule["from"]]
    assert {"podSelector": policy["spec"]["podSelector"]} in allowed


@pytest.mark.deploy
def test_with_a_certificate_whoever_asks_asks_by_https() -> None:
    for values in (CHART / "ci" / "everything-values.yaml", CHART / "ci" / "python-cache-values.yaml"):
        page = page_of(values)
        for name, pod in pods(values):
            (container,) = pod["containers"]
            for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
                assert container[probe]["httpGet"]["scheme"] == "HTTPS", name
            (mounted,) = (each for each in container["volumeMounts"] if each["name"] == "tls")
            for key in {"certificate", "key", "authorities"} & page.keys():
                assert page[key].startswith(f"{mounted['mountPath']}/")
        (monitor,) = of_kind(values, "ServiceMonitor")
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["scheme"] == "https"
        assert ("ca" in endpoint["tlsConfig"]) == ("authorities" in page)
        # OpenSSL takes no certificate for *.shop-relay.
        rest = endpoint["tlsConfig"]["serverName"].partition(".")[2]
        assert rest == "shop-relay.default.svc"
        assert f"*.{rest.replace('default', 'prod')}," in (CHART / "values.yaml").read_text()
        assert f"shop-relay-0.{rest}:9400" in page["peers"]
        # Prometheus sends what the config wants.
        assert ("basicAuth" in endpoint) == ("user" in page)
        assert "basicAuth" in endpoint or "authorization" in endpoint


@pytest.mark.deploy
def test_another_number_of_workers_does_not_replace_those_that_run() -> None:
    def checksums(*arguments: str) -> set[str]:
        found = yaml.safe_load_all(helm("template shop", CHART / "ci" / "everything-values.yaml", *arguments))
        workloads = [each for each in found if each["kind"] in ("StatefulSet", "Deployment")]
        return {each["spec"]["template"]["metadata"]["annotations"]["checksum/config"] for each in workloads}

    before = checksums()
    assert len(before) == 1
    assert checksums("--set", "workers.replicas=7") == before
    assert checksums("--set", "config.kafka.partitions=7") != before
    assert checksums("--set", "http.passwordSecret=other") == before
    assert checksums("--set", "http.bearerSecret=") != before


WRONG = {
    "workers.replicas=0": "minimum",
    "workers.replica=2": "replica",
    "workers.terminationGracePeriodSeconds=5": "minimum",
    "consumers.log.enabled=true": "config has no `log:` section",
    "config.http=127.0.0.1:9400": "the chart sets it",
    "secrets.KAFKA_PASSWORD=secret": "object",
    "config.sources=null": "sources",
    "http.tls=relay-tls": "object",
    "http.password=secret": "password",
    "env.ACCOUNT=123456789012": "string",
}


@pytest.mark.deploy
@pytest.mark.parametrize("setting", WRONG)
def test_a_wrong_value_is_refused_and_named(setting: str) -> None:
    minimal = CHART / "ci" / "minimal-values.yaml"
    arguments = ("--values", minimal, "--kube-version", OLDEST, "--set", setting)
    said = run(tool("helm"), "template", "shop", CHART, *arguments, code=1)
    assert WRONG[setting] in said
