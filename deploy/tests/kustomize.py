"""What `kubectl kustomize` makes of a folder, as far as deploy/kubernetes uses it: resources, components, patches and
labels.

A key that it does not know is an error, and so is a patch of a place that is not there.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]
KNOWN = {
    *("apiVersion", "kind", "namespace", "resources", "components", "patches", "labels", "images"),
    *("generatorOptions", "configMapGenerator"),
}


def load(path: Path) -> list[Document]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def rendered(folder: Path, more: tuple[Path, ...] = ()) -> list[Document]:
    """The documents of this folder, with `more` components as an overlay would name them; no ConfigMap is generated."""
    (kustomization,) = load(folder / "kustomization.yaml")
    assert set(kustomization) <= KNOWN, set(kustomization) - KNOWN
    documents: list[Document] = []
    for name in kustomization.get("resources", ()):
        path = folder / name
        documents += rendered(path) if path.is_dir() else load(path)
    documents = json.loads(json.dumps(documents))  # an anchor of YAML is one object, and a patch is for one place
    _transform(documents, kustomization)
    for component in (*(folder / name for name in kustomization.get("components", ())), *more):
        (parts,) = load(component / "kustomization.yaml")
        assert parts["kind"] == "Component"
        documents += [one for name in parts["resources"] for one in load(component / name)]
        _transform(documents, parts)
    return documents


def _transform(documents: list[Document], kustomization: Document) -> None:
    for one in documents:
        if "namespace" in kustomization and one["kind"] != "Namespace":
            one["metadata"]["namespace"] = kustomization["namespace"]
        for patch in kustomization.get("patches", ()):
            if _is_target(one, patch["target"]):
                for operation in yaml.safe_load(patch["patch"]):
                    _patch(one, **operation)
        for labels in kustomization.get("labels", ()):
            one["metadata"].setdefault("labels", {}).update(labels["pairs"])
            for field in labels["fields"]:
                if one["kind"] == field["kind"]:
                    _at(one, field["path"].split("/")).update(labels["pairs"])


def _is_target(document: Document, target: dict[str, str]) -> bool:
    assert set(target) <= {"kind", "name"}
    name = re.fullmatch(target.get("name", ".*"), document["metadata"]["name"])
    return document["kind"] == target["kind"] and name is not None


def _patch(document: Document, op: str, path: str, value: Any = None) -> None:
    """RFC 6902's `remove` and `replace`, and `add` at the end of a list."""
    *parents, last = path.removeprefix("/").split("/")
    parent = _at(document, parents)
    if (op, last) == ("add", "-"):
        parent.append(value)
        return
    key: Any = int(last) if isinstance(parent, list) else last
    assert key in parent or isinstance(parent, list), path
    match op:
        case "remove":
            del parent[key]
        case "replace":
            parent[key] = value
        case _:
            raise AssertionError(f"unknown operation {op}")


def _at(document: Any, keys: list[str]) -> Any:
    for key in keys:
        document = document[int(key) if isinstance(document, list) else key]
    return document
