"""What a callback service does after a question."""

from outbox.callback.config import AskRules, Reply, after_ask


def test_question_is_asked_again_after_doubling_times_until_it_is_ended() -> None:
    rules = AskRules(again_seconds=300, again_seconds_max=1_000, unanswered_seconds=10)
    shown = [after_ask(rules, count, Reply.SENT) for count in range(4)]
    assert [each.again_seconds for each in shown] == [300, 600, 1_000, 1_000]
    assert [each.ask_count for each in shown] == [1, 2, 3, 4]
    silent = after_ask(rules, 2, None)
    assert (silent.is_ended, silent.ask_count, silent.again_seconds) == (False, 2, 10)
    assert after_ask(rules, 0, Reply.ENDED).is_ended
