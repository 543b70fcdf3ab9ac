from __future__ import annotations

import psutil
import pytest


@pytest.mark.skipif(not psutil.LINUX, reason="elsewhere resident memory is not told")
def test_health_tells_planned_and_resident_memory(live):
    body = live.get("/health").json()
    whole, (model,) = body["memory"], body["models"]
    plan = model["memory"]
    assert whole["planned_bytes"] == whole["process_bytes"] + plan["planned_now_bytes"]
    assert whole["resident_bytes"] > 10 * 2**20
    assert plan["planned_now_bytes"] <= plan["planned_bytes"]
    parts = ("weights_bytes", "workspace_bytes", "scoring_bytes", "kv_bytes")
    assert plan["planned_bytes"] == sum(plan[part] for part in parts)


def test_the_cache_that_was_written_to_counts(live):
    def touched() -> int:
        return live.get("/health").json()["models"][0]["load"]["kv_tokens_touched"]

    live.post("/generate", {"prompt": "a" * 60, "max_tokens": 4})
    assert touched() >= 60
    live.post("/generate", {"prompt": "a", "max_tokens": 2})
    assert touched() >= 60  # the row it was in is kept
