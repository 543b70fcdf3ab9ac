"""Whatever happens to a file of a bundle, opening it says which one, and never anything else."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from twostroke.bundle import MANIFEST_NAME, open_bundle
from twostroke.bundle.digest import digest_of
from twostroke.errors import BundleError
from twostroke.testing import make_echo_bundle
from twostroke.testing.onnx_bundles import make_onnx_bundle

pytestmark = pytest.mark.timeout(120)  # a FIFO that is read would wait for ever
KINDS = ("echo", "onnx", "exported")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One from each of the testing helpers and one real export, all tiny."""
    from twostroke_export.pipeline import export_all
    from twostroke_export.testing.tiny_models import save_tiny_model

    folder = tmp_path_factory.mktemp("fuzz")
    source = save_tiny_model(folder / "source", "llama", num_hidden_layers=1)
    made = {
        "echo": make_echo_bundle(folder / "echo"),
        "onnx": make_onnx_bundle(folder / "onnx"),
        "exported": export_all(str(source), {"int8": folder / "exported"})["int8"],
    }
    return {kind: path.absolute() for kind, path in made.items()}


@pytest.fixture(params=KINDS)
def root(request: pytest.FixtureRequest, bundles: dict[str, Path]) -> Path:
    return bundles[request.param]


@contextlib.contextmanager
def kept(root: Path) -> Iterator[None]:
    """Puts the bundle's folder back as it was."""
    aside = root.with_name(f"{root.name}.aside")
    shutil.copytree(root, aside)
    try:
        yield
    finally:
        shutil.rmtree(root)
        aside.rename(root)


def refused(root: Path, *names: str, check_hashes: bool = True) -> str:
    """Asserts a refusal that names one of the files, by its path."""
    with pytest.raises(BundleError) as caught:
        open_bundle(root, check_hashes=check_hashes)
    message = str(caught.value)
    assert any(str(root / name) in message for name in names), message
    return message


