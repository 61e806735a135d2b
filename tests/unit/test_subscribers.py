"""covers: subscribers.py: what a connection has subscribed to, and that it can't say less than that."""

from chp_server.ports.subscribers import Subscriber

HERE = ("127.0.0.1", 1)


def test_an_unsubscribe_without_a_subscription_changes_nothing() -> None:
    """Otherwise a client that first cancels a million bytes could subscribe to a million more than its bound."""
    reader = Subscriber(HERE)
    for _ in range(10):
        reader.subscribed(b"x" * 1000, more=False)
    assert reader.topic_bytes == 0 and not reader.topics
    reader.subscribed(b"y" * 1000, more=True)
    assert reader.topic_bytes == 1000


def test_a_topic_is_held_until_each_subscription_is_taken_back() -> None:
    reader = Subscriber(HERE)
    for more, left in ((True, 3), (True, 6), (False, 3), (False, 0), (False, 0)):
        reader.subscribed(b"abc", more=more)
        assert reader.topic_bytes == left
    assert not reader.topics
