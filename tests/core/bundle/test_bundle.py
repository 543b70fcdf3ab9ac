import json
import os
import shutil

import pytest

from twostroke.bundle import MANIFEST_NAME, Manifest, is_bundle, open_bundle, seal, sealing, sweep
from twostroke.bundle.digest import digest_of
from twostroke.bundle.manifest import Architecture, KVLayer, Quantisation, both_strokes
from twostroke.errors import BundleError
from twostroke.types import Stroke

NAMES = ("prefill.onnx", "decode.onnx", "weights.bin", "tokenizer.json")


def a_manifest():
    return Manifest(
        name="tiny",
        architecture=Architecture(
            model_type="llama",
            num_layers=1,
            hidden_size=8,
            num_heads=2,
            vocab_size=16,
            num_parameters=100,
        ),
        context_tokens=32,
        kv_layers=(KVLayer(num_kv_heads=1, head_dim=4),),
        graphs=both_strokes(Quantisation(precision="fp32")),
    )


@pytest.fixture
def bundle_path(tmp_path):
    out = tmp_path / "models" / "tiny"
    with sealing(out) as folder:
        for name in NAMES:
            (folder / name).write_bytes(name.encode() * 10)
        seal(folder, a_manifest())
    return out


def rewrite(bundle_path, change):
    path = bundle_path / MANIFEST_NAME
    facts = json.loads(path.read_text())
    change(facts)
    facts["manifest_sha256"] = digest_of(facts)
    path.write_text(json.dumps(facts))


def test_a_sealed_bundle_opens(bundle_path):
    bundle = open_bundle(bundle_path)
    assert is_bundle(bundle_path)
    assert bundle.graph(Stroke.PREFILL) == bundle_path / "prefill.onnx"
    assert bundle.graph(Stroke.DECODE) == bundle_path / "decode.onnx"
    assert bundle.file("weights.bin") == bundle_path / "weights.bin"
    assert bundle.file("chat_template.jinja") is None
    assert set(bundle.manifest.files) == set(NAMES)
    assert bundle.num_bytes == sum(len(name) * 10 for name in NAMES)


def test_sealing_leaves_nothing_beside_the_bundle(bundle_path):
    assert os.listdir(bundle_path.parent) == ["tiny"]
    assert bundle_path.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt])
def test_a_failed_export_leaves_nothing(tmp_path, fault):
    with pytest.raises(fault), sealing(tmp_path / "out") as folder:
        (folder / "half").write_bytes(b"x")
        raise fault
    assert os.listdir(tmp_path) == []


def test_an_interrupt_right_behind_the_folders_making_leaves_nothing(tmp_path, monkeypatch):
    make = os.mkdir

    def interrupted(path, *rest, **more):
        make(path, *rest, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt), sealing(tmp_path / "out"):
        pass
    assert os.listdir(tmp_path) == []


def test_what_a_killed_export_left_is_swept(tmp_path):
    with sealing(tmp_path / "out[1]") as folder:
        mine = tmp_path / folder.name
        (folder / MANIFEST_NAME).touch()
    shutil.move(tmp_path / "out[1]", mine)
    random = mine.name.split(".")[-2]
    others = [f".out[1].longer.{random}.part", f".other.{random}.part", ".out[1].lock", "out[1]"]
    for name in others:
        (tmp_path / name).mkdir()
    sweep(tmp_path / "out[1]")
    assert sorted(os.listdir(tmp_path)) == sorted(others)


def test_a_bundle_without_manifest_is_not_published(tmp_path):
    with pytest.raises(BundleError, match="was not sealed"), sealing(tmp_path / "out"):
        pass
    assert os.listdir(tmp_path) == []


def test_sealing_refuses_what_exists(bundle_path):
    with pytest.raises(BundleError, match="exists already"), sealing(bundle_path):
        pytest.fail("the block must not run")


def test_the_loser_of_a_race_leaves_the_winners_bundle(tmp_path, bundle_path):
    out = tmp_path / "raced"
    with pytest.raises(BundleError, match="another export"), sealing(out) as folder:
        seal(folder, a_manifest())
        bundle_path.rename(out)
    assert open_bundle(out).manifest.name == "tiny"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fault", ["missing", "truncated", "changed", "symlink", "hardlink"])
