import pytest

from outbox.sender.message_sender import (
    PAUSE_SECONDS_MAX,
    PAUSE_SECONDS_MIN,
    TopicErrors,
    TopicUnusable,
)


class Time:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_topic_in_trouble_is_left_alone_for_pauses_that_double_up_to_a_bound() -> None:
    time = Time()
    topic_errors = TopicErrors(time)
    pauses = []
    for _ in range(6):
        raised = topic_errors.found("t", "is not there")
        assert str(raised) == "topic t is not there"
        began = time.now
        while topic_errors.is_paused("t"):
            time.now += 0.125
        pauses.append(time.now - began)
    steps = [min(PAUSE_SECONDS_MIN * 2**n, PAUSE_SECONDS_MAX) for n in range(6)]
    assert all(step / 2 <= pause < step + 0.25 for step, pause in zip(steps, pauses, strict=True))
    assert len(set(pauses)) > 3
    assert topic_errors.pause_of("t") is None  # the pause is over: it may be tried
    assert "t" in topic_errors  # and is not known to be all right


def test_topic_that_several_sends_find_in_trouble_together_gets_one_pause() -> None:
    time = Time()
    topic_errors = TopicErrors(time)
    for _ in range(10):  # the batches of one send, each to a partition of its own
        topic_errors.found("t", "may not be written to")
    assert topic_errors.is_paused("t")
    time.now += PAUSE_SECONDS_MIN
    assert not topic_errors.is_paused("t")


def test_topic_that_is_all_right_again_is_forgotten_and_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic_errors = TopicErrors(Time())
    for _ in range(3):
        topic_errors.found("t", "is not there")
    assert isinstance(topic_errors.pause_of("t"), TopicUnusable)
    assert topic_errors.pause_of("other") is None
    assert topic_errors.changed.is_set()
    for _ in range(3):
        topic_errors.is_over("t")
    assert topic_errors.pause_of("t") is None
    assert not topic_errors
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
