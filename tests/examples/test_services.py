"""The Kubernetes manifest and the systemd unit: held to the schema, the routes and each other."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import yaml

from twostroke.cli.main import build_parser
from twostroke.config.exposure import open_doors
from twostroke.config.load import load_text
from twostroke.server.keys import HEALTH_PATH, LIVE_PATH


@pytest.fixture(scope="module")
def manifest(deployments):
    path = deployments / "kubernetes" / "twostroke.yaml"
    return {each["kind"]: each for each in yaml.safe_load_all(path.read_text("utf-8"))}


@pytest.fixture(scope="module")
def pod(manifest):
    return manifest["Deployment"]["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def container(pod):
    (container,) = pod["containers"]
    return container


@pytest.fixture(scope="module")
def config(manifest, deployments):
    text = manifest["ConfigMap"]["data"]["config.yaml"]
    return load_text(text, deployments / "config.yaml", environ={})


def test_the_manifests_configuration_is_right(config):
    assert open_doors(config.server) == []
    assert config.models[0].source == "/bundles/model", "as the image has it"


def test_the_container_runs_what_exists(container, deployments):
    arguments = build_parser().parse_args(container["args"])
    assert arguments.run.__module__ == "twostroke.cli.serve"
    assert str(arguments.config) in {each["mountPath"] for each in container["volumeMounts"]}
    text = (deployments / "kubernetes" / "twostroke.yaml").read_text("utf-8")
    command = re.search(r"#   twostroke (key .*)", text)[1]
    assert build_parser().parse_args(command.split()).run.__module__ == "twostroke.cli.key"


def test_probes_ask_open_routes_of_the_right_kind(container, open_routes, config):
    (port,) = container["ports"]
    assert port["containerPort"] == config.server.port
    for kind, path in (
        ("startupProbe", HEALTH_PATH),
        ("readinessProbe", HEALTH_PATH),
        ("livenessProbe", LIVE_PATH),  # the other one is 503 where a restart would do harm
    ):
        probe = container[kind]["httpGet"]
        assert probe == {"path": path, "port": port["name"]}
        assert path in open_routes


def test_streams_have_time_to_end(pod, container, config):
    *_, pause_s = container["lifecycle"]["preStop"]["exec"]["command"]
    needed_s = int(pause_s) + config.server.shutdown_timeout_s
    assert pod["terminationGracePeriodSeconds"] > needed_s


def test_what_is_mounted_is_there_and_what_is_needed_is_mounted(manifest, pod, container, config):
    volumes = {each["name"]: each for each in pod["volumes"]}
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    assert {each["name"] for each in mounts.values()} == volumes.keys()
    assert volumes["config"]["configMap"]["name"] == manifest["ConfigMap"]["metadata"]["name"]
    folder, _, name = config.server.key_file.rpartition("/")
    assert volumes[mounts[folder]["name"]]["secret"]["defaultMode"] == 0o440
    assert name == "keys.json"
    assert "/var/cache/twostroke" in mounts
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_the_user_is_the_images(pod, deployments):
    image = (deployments / "docker" / "Dockerfile").read_text("utf-8")
    security = pod["securityContext"]
    assert f"USER {security['runAsUser']}:{security['runAsGroup']}\n" in image
    assert security["runAsNonRoot"] is True


def test_the_service_finds_the_pods(manifest, container):
    service, deployment = manifest["Service"]["spec"], manifest["Deployment"]["spec"]
    assert service["selector"].items() <= deployment["template"]["metadata"]["labels"].items()
    assert deployment["selector"]["matchLabels"] == service["selector"]
    (port,) = service["ports"]
    assert port["targetPort"] in {each["name"] for each in container["ports"]}


@pytest.fixture
def unit(deployments, tmp_path):
    """The unit with a program that is there: systemd looks whether it is."""
    text = (deployments / "twostroke.service").read_text("utf-8")
    path = tmp_path / "twostroke.service"
    path.write_text(text.replace("/opt/twostroke/venv/bin/twostroke", "/bin/true"), "utf-8")
    return path


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
def test_systemd_understands_the_unit_and_finds_little_open(unit):
    def analyze(*command):
        return subprocess.run(
            ["systemd-analyze", *command, str(unit)],
            capture_output=True,
            encoding="utf-8",
            check=False,
            env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
        )

    verified = analyze("verify")
    assert (verified.returncode, verified.stderr) == (0, "")
    secure = analyze("security", "--offline=true", "--threshold=20")
    assert secure.returncode == 0, secure.stdout[-300:]
