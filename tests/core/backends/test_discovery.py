from __future__ import annotations

import sys
import types

import pytest

from twostroke.backends import BackendSpec, ProbeResult, hookimpl
from twostroke.backends.discovery import PluginRecord, Plugins, load_plugins
from twostroke.errors import PluginError


def record_of(plugins: Plugins, distribution: str) -> PluginRecord:
    (record,) = [r for r in plugins.records if r.distribution == distribution]
    return record


def test_the_in_tree_backends_come_through_the_same_door():
    plugins = load_plugins()
    assert {"cpu", "cuda", "directml"} <= plugins.backends.keys()
    for name in ("cpu", "cuda", "directml"):
        (record,) = [r for r in plugins.records if r.name == name]
        assert (record.distribution, record.status) == ("twostroke", "loaded")
        assert record.backends == (name,)


def test_a_strangers_backend_is_found(install):
    install("acme-npu")
    plugins = load_plugins()
    assert plugins.backends["acme"].summary == "a test"
    record = record_of(plugins, "acme-npu")
    assert (record.name, record.version, record.status) == ("acme", "1.2.3", "loaded")
    assert str(record) == "acme (acme-npu 1.2.3)"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import a_module_that_is_not_there", "ModuleNotFoundError"),
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_a_broken_plugin_is_recorded_and_stops_nothing(install, source, said):
    install("acme-npu", source)
    plugins = load_plugins()
    record = record_of(plugins, "acme-npu")
    assert (record.status, record.version) == ("failed", "1.2.3")
    assert said in record.error
    assert "cpu" in plugins.backends
    assert plugins.failure("acme") is record


HOOK = "from twostroke.backends import hookimpl\n@hookimpl\n"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (HOOK + "def twostroke_backends(): return None", "must answer a list of BackendSpec"),
        (HOOK + "def twostroke_backends(): return ['cpu']", "must answer a list of BackendSpec"),
        (HOOK + "def twostroke_backends(): raise OSError('gone')", "OSError: gone"),
        (HOOK + "def twostroke_backends(device): return []", "device"),
        (HOOK + "def twostroke_bakends(): return []", "implements twostroke_bakends"),
    ],
)
def test_a_hook_that_misbehaves_is_put_down_to_its_plugin(install, source, said):
    install("acme-npu", source)
    plugins = load_plugins()
    record = record_of(plugins, "acme-npu")
    assert record.status == "failed"
    assert said in record.error
    assert "cpu" in plugins.backends


@pytest.mark.parametrize(("api", "upgrade"), [(2, "upgrade twostroke"), (0, "upgrade acme-npu")])
def test_another_api_version_is_refused_in_a_sentence(install, api, upgrade):
    install("acme-npu", api=api)
    plugins = load_plugins()
    record = record_of(plugins, "acme-npu")
    assert record.status == "failed"
    assert f"speaks plugin API version {api}, this twostroke 1" in record.error
    assert record.error.endswith(upgrade)
    assert "acme" not in plugins.backends
    assert plugins.failure("acme") is record


@pytest.mark.parametrize("block", ["acme", "acme-npu", "acme-npu:acme"])
def test_a_blocked_plugin_is_not_imported(install, block):
    module = install("acme-npu", "raise AssertionError('imported')").stem
    plugins = load_plugins(block=[block])
    assert record_of(plugins, "acme-npu").status == "blocked"
    assert module not in sys.modules
    assert "cpu" in plugins.backends


def test_a_name_clash_names_both_distributions_and_the_way_out(install):
    install("acme-npu", backend="cpu")
    with pytest.raises(PluginError) as caught:
        load_plugins()
    message = str(caught.value)
    assert "named 'cpu'" in message
    assert "acme-npu 1.2.3" in message
    assert "twostroke" in message
    way_out = message.split('plugins.block: ["')[1].split('"')[0]
    assert "cpu" in load_plugins(block=[way_out]).backends


def test_objects_can_be_given_beside_the_installed_ones():
    given = types.ModuleType("given_plugin")

    def twostroke_backends():
        return [BackendSpec("given", 1, "", ProbeResult, None)]

    given.twostroke_backends = hookimpl(twostroke_backends)
    plugins = load_plugins(extra=[given])
    assert "given" in plugins.backends
    assert plugins.records[-1].name == "given_plugin"
    with pytest.raises(TypeError):
        plugins.backends["another"] = plugins.backends["given"]


SURFACE = HOOK.replace(
    "import hookimpl", "import hookimpl\nfrom twostroke.server.surface import Surface"
)


def surface(name: str, api: int = 1) -> str:
    return SURFACE + f"def twostroke_surfaces(): return [Surface({name!r}, {api}, 'a test', ())]"


def test_a_strangers_surface_is_found(install):
    install("acme-api", surface("acme"))
    plugins = load_plugins()
    assert plugins.surfaces["acme"].summary == "a test"
    record = record_of(plugins, "acme-api")
    assert (record.status, record.surfaces, record.backends) == ("loaded", ("acme",), ())


def test_surfaces_are_held_to_version_and_name(install):
    install("acme-api", surface("acme", api=2))
    record = record_of(load_plugins(), "acme-api")
    assert (record.status, "upgrade twostroke" in record.error) == ("failed", True)
    install("first-api", surface("same"), entry="first")
    install("second-api", surface("same"), entry="second")
    with pytest.raises(PluginError, match=r"a surface named 'same': first .* and second "):
        load_plugins()
