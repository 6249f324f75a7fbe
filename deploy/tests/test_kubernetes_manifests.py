"""Kubernetes: the manifests are what the API takes, every container is hardened, and what they configure is understood
by the programs that read it."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import orders.config
import payments.config
import sandbox_gateway.config
from hourglass.mq.v1 import name_service_pb2
from mq_broker.app import HA_STOP_GRACE_S, STOP_GRACE_S
from mq_broker.config import FORMAT as BROKER_FORMAT
from mq_broker.config import BrokerConfig
from mq_broker.core.delays import DelayLevels
from mq_broker.core.replica_state import BrokerRole
from mq_broker.rpc.health import SERVICE_NAME, STORE_SERVICE, WRITES_SERVICE
from mq_namesrv.config import FORMAT as NAMESRV_FORMAT
from mqproto.config_source import ConfigSource
from servicekit.config import ConfigError
from servicekit.process.runner import BACKGROUND_STOP_MAX_S, CONSUMERS_STOP_MAX_S, PRODUCERS_STOP_MAX_S

ROOT = Path(__file__).parents[2]
BASE = ROOT / "deploy/kubernetes/base"
KUBERNETES_OLDEST = "1.30"  # gRPC probes, preStop sleep, unhealthyPodEvictionPolicy
KUBERNETES_NEWEST = "1.37"
UID_MIN = 10_000
HTTP_STOP_MAX_S = 10  # servicekit.process.runner: all steps together

Document = dict[str, Any]


def documents() -> list[Document]:
    names = yaml.safe_load((BASE / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    return [one for name in names for one in yaml.safe_load_all((BASE / name).read_text(encoding="utf-8"))]


DOCUMENTS = documents()
WORKLOADS = [one for one in DOCUMENTS if one["kind"] in ("StatefulSet", "Deployment")]


def name_of(document: Document) -> str:
    return f"{document['kind']} {document['metadata']['name']}"


def pod_of(workload: Document) -> Document:
    spec: Document = workload["spec"]["template"]["spec"]
    return spec


def labels_of(workload: Document) -> dict[str, str]:
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def containers_of(workload: Document) -> list[Document]:
    pod = pod_of(workload)
    return [*pod.get("initContainers", []), *pod["containers"]]


def workload(name: str) -> Document:
    return next(one for one in WORKLOADS if one["metadata"]["name"] == name)


def selects(selector: Document, labels: dict[str, str]) -> bool:
    """Whether a label selector, as policies and budgets have them, chooses a pod with these labels."""
    for rule in selector.get("matchExpressions", []):
        assert rule["operator"] == "In", "this test knows no other operator"
        if labels.get(rule["key"]) not in rule["values"]:
            return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


# ------------------------------------------------------------------------------------------------------ what they are


@pytest.fixture(scope="module")
def kubernetes_validate() -> Iterator[Any]:
    """The module; it reads its schemas once. Its import takes seconds, and every worker of a run collects this file."""
    module = importlib.import_module("kubernetes_validate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.utils, "schema_contents", functools.cache(module.utils.schema_contents))
        yield module


@pytest.mark.parametrize("version", [KUBERNETES_OLDEST, KUBERNETES_NEWEST])
def test_every_manifest_has_the_fields_that_its_kind_has(kubernetes_validate: Any, version: str) -> None:
    for document in DOCUMENTS:
        assert kubernetes_validate.validate(document, version, strict=True) == version, name_of(document)


def test_a_field_that_there_is_not_is_found(kubernetes_validate: Any) -> None:
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": {"replica": 2}},
            KUBERNETES_OLDEST,
            strict=True,
        )


def test_kustomize_finds_what_it_is_told_of_and_leaves_no_manifest_out() -> None:
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text(encoding="utf-8"))
    assert {*kustomization["resources"], "kustomization.yaml"} == {path.name for path in BASE.glob("*.yaml")}
    files = [one.partition("=")[2] for config in kustomization["configMapGenerator"] for one in config["files"]]
    assert set(files) == {f"conf/{path.name}" for path in (BASE / "conf").iterdir()}
    mounted = {
        volume["configMap"]["name"] for one in WORKLOADS for volume in pod_of(one)["volumes"] if "configMap" in volume
    }
    assert mounted == {config["name"] for config in kustomization["configMapGenerator"]}


def test_secrets_are_referred_to_and_never_contained() -> None:
    assert [name_of(one) for one in DOCUMENTS if one["kind"] == "Secret"] == []
    for one in WORKLOADS:
        for container in containers_of(one):
            for variable in container["env"]:
                is_secret = re.search("KEY|SECRET|DATABASE_URL|PASSWORD", variable["name"])
                assert not is_secret or variable["name"].endswith("_FILE"), variable["name"]


# ---------------------------------------------------------------------------------------------------- how they are run


@pytest.mark.parametrize("one", WORKLOADS, ids=name_of)
def test_every_container_is_hardened_and_has_its_limits(one: Document) -> None:
    pod = pod_of(one)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] >= UID_MIN
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    for container in containers_of(one):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
        assert set(container["resources"]["limits"]) == {"cpu", "memory"}
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted <= {volume["name"] for volume in pod["volumes"]} | {"store"}
        assert "sizeLimit" in next(volume for volume in pod["volumes"] if volume["name"] == "tmp")["emptyDir"]


@pytest.mark.parametrize("one", WORKLOADS, ids=name_of)
def test_every_process_has_a_budget_a_service_and_probes_of_its_own_ports(one: Document) -> None:
    labels, (container,) = labels_of(one), pod_of(one)["containers"]
    budgets = [doc for doc in DOCUMENTS if doc["kind"] == "PodDisruptionBudget"]
    assert len([doc for doc in budgets if selects(doc["spec"]["selector"], labels)]) == 1
    assert selects(one["spec"]["selector"], labels)
    services = [doc for doc in DOCUMENTS if doc["kind"] == "Service"]
    (service,) = [doc for doc in services if selects({"matchLabels": doc["spec"]["selector"]}, labels)]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports
    if one["kind"] == "StatefulSet":
        assert one["spec"]["serviceName"] == service["metadata"]["name"]
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True  # the first member to start has to be found
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if "grpc" in container[probe]:
            assert container[probe]["grpc"]["port"] == ports["grpc"]
        else:
            assert container[probe]["httpGet"]["port"] == "http"


def test_a_pair_never_shares_a_node_and_is_never_restarted_at_once() -> None:
    pair = [workload("broker-a"), workload("broker-a-s")]
    for one in pair:
        (rule,) = pod_of(one)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert rule["topologyKey"] == "kubernetes.io/hostname"
        assert all(selects(rule["labelSelector"], labels_of(other)) for other in pair)
        assert one["spec"]["updateStrategy"] == {"type": "OnDelete"}
        assert one["spec"]["replicas"] == 1
        assert one["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] == "store"


def test_probes_ask_for_what_the_servers_answer() -> None:
    for name in ("broker-a", "broker-a-s"):
        (broker,) = containers_of(workload(name))
        assert broker["livenessProbe"]["grpc"].get("service", "") in ("", SERVICE_NAME)
        assert broker["readinessProbe"]["grpc"]["service"] == STORE_SERVICE != WRITES_SERVICE
    (namesrv,) = containers_of(workload("namesrv"))
    service = name_service_pb2.DESCRIPTOR.services_by_name["NameService"].full_name
    assert namesrv["readinessProbe"]["grpc"]["service"] == service
    for name in ("orders", "payments", "gateway"):
        container = pod_of(workload(name))["containers"][0]
        assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"
        assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"


def test_every_process_has_the_time_that_it_needs_to_stop() -> None:
    for one in WORKLOADS:
        grace_s = pod_of(one)["terminationGracePeriodSeconds"]
        if one["kind"] == "StatefulSet":
            assert grace_s >= 2 * (STOP_GRACE_S + HA_STOP_GRACE_S), name_of(one)
            continue
        (container,) = pod_of(one)["containers"]
        before_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert HTTP_STOP_MAX_S >= CONSUMERS_STOP_MAX_S + BACKGROUND_STOP_MAX_S + PRODUCERS_STOP_MAX_S
        assert grace_s > before_s + HTTP_STOP_MAX_S, name_of(one)


def test_images_and_programs_are_those_that_compose_runs() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"].values()
    images = {one.get("image") for one in services}
    programs = {(one["image"], one["command"][0]) for one in services if str(one.get("image")).startswith("hourglass-")}
    for one in WORKLOADS:
        for container in containers_of(one):
            assert container["image"] in images
            assert (container["image"], container["args"][0]) in programs


# --------------------------------------------------------------------------------------------------- what they are told


def broker_config(name: str) -> BrokerConfig:
    (container,) = containers_of(workload(name))
    variables = {one["name"]: one.get("value", "") for one in container["env"]}
    assert container["args"][1:3] == ["-c", "/etc/hourglass/broker.conf"]
    options = dict(one.split("=", 1) for one in container["args"][3:])
    assert options == {"brokerIP1": "$(POD_IP)"}
    source = ConfigSource(
        BROKER_FORMAT,
        environment={"namesrvAddr": variables["NAMESRV_ADDR"]},
        file=BASE / f"conf/{name}.conf",
        options={"brokerIP1": "10.1.2.3"},
    )
    config, warning = source.read()
    assert warning == ""
    return config


def test_brokers_understand_their_files_and_make_a_pair() -> None:
    master, replica = broker_config("broker-a"), broker_config("broker-a-s")
    assert (master.broker_id, master.broker_role) == (0, BrokerRole.SYNC_MASTER)
    assert (replica.broker_id, replica.broker_role) == (1, BrokerRole.SLAVE)
    for config, name in ((master, "broker-a"), (replica, "broker-a-s")):
        assert config.broker_name == labels_of(workload(name))["hourglass/broker-name"]
        assert [str(one) for one in config.name_servers] == ["namesrv-0.namesrv:9876", "namesrv-1.namesrv:9876"]
        (container,) = containers_of(workload(name))
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert Path(config.store_path_root_dir).is_relative_to(mounts["store"])
        assert {port["containerPort"] for port in container["ports"]} == {config.listen_port, config.ha_listen_port}
    master_pairs, replica_pairs = (
        set((BASE / f"conf/{name}.conf").read_text(encoding="utf-8").splitlines())
        for name in ("broker-a", "broker-a-s")
    )
    differing = {line.split(" ")[0] for line in master_pairs ^ replica_pairs if not line.startswith("#")}
    assert differing == {"brokerId", "brokerRole"}  # the master may change


def test_name_servers_understand_their_file_and_are_as_many_as_the_others_are_told() -> None:
    config, warning = ConfigSource(NAMESRV_FORMAT, file=BASE / "conf/namesrv.conf").read()
    assert (config.listen_port, config.bind_address, warning) == (9876, "0.0.0.0", "")
    assert workload("namesrv")["spec"]["replicas"] == len(broker_config("broker-a").name_servers)


SECRETS = {
    "database-url": "postgresql+asyncpg://shop:word@db/shop",
    "auth-keys": "k1:" + 64 * "a",
    "gateway-api-key": 64 * "b",
    "webhook-secret": 64 * "c",
}
READERS: dict[str, Any] = {
    "orders": orders.config.from_environment,
    "payments": payments.config.from_environment,
    "gateway": sandbox_gateway.config.from_environment,
}


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    for name, text in SECRETS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def environment_of(container: Document, secrets: Path) -> dict[str, str]:
    pairs = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    return {name: value.replace("/run/hourglass", str(secrets)) for name, value in pairs.items()}


@pytest.mark.parametrize("name", READERS)
def test_services_understand_their_variables(name: str, secrets: Path) -> None:
    pod = pod_of(workload(name))
    for container in (*pod["initContainers"], *pod["containers"]):
        config = READERS[name](environment_of(container, secrets))
        assert (config.listen_host, config.listen_port) == (
            "0.0.0.0",
            pod["containers"][0]["ports"][0]["containerPort"],
        )
        assert config.database_url == SECRETS["database-url"]
    assert pod["initContainers"][0]["args"][1:] == ["migrate"]
    secret = next(volume["secret"] for volume in pod["volumes"] if volume["name"] == "secrets")
    assert secret["secretName"] == name


@pytest.mark.parametrize("name", READERS)
def test_variables_of_kubernetes_for_services_are_switched_off_because_ours_would_be_rejected(
    name: str, secrets: Path
) -> None:
    pod = pod_of(workload(name))
    assert pod["enableServiceLinks"] is False
    links = {f"{name.upper()}_SERVICE_HOST": "10.0.0.1"}
    with pytest.raises(ConfigError, match="_SERVICE_HOST"):
        READERS[name](environment_of(pod["containers"][0], secrets) | links)


def test_orders_and_brokers_know_the_same_delay_levels(secrets: Path) -> None:
    config = READERS["orders"](environment_of(pod_of(workload("orders"))["containers"][0], secrets))
    levels = DelayLevels.parse(broker_config("broker-a").message_delay_level)
    assert levels.delay_ms(16) == config.payment_window_ms


def test_addresses_that_services_are_told_are_services_of_the_namespace(secrets: Path) -> None:
    ports = {one["metadata"]["name"]: one["spec"]["ports"] for one in DOCUMENTS if one["kind"] == "Service"}
    found = 0
    for name in READERS:
        for value in environment_of(pod_of(workload(name))["containers"][0], secrets).values():
            for host, port in re.findall(r"(?:\w+://|;)([\w.-]+):(\d+)", value):
                if host.endswith(".observability") or host.startswith("0.0.0.0"):
                    continue
                service = host.rpartition(".")[2]
                assert int(port) in [one["port"] for one in ports[service]], value
                found += 1
    assert found >= 7


# -------------------------------------------------------------------------------------------------- network policies

POLICIES = [one["spec"] for one in DOCUMENTS if one["kind"] == "NetworkPolicy"]
PODS = {one["metadata"]["name"]: labels_of(one) for one in WORKLOADS}


def may(direction: str, who: dict[str, str], other: dict[str, str] | None, port: int) -> bool:
    """Whether the policies let `who` have this traffic with `other`; None is a peer outside of the namespace."""
    side = {"Ingress": ("ingress", "from"), "Egress": ("egress", "to")}[direction]
    applying = [one for one in POLICIES if direction in one["policyTypes"] and selects(one["podSelector"], who)]
    assert applying, "no policy applies"
    return any(_lets_through(rule, side[1], other, port) for policy in applying for rule in policy.get(side[0], []))


def _lets_through(rule: Document, key: str, other: dict[str, str] | None, port: int) -> bool:
    if port not in [one["port"] for one in rule["ports"]]:
        return False
    peers = rule.get(key)
    if peers is None:
        return True
    return other is not None and any(
        "namespaceSelector" not in peer and selects(peer["podSelector"], other) for peer in peers
    )


FLOWS = {
    *((client, "namesrv", 9876) for client in ("broker-a", "broker-a-s", "orders", "payments")),
    *((client, broker, 10911) for client in ("orders", "payments") for broker in ("broker-a", "broker-a-s")),
    *(
        (one, other, port)
        for one, other in (("broker-a", "broker-a-s"), ("broker-a-s", "broker-a"))
        for port in (10911, 10912)
    ),
    ("orders", "payments", 8002),
    ("payments", "orders", 8001),  # holds (ADR 122)
    ("payments", "gateway", 8003),
    ("gateway", "payments", 8002),
}


def test_policies_let_through_what_is_needed_and_nothing_else() -> None:
    ports = {port for _, _, port in FLOWS} | {8001, 5432}
    open_to_all = {("orders", 8001), ("payments", 8002)}
    for source, source_labels in PODS.items():
        for target, target_labels in PODS.items():
            if source == target:
                continue
            for port in ports:
                leaves = may("Egress", source_labels, target_labels, port)
                arrives = may("Ingress", target_labels, source_labels, port)
                assert (leaves and arrives) == ((source, target, port) in FLOWS), (source, target, port)
    for name, labels in PODS.items():
        for port in ports:
            assert may("Ingress", labels, None, port) == ((name, port) in open_to_all), (name, port)
            assert may("Egress", labels, None, port) == (port == 5432 and name in READERS), (name, port)
