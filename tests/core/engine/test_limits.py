from __future__ import annotations

import pytest

from twostroke.engine import EngineLimits
from twostroke.errors import ConfigError


def test_the_defaults_are_those_of_the_configuration():
    from twostroke.config.schema import SchedulerConfig

    limits, scheduler = EngineLimits(), SchedulerConfig()
    assert limits.max_rows == scheduler.max_rows
    assert limits.max_queue == scheduler.max_queue
    assert limits.prefill_chunk_tokens is None  # what the configuration calls auto
    assert scheduler.prefill_chunk_tokens == "auto"


def test_every_value_out_of_range_is_named_at_once():
    with pytest.raises(ConfigError) as caught:
        EngineLimits(max_rows=0, max_queue=-1, prefill_chunk_tokens=0, context_tokens=1)
    assert len(caught.value.problems) == 4
    assert "max_rows must be 1 or more, not 0" in str(caught.value)
