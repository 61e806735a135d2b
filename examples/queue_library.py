"""A queue library over topics. Its producer and consumer have names that existing programs may already use.

    python -m examples.queue_library

Each consumer is a group with one member. So it gets every message of its topics from its registration on, and its
position outlives its process. A message is done when the consumer asks for the next one.
"""

from contextlib import suppress
from threading import Thread
from uuid import uuid4

from chp_client import AlreadyThere, Clone, Consumer, NoSuchTopic, Refused

from .pair import servers


class myProducerError(Exception):
    """An error: a producer did what it may not do."""


class myConsumerError(Exception):
    """An error: a consumer did what it may not do."""


class Library:
    """The part that producers and consumers share."""

    def __init__(self, clone: Clone, name: str | None = None) -> None:
        self.clone, self.id = clone, name or uuid4().hex

    def ListTopics(self) -> list[str]:
        """Return the names of all topics."""
        return [facts["name"] for facts in self.clone.topics()]


class MyProducer(Library):
    """A producer. It has to register before it publishes; this is a rule of the library, not of the Clone."""

    def __init__(self, clone: Clone, name: str | None = None) -> None:
        super().__init__(clone, name)
        self._registered: set[str] = set()

    def CreateTopic(self, topic: str) -> None:
        """Make a topic that drops what all its consumers have done; raise an error if the topic exists."""
        try:
            self.clone.topic(topic).create("acknowledged")
        except AlreadyThere as error:
            raise myProducerError(str(error)) from error

    def RegisterProducer(self, topic: str) -> str:
        """Let this producer publish to a topic, and make the topic if it does not exist."""
        with suppress(myProducerError):
            self.CreateTopic(topic)
        self._registered.add(topic)
        return self.id

    def Enqueue(self, topic: str, message: str) -> None:
        """Publish a message. The message is on both servers' disks when this returns."""
        if topic not in self._registered:
            raise myProducerError(f"{self.id} is not registered to {topic}")
        try:
            self.clone.topic(topic).publish(message).wait(30)
        except Refused as error:
            raise myProducerError(str(error)) from error


class MyConsumer(Library):
    """A consumer, for one program at a time; `close` keeps its positions."""

    def __init__(self, clone: Clone, name: str | None = None) -> None:
        super().__init__(clone, name)
        self._consumers: dict[str, Consumer] = {}

    def RegisterConsumer(self, topic: str) -> str:
        """Subscribe to the messages of a topic, which must exist; call this again for other topics."""
        try:
            self.clone.topic(topic).facts()
            self.clone.topic(topic).subscribe(self.id, timeout=30)
        except (NoSuchTopic, AlreadyThere) as error:
            raise myConsumerError(str(error)) from error
        return self.id

    def Dequeue(self, topic: str, timeout: float = 1.0) -> str:
        """Return the next message; raise an error if none comes, or if the consumer is not registered."""
        if topic not in self._consumers:
            self.Size(topic)
            self._consumers[topic] = self.clone.topic(topic).consumer(self.id, name=self.id)
        message = self._consumers[topic].get(timeout)
        if message is None:
            raise myConsumerError(f"there is nothing new in {topic}")
        return str(message.value)

    def Size(self, topic: str) -> int:
        """Return the number of waiting messages. The last message counts until its acknowledgement is known."""
        try:
            (lag,) = [group["lag"] for group in self.clone.topic(topic).groups() if group["name"] == self.id]
        except (NoSuchTopic, ValueError) as error:
            raise myConsumerError(f"{self.id} is not registered to {topic}") from error
        return int(lag)

    def close(self) -> None:
        """Stop consuming. A later consumer of this name receives the last message again."""
        for consumer in self._consumers.values():
            consumer.close()


def main() -> None:
    """Let three producers publish a hundred messages each, and let two consumers read all of them."""
    topic = f"T-{uuid4().hex[:8]}"
    with servers() as pair, Clone(pair, None, codec="text") as clone:
        producers = [MyProducer(clone, f"P-{i}") for i in (1, 2, 3)]
        consumers = [MyConsumer(clone) for _ in range(2)]
        for producer in producers:
            producer.RegisterProducer(topic)
        for consumer in consumers:
            consumer.RegisterConsumer(topic)

        def enqueue(producer: MyProducer) -> None:
            for n in range(100):
                producer.Enqueue(topic, f"{producer.id} {n}")

        threads = [Thread(target=enqueue, args=(producer,)) for producer in producers]
        for thread in threads:
            thread.start()
        for consumer in consumers:
            logs = [consumer.Dequeue(topic, 30) for _ in range(300)]
            for producer in producers:
                assert [line for line in logs if line.startswith(producer.id)] == [
                    f"{producer.id} {n}" for n in range(100)
                ]
            consumer.close()
        print(f"{topic}: 3 producers, 2 consumers with 300 messages each, each producer's in order")


if __name__ == "__main__":
    main()
