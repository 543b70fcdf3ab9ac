from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from twostroke.cli import main
from twostroke.testing.onnx_bundles import make_onnx_bundle


@pytest.fixture
def serving(echo_environment, tmp_path):
    """Starts `twostroke serve` and answers the process and its first line."""
    processes = []

    def start(*arguments: object) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "twostroke", "serve", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=echo_environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        processes.append(process)
        return process, process.stdout.readline()

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def write_config(folder, bundle, *, name="config.yaml"):
    (folder / name).write_text(
        f"server: {{port: 0}}\nmodels: [{{name: mine, source: {bundle}, backend: echo}}]\n",
        encoding="utf-8",
    )


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_the_yaml_of_the_folder_until_it_is_told_to_stop(
    serving, echo_bundle, tmp_path, number
):
    write_config(tmp_path, echo_bundle)
    process, line = serving("--log-level", "warning")
    assert line.startswith("twostroke: serving mine on http://127.0.0.1:")
    body = json.dumps({"prompt": "hello"}).encode()
    with urllib.request.urlopen(f"{line.split()[-1]}/generate", body, timeout=120) as answer:
        assert answer.read().decode() == "→hello"
    process.send_signal(number)
    rest, told = process.communicate(timeout=120)
    assert (process.returncode, rest, told) == (0, "", "")


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_flags_win_over_the_file(serving, echo_bundle, tmp_path):
    write_config(tmp_path, "nowhere", name="deploy.yaml")
    process, line = serving(
        "--config", "deploy.yaml", "--set", f"models.mine.source={echo_bundle}",
        "--set", "models.0.name=yours",
    )  # fmt: skip
    assert line.startswith("twostroke: serving yours on ")
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert "INFO twostroke.server: " in told


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("models.0.backend=ecko", "There is no backend 'ecko'. Did you mean 'echo'?"),
        ("models.0.source=./nowhere", "nowhere"),
        ("server.prot=1", "--set server.prot=1: server.prot: unknown key; did you mean 'port'?"),
    ],
)
def test_a_start_that_fails_says_why_and_exits_with_2(
    twostroke, echo_bundle, tmp_path, setting, told
):
    write_config(tmp_path, echo_bundle)
    done = twostroke("serve", "--log-level", "error", "--set", setting)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("twostroke: error: ")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_named_must_be_there(capsys):
    assert main(["serve", "--config", "nowhere.yaml"]) == 2
    assert capsys.readouterr().err == "twostroke: error: nowhere.yaml: no such file\n"


@pytest.mark.parametrize("setting", [True, False])
def test_devices_are_measured_unless_the_yaml_says_no(echo_bundle, monkeypatch, setting):
    from twostroke.backends.discovery import load_plugins
    from twostroke.config import load_config
    from twostroke.model import Model
    from twostroke.server import run as server_run
    from twostroke.server.served import Settings

    asked, loads = [], []
    monkeypatch.setattr(Model, "from_config", lambda *_, **named: asked.append(named))
    monkeypatch.setattr(server_run, "serve", lambda _, load, **more: loads.append(load) or 0)
    chosen = f"server.measure_device={str(setting).lower()}"
    assert main(["serve", "--set", chosen, "--set", f"models.0.source={echo_bundle}"]) == 0
    config = load_config(None, [chosen])
    for load in (*loads, server_run._loader(config, load_plugins())):
        load(Settings(config.models[0], config.scheduler), lambda progress: None)
    assert [named["measure_device"] for named in asked] == [setting, setting]


@pytest.mark.parametrize("num_models", [1, 2])
def test_several_models_on_the_processor_share_its_threads(serving, tmp_path, num_models):
    bundle = make_onnx_bundle(tmp_path / "tiny")
    models = [f"{{name: m{i}, source: {bundle}, backend: cpu}}" for i in range(num_models)]
    told = "{port: 0, measure_device: false}"
    (tmp_path / "config.yaml").write_text(f"server: {told}\nmodels: [{', '.join(models)}]\n")
    _, line = serving("--log-level", "warning")
    with urllib.request.urlopen(f"{line.split()[-1]}/health", timeout=120) as answer:
        health = json.load(answer)
    threads = [
        placed["threads"] for model in health["models"] for placed in model["placement"].values()
    ]
    assert len(threads) == 2 * num_models
    assert [each["is_shared"] for each in threads] == [num_models > 1] * len(threads)
    assert len({each["num_threads"] for each in threads}) == 1


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_a_second_model_that_comes_later_gets_the_pool_of_the_process(serving, tmp_path):
    bundle = make_onnx_bundle(tmp_path / "tiny")
    config = tmp_path / "config.yaml"

    def write(*names: str) -> None:
        models = ", ".join(f"{{name: {n}, source: {bundle}, backend: cpu}}" for n in names)
        told = "{port: 0, measure_device: false, watch: false}"
        config.write_text(f"server: {told}\nmodels: [{models}]\n")

    def shared(url: str) -> dict[str, list[bool]]:
        with urllib.request.urlopen(f"{url}/health", timeout=120) as answer:
            models = json.load(answer)["models"]
        return {
            model["name"]: [
                placed["threads"]["is_shared"] for placed in model["placement"].values()
            ]
            for model in models
            if "placement" in model
        }

    write("first")
    process, line = serving("--log-level", "warning")
    url = line.split()[-1]
    write("first", "second")
    process.send_signal(signal.SIGHUP)
    end = time.monotonic() + 60
    while "second" not in shared(url):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert shared(url) == {"first": [False, False], "second": [True, True]}


def test_no_thread_keeps_the_others_waiting_for_long(monkeypatch, echo_bundle, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path, echo_bundle)
    seen = []

    def serve(config, **more):
        seen.append(sys.getswitchinterval())
        return 0

    monkeypatch.setattr("twostroke.server.run.serve", serve)
    assert main(["serve"]) == 0
    assert seen == [pytest.approx(0.001)]
