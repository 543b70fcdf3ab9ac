"""Edits change what they should in a YAML's text and not one other character."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from twostroke.errors import ConfigError
from twostroke.tune.edits import Edit
from twostroke.tune.yaml_file import YamlFile
from twostroke.tune.yaml_text import change

FILE = """\
# what we serve
server: {port: 9000}   # not the default

models:
    -   name: "first"        # quoted
        source: bundles/a
        backend: auto   # for now
        # the strokes
        prefill: {backend: null, options: {}}   # nothing yet
        decode:
            backend: cpu     # here
            options:
                intra_op_threads: 4   # all
    -   {name: second, source: bundles/b}
scheduler:
    max_rows: 4
"""
BACKEND = Edit(("prefill", "backend"), "other")


def lines_that_differ(old: str, new: str) -> list[str]:
    return [line for line in new.splitlines() if line not in old.splitlines()]


@pytest.mark.parametrize(
    ("index", "path", "value", "expected"),
    [
        (
            0,
            ("prefill", "backend"),
            "other",
            "        prefill: {backend: other, options: {}}   # nothing yet",
        ),
        (
            0,
            ("prefill", "dialect"),
            "standard",
            "        prefill: {backend: null, options: {}, dialect: standard}   # nothing yet",
        ),
        (
            0,
            ("prefill", "options", "threads"),
            2,
            "        prefill: {backend: null, options: {threads: 2}}   # nothing yet",
        ),
        (0, ("decode", "backend"), "other", "            backend: other     # here"),
        (
            0,
            ("decode", "options", "intra_op_threads"),
            2,
            "                intra_op_threads: 2   # all",
        ),
        (0, ("decode", "options", "more"), "x", "                more: x"),
        (0, ("decode", "dialect"), "standard", "            dialect: standard"),
        (0, ("precision",), "int4", "        precision: int4"),
        (
            1,
            ("prefill", "backend"),
            "cpu",
            "    -   {name: second, source: bundles/b, prefill: {backend: cpu}}",
        ),
    ],
)
def test_one_line_changes(index, path, value, expected):
    new = change(FILE, index, [Edit(path, value)])
    assert lines_that_differ(FILE, new) == [expected]
    found = yaml.safe_load(new)["models"][index]
    for part in path:
        found = found[part]
    assert found == value


def test_options_of_another_backend_are_replaced_as_a_whole():
    new = change(FILE, 0, [Edit(("decode", "options"), {})])
    assert "            options: {}   # all\n" in new
    assert yaml.safe_load(new)["models"][0]["decode"] == {"backend": "cpu", "options": {}}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["", "\n", "\n# the end\n"])
def test_a_section_that_is_missing_or_empty_is_written(newline, end):
    for section in ("", "\n    prefill:", "\n    prefill: null  # later"):
        text = f"models:\n  - name: a\n    source: b  # here{section}{end}".replace("\n", newline)
        new = change(text, 0, [BACKEND, Edit(("prefill", "dialect"), "standard")])
        model = yaml.safe_load(new)["models"][0]
        assert model["prefill"] == {"backend": "other", "dialect": "standard"}
        assert new.count("\n") == new.count(newline)
        assert "# here" in new
        assert ("# later" in new) == ("# later" in text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server: {}\n", r"no models\[0\] to be changed"),
        ("models:\n- name: a\n  prefill: {backend: '${B}'}\n", r"from the environment.*\$\{B\}"),
        ("models:\n- name: a\n  prefill: {backend: '${B:-cpu}'}\n", "from the environment"),
        (
            "models:\n- name: a\n  prefill: &s {backend: x}\n  decode: *s\n",
            r"models\[0\]\.prefill: is shared",
        ),
        ("models:\n- &m {name: a}\n- *m\n", r"models\[0\]: is shared"),
        ("models:\n- name: a\n  prefill: cpu\n", r"models\[0\]\.prefill: expected a mapping"),
    ],
)
def test_what_must_not_be_changed_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        change(text, 0, [BACKEND])


_values = st.one_of(st.none(), st.integers(0, 9), st.sampled_from(["cpu", "a b", "x: y", "#", "'"]))
_sections = st.dictionaries(st.sampled_from(["backend", "device", "dialect"]), _values, max_size=3)


@settings(max_examples=150, deadline=None)
@given(
    sections=st.fixed_dictionaries({}, optional={"prefill": _sections, "decode": _sections}),
    path=st.sampled_from([("prefill", "backend"), ("decode", "dialect"), ("precision",)]),
    value=st.sampled_from(["other", "1", "null", "a: b"]),
    flow=st.sampled_from([True, False, None]),
)
def test_whatever_the_style_only_the_value_changes(sections, path, value, flow):
    data = {"models": [{"name": "a", **sections, "source": "b"}], "plugins": {"block": []}}
    text = yaml.safe_dump(data, default_flow_style=flow, sort_keys=False)
    expected = yaml.safe_load(text)
    inner = expected["models"][0]
    for part in path[:-1]:
        inner = inner.setdefault(part, {})
    inner[path[-1]] = value
    assert yaml.safe_load(change(text, 0, [Edit(path, value)])) == expected


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_bytes(("\ufeff" + FILE).encode())
    file.chmod(0o640)
    return file


def test_the_file_is_replaced_with_its_mark_its_mode_and_its_link(path, tmp_path):
    link = tmp_path / "link.yaml"
    link.symlink_to(path)
    file = YamlFile(link)
    new = file.changed(0, [BACKEND])
    assert f"+{'        '}prefill: {{backend: other" in file.diff(new)
    file.write(new)
    assert link.is_symlink()
    assert path.read_text(encoding="utf-8") == "\ufeff" + FILE.replace(
        "{backend: null,", "{backend: other,"
    )
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["config.yaml", "link.yaml"]


def test_a_file_that_changed_meanwhile_is_left_alone(path):
    file = YamlFile(path)
    new = file.changed(0, [BACKEND])
    path.write_text(FILE + "plugins: {block: []}\n")
    with pytest.raises(ConfigError, match="has changed since it was read"):
        file.write(new)
    assert path.read_text().endswith("plugins: {block: []}\n")


def test_an_edit_that_would_mean_something_else_is_refused(path):
    path.write_text(
        "x: &shared {prefill: {device: 1}}\nmodels:\n- {<<: *shared, name: a, source: b}\n"
    )
    with pytest.raises(ConfigError):
        YamlFile(path).changed(0, [BACKEND])
