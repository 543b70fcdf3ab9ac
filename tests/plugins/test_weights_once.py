"""Two sessions hold the demo model's weights once: measured as the proportional set size (PSS),
which counts a page that two mappings share once."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pss_kib = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "weights_once.py"))[
    "pss_kib"
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(
        not Path("/proc/self/smaps_rollup").exists(), reason="the system does not tell the PSS"
    ),
]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_two_sessions_take_the_memory_of_one(demo_bundles, precision):
    bundle = demo_bundles[precision]
    first_start = pss_kib(bundle, "prefill", "decode")  # packs the weights
    one, two = pss_kib(bundle, "prefill"), pss_kib(bundle, "prefill", "decode")
    unshared = pss_kib(bundle, "prefill", "decode", share_weights=False)
    print(f"{precision}: one {one}, two {two}, first start {first_start}, unshared {unshared} KiB")
    assert two <= 1.1 * one
    assert first_start <= 1.1 * two  # what packing took was given back
    assert unshared > 1.3 * two  # else there was nothing to gain, and this test shows nothing
