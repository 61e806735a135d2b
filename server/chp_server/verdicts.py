"""What a batch may meet instead of being done: it has to wait for the open record, or it is refused for good."""

PARTED = "parted"  # the code of a batch that another history has done, in part or maybe, and this one not
PARTED_TEXT = (
    "done in part: two servers were active, and keys written on both sides keep the other's value; read them first"
)


class KeyInOpenRecord(Exception):
    """Another client has written one of these keys in the open record, which has to be committed first.

    Otherwise both would be told the same revision, and the first could set the key on the condition that it still has
    it, over a value that it never saw.
    """


class Refusal(Exception):
    """A batch that is understood and not done: its code and detail go to the client."""

    def __init__(self, code: str, detail: object) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
