"""The files of keys: each has a public key, and a secret file has the secret key too (SPEC.md, section 25).

    public = "..."                 NAME.pub, to be given away
    secret = "..."                 NAME.secret has both, and is its owner's alone

A key is 32 bytes, written in the 40 characters of Z85 (ZeroMQ's RFC 32). The files are TOML, so that they may have
comments. Only `secret_text` makes text with a secret in it; error texts have none.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUE = {digit: value for value, digit in enumerate(_DIGITS)}
KEY_CHARACTERS = 40
# People know a public key by this many of its characters.
SHOWN = 8
FILE_BYTES_MAX = 65_536


@dataclass(frozen=True, slots=True, repr=False)
class KeyPair:
    """A public and a secret key, in Z85; the secret one is never shown."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"KeyPair({shown(self.public)})"

    def __reduce__(self) -> str:
        raise TypeError("a pair of keys is not copied or pickled; name its file, and let it be read there")


def shown(public: bytes) -> str:
    """Return the beginning of a public key in Z85, by which people know it."""
    return public[:SHOWN].decode("ascii", "replace") + "..."


def decode(text: str) -> bytes:
    """Return the 32 bytes of a key in Z85; raise `ValueError` if the text is no key."""
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
    """Return 32 bytes as Z85."""
    text = ""
    for at in range(0, len(key), 4):
        number, group = int.from_bytes(key[at : at + 4], "big"), ""
        for _ in range(5):
            number, digit = divmod(number, 85)
            group = _DIGITS[digit] + group
        text += group
    return text.encode()


def public_text(name: str, public: bytes) -> str:
    """Return the text of NAME.pub."""
    return f'# the public key of {name}: give it to whom {name} is to be known by\npublic = "{public.decode()}"\n'


def secret_text(name: str, pair: KeyPair) -> str:
    """Return the text of NAME.secret."""
    head = f"# the keys of {name}: whoever reads this file is {name}\n"
    return f'{head}public = "{pair.public.decode()}"\nsecret = "{pair.secret.decode()}"\n'


def read_public(text: str) -> bytes:
    """Return the public key of a NAME.pub, in Z85. A caller puts the file's name in front of a `ValueError`."""
    table = read_table(text)
    if "secret" in table:
        raise ValueError("holds a secret key; put the NAME.pub there that `chp keygen` wrote beside it, and this away")
    return key_of(table, "public")


def read_secret(text: str) -> KeyPair:
    """Return the pair of a NAME.secret. A caller puts the file's name in front of a `ValueError`."""
    table = read_table(text)
    return KeyPair(key_of(table, "public"), key_of(table, "secret"))


def read_table(text: str) -> dict[str, object]:
    """Return the TOML of a file of keys; the error quotes nothing of the file."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise ValueError("is not TOML; write lines of name = value, as `chp keygen` does") from None


def key_of(table: dict[str, object], name: str) -> bytes:
    """Return one key of a table, in Z85."""
    found = table.get(name)
    if not isinstance(found, str):
        raise ValueError(f'has no line {name} = "..."; `chp keygen` writes such files')
    try:
        decode(found)
    except ValueError as error:
        raise ValueError(f"has a {name} key that can't be one: {error}") from None
    return found.encode()
