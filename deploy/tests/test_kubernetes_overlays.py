"""Kubernetes, as kustomize renders it: pods find nodes, versions are told, and what overlays add fits the base."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from kustomize import Document, load, rendered

from servicekit.config import COMMON_PARSERS, read_environment

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
COMPONENTS = tuple(sorted(path.parent for path in KUBERNETES.glob("components/*/kustomization.yaml")))
BASE, SINGLE_NODE = rendered(KUBERNETES / "base"), rendered(KUBERNETES / "single-node")
EVERYTHING = rendered(KUBERNETES / "base", COMPONENTS)
VERSION, HOSTNAME = "app.kubernetes.io/version", "kubernetes.io/hostname"
VERSIONS_OF_KUBERNETES = ("1.30", "1.37")  # test_kubernetes_manifests.py says why
PROMETHEUS = ROOT / "deploy/prometheus"


def named(documents: list[Document], kind: str, name: str) -> Document:
    (found,) = [one for one in documents if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def pods(documents: list[Document]) -> list[tuple[str, Document]]:
    """(name, template) of each pod, one for each replica."""
    workloads = [one for one in documents if one["kind"] in ("StatefulSet", "Deployment")]
    return [
        (f"{one['metadata']['name']}-{number}", one["spec"]["template"])
        for one in workloads
        for number in range(one["spec"].get("replicas", 1))
    ]


# ------------------------------------------------------------------------------------------------------------- places


def pending(documents: list[Document], nodes: int, millicores: int = 2_000) -> list[str]:
    """The pods that find no node: by what they request, and by the rules of theirs that are not only wishes."""
    placed: list[list[Document]] = [[] for _ in range(nodes)]
    left = []
    for name, pod in pods(documents):
        fitting = [node for node in placed if _has_room(node, pod, millicores) and not _is_kept_away(node, placed, pod)]
        if fitting:
            min(fitting, key=len).append(pod)
        else:
            left.append(name)
    return left


def _has_room(node: list[Document], pod: Document, millicores: int) -> bool:
    return sum(map(_millicores, [*node, pod])) <= millicores


def _millicores(pod: Document) -> int:
    """Init containers run before the others, and one at a time."""
    requested = {
        kind: [one["resources"]["requests"]["cpu"] for one in pod["spec"].get(kind, ())]
        for kind in ("containers", "initContainers")
    }
    numbers = {kind: [int(text.removesuffix("m")) for text in texts] for kind, texts in requested.items()}
    return max(sum(numbers["containers"]), *numbers["initContainers"], 0)


def _is_kept_away(node: list[Document], nodes: list[list[Document]], pod: Document) -> bool:
    spec = pod["spec"]
    affinity = spec.get("affinity", {}).get("podAntiAffinity", {})
    for rule in affinity.get("requiredDuringSchedulingIgnoredDuringExecution", ()):
        assert rule["topologyKey"] == HOSTNAME, "this test knows no other place than a node"
        if _count(node, rule["labelSelector"]):
            return True
    return any(
        _count(node, rule["labelSelector"]) + 1 - min(_count(one, rule["labelSelector"]) for one in nodes)
        > rule["maxSkew"]
        for rule in spec.get("topologySpreadConstraints", ())
        if (rule["whenUnsatisfiable"], rule["topologyKey"]) == ("DoNotSchedule", HOSTNAME)
    )


def _count(node: list[Document], selector: Document) -> int:
    assert set(selector) == {"matchLabels"}, "this test knows no other selector"
    return sum(selector["matchLabels"].items() <= pod["metadata"]["labels"].items() for pod in node)


def test_on_two_nodes_everything_runs_and_a_pair_never_shares_one() -> None:
    assert pending(BASE, nodes=2) == []
    assert pending(BASE, nodes=1, millicores=64_000) == ["broker-a-s-0"]


def test_on_one_node_of_two_processors_everything_runs() -> None:
    assert pending(SINGLE_NODE, nodes=1) == []


@pytest.mark.parametrize("nodes", [2, 3])
def test_the_loss_of_a_node_leaves_a_name_server_and_one_of_the_pair(nodes: int) -> None:
    for pair in (("namesrv-0", "namesrv-1"), ("broker-a-0", "broker-a-s-0")):
        both = [pod for name, pod in pods(BASE) if name in pair]
        placed: list[list[Document]] = [[] for _ in range(nodes)]
        placed[0].append(both[0])
        assert _is_kept_away(placed[0], placed, both[1])


# ----------------------------------------------------------------------------------------------------------- versions


def test_every_object_and_pod_tells_its_version_and_no_update_is_rejected_for_it() -> None:
    (tag,) = {one["newTag"] for one in load(KUBERNETES / "base/kustomization.yaml")[0]["images"]}
    assert tag == version("hourglass-orders")
    assert {one["metadata"]["labels"][VERSION] for one in BASE} == {tag}
    assert {pod["metadata"]["labels"][VERSION] for _, pod in pods(BASE)} == {tag}
    # What the API never lets change: selectors, and the templates of volumes.
    fixed = [one["spec"].get(name) for one in BASE if "spec" in one for name in ("selector", "volumeClaimTemplates")]
    assert VERSION not in str(fixed)


# ------------------------------------------------------------------------------------------------- what overlays add


def test_what_overlays_add_are_fields_of_their_kinds() -> None:
    validate = importlib.import_module("kubernetes_validate").validate
    added = [one for one in EVERYTHING if one["kind"] in ("Ingress", "HorizontalPodAutoscaler")]
    assert len(added) == 3
    changed = [named(SINGLE_NODE, "StatefulSet", "broker-a"), named(EVERYTHING, "Deployment", "orders")]
    for one in (*added, *changed):
        for wanted in VERSIONS_OF_KUBERNETES:
            assert validate(one, wanted, strict=True) == wanted


def test_requests_from_outside_go_to_ports_that_policies_open() -> None:
    policies = {one["metadata"]["name"]: one["spec"] for one in BASE if one["kind"] == "NetworkPolicy"}
    found = 0
    for rule in named(EVERYTHING, "Ingress", "shop")["spec"]["rules"]:
        for path in rule["http"]["paths"]:
            backend = path["backend"]["service"]
            service = named(BASE, "Service", backend["name"])
            (port,) = [one["port"] for one in service["spec"]["ports"] if one["name"] == backend["port"]["name"]]
            assert {"ports": [{"protocol": "TCP", "port": port}]} in policies[backend["name"]]["ingress"]
            found += 1
    assert found == 2


@pytest.mark.parametrize("name", ["orders", "payments"])
def test_with_an_ingress_the_pods_believe_its_network_and_without_one_no_other(name: str) -> None:
    def trusted(documents: list[Document]) -> dict[str, str]:
        (container,) = named(documents, "Deployment", name)["spec"]["template"]["spec"]["containers"]
        return {one["name"]: one["value"] for one in container["env"] if "TRUSTED" in one["name"]}

    assert trusted(BASE) == {}
    variables = trusted(EVERYTHING)
    read = read_environment(variables, f"{name.upper()}_", COMMON_PARSERS)
    assert read == {"trusted_proxies": ("10.244.0.0/16",)}


@pytest.mark.parametrize("name", ["orders", "payments"])
def test_an_autoscaler_decides_alone_and_before_a_core_is_full(name: str) -> None:
    deployment = named(EVERYTHING, "Deployment", name)
    assert "replicas" not in deployment["spec"]
    scaler = named(EVERYTHING, "HorizontalPodAutoscaler", name)["spec"]
    assert (scaler["scaleTargetRef"]["kind"], scaler["scaleTargetRef"]["name"]) == ("Deployment", name)
    assert scaler["minReplicas"] == named(BASE, "Deployment", name)["spec"]["replicas"]
    (metric,) = scaler["metrics"]
    requested = _millicores(deployment["spec"]["template"])
    assert requested < requested * metric["resource"]["target"]["averageUtilization"] / 100 < 1_000


def test_the_service_monitor_scrapes_what_prometheus_scrapes_under_the_same_names() -> None:
    monitor = named(EVERYTHING, "ServiceMonitor", "hourglass-collector")
    scraped = {}
    for one in monitor["spec"]["endpoints"]:
        (relabeling,) = one["relabelings"]
        assert relabeling["targetLabel"] == "job"
        scraped[relabeling["replacement"]] = (one["targetPort"], one.get("honorLabels", False))
    prometheus = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
    ours = {}
    for one in prometheus["scrape_configs"]:
        (target,) = one["static_configs"][0]["targets"]
        ours[one["job_name"]] = (int(target.rpartition(":")[2]), one.get("honor_labels", False))
    del ours["prometheus"]
    assert scraped == ours


def test_the_collector_that_is_scraped_is_the_one_that_pods_may_talk_to() -> None:
    (rule,) = named(EVERYTHING, "ServiceMonitor", "hourglass-collector")["spec"]["selector"]["matchExpressions"]
    default = named(BASE, "NetworkPolicy", "default")["spec"]["egress"]
    (collector,) = [peer for one in default for peer in one["to"] if "matchExpressions" in peer["podSelector"]]
    assert collector["podSelector"]["matchExpressions"] == [rule]


# ------------------------------------------------------------------------------------------------------------ secrets


def test_the_steps_of_the_readme_make_every_secret_that_a_pod_mounts(tmp_path: Path) -> None:
    text = (KUBERNETES / "README.md").read_text(encoding="utf-8")
    (steps,) = [block for block in re.findall(r"^ *```sh\n(.*?)^ *```$", text, re.M | re.S) if "new-key" in block]
    (tmp_path / "bin").mkdir()
    for name, program in {"python": f'exec {sys.executable} "$@"', "kubectl": f'echo "$@" >> {tmp_path}/asked'}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{program}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-euc", steps], cwd=tmp_path, env=environment, check=True, timeout=60)
    asked = (tmp_path / "asked").read_text()
    for name in ("orders", "payments", "gateway"):
        files = {path.name: path.read_text().strip() for path in (tmp_path / name).iterdir()}
        assert set(files) == secrets_of(name)
        assert all(files.values())
        assert f"create secret generic {name} --from-file={name}/" in asked
    for shared, (one, other) in {
        "auth-keys": ("orders", "payments"),
        "webhook-secret": ("gateway", "payments"),
    }.items():
        assert (tmp_path / one / shared).read_text() == (tmp_path / other / shared).read_text()
    assert (tmp_path / "orders").stat().st_mode & 0o077 == 0


def secrets_of(name: str) -> set[str]:
    container: dict[str, Any] = named(BASE, "Deployment", name)["spec"]["template"]["spec"]["containers"][0]
    return {Path(one["value"]).name for one in container["env"] if one["name"].endswith("_FILE")}
