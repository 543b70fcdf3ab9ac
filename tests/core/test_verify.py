"""`verify`: what was true at export is true here, or the bundle is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.bundle import open_bundle
from twostroke.bundle.manifest import SelfCheck, Verification
from twostroke.bundle.open import read_manifest
from twostroke.bundle.write import rewrite_manifest
from twostroke.errors import BundleError
from twostroke.testing.onnx_bundles import TinyModel, make_onnx_bundle
from twostroke.verify import _greedy, _running, verify_bundle

PROMPT = (5, 100, 42, 7, 199)
NUM_TOKENS = 6


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_onnx_bundle(tmp_path / "tiny")


def check_of(greedy: tuple[int, ...], margin: float) -> SelfCheck:
    return SelfCheck(
        prompt_ids=PROMPT,
        greedy_ids=greedy,
        greedy_margins=(margin,) * len(greedy),
        top_ids=(),
        top_logits=(),
    )


def record(root: Path, **facts: object) -> None:
    """Writes facts into the manifest, and its digest anew."""
    rewrite_manifest(root, read_manifest(root).model_copy(update=facts))


def answers(root: Path, begun: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The greedy answer, or the rest of one that was begun."""
    bundle = open_bundle(root)
    with _running(bundle, check_of((0,) * NUM_TOKENS, 1.0)) as engine:
        return tuple(_greedy(bundle, engine, (*PROMPT, *begun), NUM_TOKENS - len(begun)))


def other(greedy: tuple[int, ...], position: int) -> tuple[int, ...]:
    return (*greedy[:position], greedy[position] ^ 1, *greedy[position + 1 :])


def test_the_answers_of_the_export(bundle):
    greedy = answers(bundle)
    assert len(greedy) == NUM_TOKENS
    figures = Verification(
        num_steps=7,
        prefill_max_abs_diff=0.0,
        decode_max_abs_diff=0.0,
        num_argmax_equal=7,
        mean_kl=0.004,
    )
    record(bundle, self_check=check_of(greedy, 1.0), verifications=(figures,))
    lines = verify_bundle(bundle)
    assert lines[0].startswith("files: 4 with ")
    assert "CPUExecutionProvider" in lines[1]
    assert lines[2] == "answers: all 6 tokens as at export"
    assert lines[3] == "at export: most likely token equal in 7 of 7 steps, mean KL 0.004 nats"


def test_another_answer_is_refused(bundle):
    record(bundle, self_check=check_of(other(answers(bundle), 3), 1.0))
    with pytest.raises(BundleError, match=r"tiny answers otherwise.*token 4 of 6 differs"):
        verify_bundle(bundle)


def test_a_close_race_may_end_otherwise(bundle):
    begun = other(answers(bundle), 3)[:4]
    greedy = (*begun, *answers(bundle, begun))
    margins = (1.0, 1.0, 1.0, 1e-4, 1.0, 1.0)
    record(bundle, self_check=check_of(greedy, 1.0).model_copy(update={"greedy_margins": margins}))
    expected = "answers: 5 of 6 tokens as at export; the others were close races (0.0001)"
    assert any(line.startswith(expected) for line in verify_bundle(bundle))


def test_a_close_race_hides_nothing_of_what_comes_after(bundle):
    begun = other(answers(bundle), 0)[:1]
    greedy = other((*begun, *answers(bundle, begun)), 5)
    margins = (1e-4, 1.0, 1.0, 1.0, 1.0, 1.0)
    record(bundle, self_check=check_of(greedy, 1.0).model_copy(update={"greedy_margins": margins}))
    with pytest.raises(BundleError, match=r"token 6 of 6 differs"):
        verify_bundle(bundle)


def test_each_dialect_is_checked(tmp_path):
    both = make_onnx_bundle(tmp_path / "both", TinyModel(dialects=("fused", "standard")))
    figures = Verification(
        num_steps=7, prefill_max_abs_diff=0, decode_max_abs_diff=0, num_argmax_equal=7, mean_kl=0.5
    )
    record(both, self_check=check_of(answers(both), 1.0), verifications=(figures,))
    lines = verify_bundle(both)
    assert lines[2:4] == [
        "answers (fused): all 6 tokens as at export",
        "at export (fused): most likely token equal in 7 of 7 steps, mean KL 0.5 nats",
    ]
    assert lines[4].startswith("graphs (standard): prefill and decode keep the contract")
    assert lines[5:] == ["answers (standard): all 6 tokens as at export"]


def test_without_recorded_answers_files_and_graphs_are_checked(bundle):
    lines = verify_bundle(bundle)
    assert lines[-1] == "answers: the bundle records none to compare with"


def test_a_changed_file_is_refused(bundle):
    path = bundle / "weights.bin"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    with pytest.raises(BundleError, match=r"weights\.bin is not the file that was exported"):
        verify_bundle(bundle)


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(BundleError, match="is not a folder"):
        verify_bundle(tmp_path / "nothing")
