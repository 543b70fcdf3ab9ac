import pytest

from twostroke.bundle.manifest import (
    Architecture,
    KVLayer,
    Manifest,
    Quantisation,
    Verification,
    both_strokes,
)
from twostroke.bundle.quality import quality_note


def measured(kl, top1, precision="int4"):
    verification = Verification(
        num_steps=17,
        prefill_max_abs_diff=1.0,
        decode_max_abs_diff=1.0,
        num_argmax_equal=10,
        mean_kl=kl,
        top1_agreement=top1,
    )
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
        graphs=both_strokes(Quantisation(precision=precision)),
        verifications=(verification,),
    )


@pytest.mark.parametrize(("kl", "top1"), [(0.2, 0.95), (0.01, 0.8)])
def test_a_lossy_bundle_is_told(kl, top1):
    note = quality_note(measured(kl, top1))
    assert note is not None
    assert note.startswith("int4 costs")
    assert f"{top1:.0%}" in note


@pytest.mark.parametrize(("kl", "top1"), [(0.002, 0.97), (None, None)])
def test_a_faithful_or_unmeasured_bundle_needs_no_note(kl, top1):
    assert quality_note(measured(kl, top1)) is None


@pytest.mark.parametrize(
    ("precision", "closer"),
    [("int4", "mixed and int8 stay"), ("mixed", "a smaller --mixed-kl"), ("int8", "fp32 is exact")],
)
def test_the_note_names_something_better(precision, closer):
    assert closer in quality_note(measured(0.2, 0.7, precision))