def files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def resized(content: bytes) -> dict[str, bytes]:
    """Contents of other sizes: cut at several points, empty, with more behind."""
    cuts = {0, 1, len(content) // 3, len(content) // 2, len(content) - 1} - {len(content)}
    longer = {"a byte more": content + b"\0", "twice": content * 2, "spaces": content + b" \n" * 9}
    return {f"cut at {cut}": content[:cut] for cut in sorted(cuts)} | longer


def test_every_file_is_listed_or_is_the_manifest(root):
    assert {*open_bundle(root).manifest.files, MANIFEST_NAME} == set(files(root))


@pytest.mark.parametrize("check_hashes", [True, False])
def test_another_size_is_refused(root, check_hashes):
    for name in set(files(root)) - {MANIFEST_NAME}:
        path, content = root / name, (root / name).read_bytes()
        for changed in resized(content).values():
            path.write_bytes(changed)
            refused(root, name, check_hashes=check_hashes)
        path.write_bytes(content)
    open_bundle(root)


@pytest.mark.parametrize("check_hashes", [True, False])
def test_a_manifest_of_another_size_is_refused_or_the_same(root, check_hashes):
    path, manifest = root / MANIFEST_NAME, open_bundle(root).manifest
    content = path.read_bytes()
    for how, changed in resized(content).items():
        path.write_bytes(changed)
        if how == "spaces" or json_of(changed) == json_of(content):  # but for the line's end
            assert open_bundle(root, check_hashes=check_hashes).manifest == manifest
        else:
            refused(root, MANIFEST_NAME, check_hashes=check_hashes)
    path.write_bytes(content)


def json_of(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


@given(data=st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_turned_bit_is_refused(bundles, data):
    root = bundles[data.draw(st.sampled_from(KINDS), "bundle")]
    name = data.draw(st.sampled_from(files(root)), "file")
    path, content = root / name, (root / name).read_bytes()
    bit = data.draw(st.integers(0, 8 * len(content) - 1), "bit")
    turned = bytearray(content)
    turned[bit // 8] ^= 1 << bit % 8
    manifest = open_bundle(root, check_hashes=False).manifest
    path.write_bytes(turned)
    try:
        if name == MANIFEST_NAME and json_of(bytes(turned)) == json_of(content):
            assert open_bundle(root).manifest == manifest  # a space became another
        else:
            refused(root, name)
    finally:
        path.write_bytes(content)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_symlink(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def replace_by_hard_link(path: Path) -> None:
    replace_by_symlink(path)
    path.unlink()
    path.hardlink_to(path.parent.parent / "elsewhere")


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_link_to_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


@pytest.mark.parametrize("check_hashes", [True, False])
@pytest.mark.parametrize(
    "replace",
    [
        Path.unlink,
        replace_by_folder,
        replace_by_symlink,
        replace_by_hard_link,
        replace_by_fifo,
        replace_by_link_to_nowhere,
    ],
)
def test_another_kind_of_file_is_refused(root, replace: Callable[[Path], None], check_hashes):
    for name in files(root):
        with kept(root):
            replace(root / name)
            message = refused(root, name, "", check_hashes=check_hashes)
            assert name in message


def test_two_files_that_changed_places_are_refused(root):
    names = files(root)
    for first, second in zip(names, [*names[1:], names[0]], strict=True):
        contents = [(root / name).read_bytes() for name in (first, second)]
        if contents[0] == contents[1]:
            continue
        (root / first).write_bytes(contents[1])
        (root / second).write_bytes(contents[0])
        refused(root, first, second, MANIFEST_NAME)
        (root / first).write_bytes(contents[0])
        (root / second).write_bytes(contents[1])
    open_bundle(root)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 2**70)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["", ".", "..", "/etc/passwd", "../x", "C:x", "a\\b", "a\0b", "weights.bin"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(facts: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a value lies in a manifest, at every depth."""
    inner = facts.items() if isinstance(facts, dict) else enumerate(facts)
    found = []
    for key, value in inner:
        found.append((*path, key))
        if isinstance(value, dict | list):
            found += places(value, (*path, key))
    return found


def mutate(facts: dict[str, Any], data: st.DataObject) -> None:
    """Changes, removes, adds or doubles one value at any depth."""
    *path, last = data.draw(st.sampled_from(places(facts)), "place")
    parent: Any = facts
    for key in path:
        parent = parent[key]
    how = data.draw(st.sampled_from(["change", "remove", "add", "double"]), "how")
    if how == "change":
        parent[last] = data.draw(VALUES, "value")
    elif how == "remove":
        del parent[last]
    elif isinstance(parent, list):
        parent.append(parent[last] if how == "double" else data.draw(VALUES, "value"))
    else:
        name = data.draw(st.text(max_size=8), "name")
        parent[name] = parent[last] if how == "double" else data.draw(VALUES, "value")


def opened_mutant(bundles: dict[str, Path], data: st.DataObject, *, with_digest: bool) -> None:
    """Opens a bundle with one fact changed; it must be refused by name or be the same."""
    root = bundles[data.draw(st.sampled_from(KINDS), "bundle")]
    path, manifest = root / MANIFEST_NAME, open_bundle(root, check_hashes=False).manifest
    content = path.read_text(encoding="utf-8")
    facts = json.loads(content)
    mutate(facts, data)
    assume(json.dumps(facts) != json.dumps(json.loads(content)))
    if with_digest:
        facts["manifest_sha256"] = digest_of(facts)
    path.write_text(json.dumps(facts), encoding="utf-8")
    try:
        found = open_bundle(root).manifest
    except BundleError as error:
        assert str(root) in str(error)  # noqa: PT017  # also right if it is not raised
    else:
        assert with_digest or found == manifest
    finally:
        path.write_text(content, encoding="utf-8")


@given(data=st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_changed_fact_is_refused(bundles, data):
    opened_mutant(bundles, data, with_digest=False)


@given(data=st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_forged_manifest_raises_nothing_else(bundles, data):
    """Its digest fits, so what it says may be true; if not, it is refused like any other fault."""
    opened_mutant(bundles, data, with_digest=True)
