"""Every architecture of the list against eager transformers; `make parity` runs these."""

from __future__ import annotations

import pytest
import torch

from twostroke_export.testing.architectures import ARCHITECTURES
from twostroke_export.testing.parity_checks import Outcome, check_parity


@pytest.fixture(autouse=True)
def _one_thread():
    """Torch's threads spin against ONNX Runtime's; a tiny model needs neither."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parity
@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_parity(architecture, tmp_path, tell_outcome):
    outcome = Outcome(architecture.name, architecture.note)
    try:
        outcome = check_parity(architecture, tmp_path)
    except Exception as error:
        outcome.failure = f"{type(error).__name__}: {error}".splitlines()[0]
        raise
    finally:
        tell_outcome(outcome)  # counted, whatever comes
    if architecture.refusal is None:
        assert outcome.is_match, outcome
    else:
        assert architecture.refusal in (outcome.refusal or ""), outcome
