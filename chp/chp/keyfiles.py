"""What stands in a file of keys: a public key, and in a secret file its secret one (SPEC.md, section 25).

    public = "..."                 NAME.pub, to be given away
    secret = "..."                 NAME.secret has both, and is its owner's alone

A key is 32 bytes, written in the 40 characters of Z85 (ZeroMQ's RFC 32). The files are TOML, so that a comment may
stand in them. No text made here, and no error, has a secret in it but `secret_text`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUE = {digit: value for value, digit in enumerate(_DIGITS)}
KEY_CHARACTERS = 40
SHOWN = 8  # characters of a public key, by which people know it
FILE_BYTES_MAX = 65_536


@dataclass(frozen=True, slots=True, repr=False)
class KeyPair:
    """Both keys, in Z85; the secret one is never shown."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"KeyPair({shown(self.public)})"

    def __reduce__(self) -> str:
        raise TypeError("a pair of keys is not copied or pickled; name its file, and let it be read there")


def shown(public: bytes) -> str:
    """A public key in Z85 as people know it: its beginning."""
    return public[:SHOWN].decode("ascii", "replace") + "..."


def decode(text: str) -> bytes:
    """The 32 bytes of a key in Z85; `ValueError` if it is none."""
    if len(text) != KEY_CHARACTERS or not set(text) <= _VALUE.keys():
        raise ValueError(f"a key has {KEY_CHARACTERS} characters of Z85, as `chp keygen` writes them")
    found = bytearray()
    for at in range(0, KEY_CHARACTERS, 5):
        number = 0
        for digit in text[at : at + 5]:
            number = number * 85 + _VALUE[digit]
        if number >= 1 << 32:
            raise ValueError("a key whose characters are no number of 32 bits; was it copied whole?")
        found += number.to_bytes(4, "big")
    return bytes(found)


def encode(key: bytes) -> bytes:
    """32 bytes as Z85."""
    text = ""
    for at in range(0, len(key), 4):
        number, group = int.from_bytes(key[at : at + 4], "big"), ""
        for _ in range(5):
            number, digit = divmod(number, 85)
            group = _DIGITS[digit] + group
        text += group
    return text.encode()


def public_text(name: str, public: bytes) -> str:
    """What NAME.pub holds."""
    return f'# the public key of {name}: give it to whom {name} is to be known by\npublic = "{public.decode()}"\n'


def secret_text(name: str, pair: KeyPair) -> str:
    """What NAME.secret holds."""
    head = f"# the keys of {name}: whoever reads this file is {name}\n"
    return f'{head}public = "{pair.public.decode()}"\nsecret = "{pair.secret.decode()}"\n'


def read_public(text: str) -> bytes:
    """The public key of a NAME.pub, in Z85; `ValueError` says what is wrong, to stand behind the file's name."""
    table = read_table(text)
    if "secret" in table:
        raise ValueError("holds a secret key; put the NAME.pub there that `chp keygen` wrote beside it, and this away")
    return key_of(table, "public")


def read_secret(text: str) -> KeyPair:
    """The pair of a NAME.secret; `ValueError` as of `read_public`."""
    table = read_table(text)
    return KeyPair(key_of(table, "public"), key_of(table, "secret"))


def read_table(text: str) -> dict[str, object]:
    """A file of keys as TOML; the error quotes nothing of it."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise ValueError("is not TOML; write lines of name = value, as `chp keygen` does") from None


def key_of(table: dict[str, object], name: str) -> bytes:
    """One key of a table, in Z85."""
    found = table.get(name)
    if not isinstance(found, str):
        raise ValueError(f'has no line {name} = "..."; `chp keygen` writes such files')
    try:
        decode(found)
    except ValueError as error:
        raise ValueError(f"has a {name} key that can't be one: {error}") from None
    return found.encode()