def test_a_faulty_file_is_named(bundle_path, tmp_path, name, fault):
    path = bundle_path / name
    content = path.read_bytes()
    path.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(content)
    if fault == "truncated":
        path.write_bytes(content[:-1])
    elif fault == "changed":
        path.write_bytes(b"?" + content[1:])
    elif fault == "symlink":
        path.symlink_to(elsewhere)
    elif fault == "hardlink":
        path.hardlink_to(elsewhere)
    with pytest.raises(BundleError, match=name):
        open_bundle(bundle_path)


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a/../../evil", "C:evil", "a\\b", ""])
def test_paths_outside_of_the_bundle_are_refused(bundle_path, name):
    fact = {"num_bytes": 1, "sha256": "0" * 64}
    rewrite(bundle_path, lambda facts: facts["files"].update({name: fact}))
    with pytest.raises(BundleError, match="outside of the bundle"):
        open_bundle(bundle_path)


def test_a_linked_folder_is_refused(bundle_path, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_bytes(b"x")
    (bundle_path / "sub").symlink_to(tmp_path / "outside")
    fact = {"num_bytes": 1, "sha256": "0" * 64}
    rewrite(bundle_path, lambda facts: facts["files"].update({"sub/x": fact}))
    with pytest.raises(BundleError, match="symbolic link"):
        open_bundle(bundle_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda facts: facts.update(format_version=99), "has format 99"),
        (lambda facts: facts.pop("name"), "name: Field required"),
        (lambda facts: facts.update(kv_layers="x"), "kv_layers"),
        (lambda facts: facts["files"].pop("decode.onnx"), "does not list 'decode.onnx'"),
        (lambda facts: facts["graphs"][0].update(file="other.onnx"), "does not list 'other.onnx'"),
    ],
)
def test_a_faulty_manifest_is_refused(bundle_path, change, message):
    rewrite(bundle_path, change)
    with pytest.raises(BundleError, match=message):
        open_bundle(bundle_path)


def test_a_changed_manifest_is_refused_though_each_fact_looks_right(bundle_path):
    path = bundle_path / MANIFEST_NAME
    changed = path.read_text().replace('"context_tokens": 32', '"context_tokens": 64')
    path.write_text(changed)
    with pytest.raises(BundleError, match="its own SHA-256 differs"):
        open_bundle(bundle_path)


def test_order_and_spacing_of_a_manifest_do_not_matter(bundle_path):
    path, manifest = bundle_path / MANIFEST_NAME, open_bundle(bundle_path).manifest
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(facts.items())), separators=(",", ":")))
    assert open_bundle(bundle_path).manifest == manifest


@pytest.mark.parametrize("name", ["a\0b", "x" * 4000, "x/" * 3000 + "x", "tokenizer.json/x"])
def test_names_that_no_file_has_are_refused(bundle_path, name):
    fact = {"num_bytes": 1, "sha256": "0" * 64}
    rewrite(bundle_path, lambda facts: facts["files"].update({name: fact}))
    with pytest.raises(BundleError, match=r"cannot be read|is missing"):
        open_bundle(bundle_path)


def test_a_damaged_manifest_is_refused(bundle_path):
    (bundle_path / MANIFEST_NAME).write_text('{"name": ')
    with pytest.raises(BundleError, match="is damaged"):
        open_bundle(bundle_path)


def test_a_folder_that_is_no_bundle_says_how_to_make_one(tmp_path):
    with pytest.raises(BundleError, match="twostroke export"):
        open_bundle(tmp_path)
    with pytest.raises(BundleError, match="is not a folder"):
        open_bundle(tmp_path / "nowhere")


def test_hashes_can_be_skipped_but_sizes_cannot(bundle_path):
    path = bundle_path / "weights.bin"
    path.write_bytes(b"?" + path.read_bytes()[1:])
    assert open_bundle(bundle_path, check_hashes=False)
    path.write_bytes(b"?")
    with pytest.raises(BundleError, match=r"weights\.bin"):
        open_bundle(bundle_path, check_hashes=False)
