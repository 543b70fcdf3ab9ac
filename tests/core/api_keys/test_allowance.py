"""Rates and concurrency of a key, by a clock that stands still until it is told otherwise."""

from types import SimpleNamespace

import pytest

from twostroke.api_keys import Allowance
from twostroke.api_keys.buckets import Bucket
from twostroke.errors import RateLimitError


class Clock:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def limits(requests=None, tokens=None, at_once=None):
    return SimpleNamespace(
        requests_per_minute=requests, tokens_per_minute=tokens, concurrency=at_once
    )


def refused(action):
    with pytest.raises(RateLimitError) as caught:
        action()
    assert caught.value.status == 429
    assert "'alice'" in str(caught.value)
    return caught.value


def test_a_bucket_saves_up_a_minute_and_no_more(clock):
    bucket = Bucket(60, clock)
    clock.now_s += 3600
    assert bucket.level == 60
    bucket.take(60)
    assert (bucket.level, bucket.wait_s(1)) == (0, 1)
    clock.now_s += 0.5
    assert bucket.wait_s(1) == 0.5
    clock.now_s += 30
    assert bucket.level == pytest.approx(30.5)


def test_a_bucket_can_be_in_debt(clock):
    bucket = Bucket(60, clock)
    bucket.take(90)
    assert bucket.level == -30
    assert bucket.wait_s(1) == 31
    assert bucket.wait_s(1000) == 90, "more than it holds: until it is full"


def test_another_size_keeps_what_was_used(clock):
    bucket = Bucket(60, clock)
    bucket.take(20)
    bucket.resize(100)
    assert bucket.level == 80
    bucket.resize(10)
    assert bucket.level == -10


def test_requests_a_minute(clock):
    allowance = Allowance("alice", limits(requests=2), clock)
    for _ in range(2):
        allowance.enter().leave(0)
    error = refused(allowance.enter)
    assert (error.limit, error.retry_after_s) == ("requests", 30)
    clock.now_s += 29.5
    assert refused(allowance.enter).retry_after_s == 1
    clock.now_s += 0.5
    allowance.enter()
    refused(allowance.enter)


def test_concurrency(clock):
    allowance = Allowance("alice", limits(at_once=2), clock)
    first = allowance.enter()
    allowance.enter()
    error = refused(allowance.enter)
    assert (error.limit, error.retry_after_s >= 1) == ("concurrency", True)
    first.leave(0)
    first.leave(0)
    allowance.enter()
    refused(allowance.enter)


def test_a_refused_request_takes_no_place(clock):
    allowance = Allowance("alice", limits(requests=1, at_once=1), clock)
    allowance.enter().leave(0)
    for _ in range(3):
        refused(allowance.enter)
    clock.now_s += 60
    allowance.enter()


def test_tokens_a_minute_count_prompt_and_answer(clock):
    allowance = Allowance("alice", limits(tokens=60), clock)
    admission = allowance.enter()
    admission.take_tokens(40)
    error = refused(lambda: admission.take_tokens(40))
    assert (error.limit, error.retry_after_s) == ("tokens", 20)
    admission.leave(50)  # in debt by 30
    assert refused(allowance.enter).retry_after_s == 31
    clock.now_s += 31
    allowance.enter().take_tokens(1)


def test_a_prompt_of_more_than_a_minute_waits_for_a_full_bucket(clock):
    allowance = Allowance("alice", limits(tokens=60), clock)
    allowance.enter().take_tokens(200)
    assert refused(allowance.enter).retry_after_s == 141
    clock.now_s += 199
    assert refused(lambda: allowance.take_tokens(200)).retry_after_s == 1
    clock.now_s += 1
    allowance.take_tokens(200)


def test_headers_tell_what_is_left(clock):
    assert Allowance("alice", limits(at_once=1), clock).headers() == {}
    allowance = Allowance("alice", limits(requests=60, tokens=600), clock)
    allowance.enter().take_tokens(90)
    assert allowance.headers() == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1.000s",
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "510",
        "x-ratelimit-reset-tokens": "9.000s",
    }


def test_other_limits_keep_what_was_used_and_what_runs(clock):
    allowance = Allowance("alice", limits(requests=2), clock)
    running = [allowance.enter(), allowance.enter()]
    allowance.limit(limits(requests=3, at_once=3))
    allowance.enter()
    refused(allowance.enter)
    allowance.limit(limits(at_once=3))
    assert refused(allowance.enter).limit == "concurrency"
    running[0].leave(0)
    allowance.enter()
