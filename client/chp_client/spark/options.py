"""Every option of format("chp") in one table: its name, its values, and its default.

    options = parse({"servers": "tcp://a:5556,tcp://b:5566", "subtree": "/rates/", "key.template": "/rates/{base}/{quote}"})
    options["null.value"]           -> "error"

Names are taken in upper or lower case. An option that is not in the table is an error that suggests the nearest one. A
job that does not start is better than a misspelt `confirm.overwrite` or `ttl` that is silently ignored.
"""

# ruff: noqa: E501 (a table has a row a line)

import datetime as dt
import difflib
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from chp.errors import BadInput
from chp.keys import check_subtree
from chp.limits import DEFAULT
from chp.numbers import EPOCH_MAX, SEQUENCE_MASK, epoch_of, sequence_of
from chp.numbers import parse as parse_revision
from chp.topics import check_topic

from .. import checks, mount_table
from ..clientfile import ClientFile
from ..mount_table import Mounts

log = logging.getLogger(__name__)
# Spark passes these options of its own to a sink too. `parse` ignores them.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode"})
# Spark's catalog adds these to the options of a table. `parse` recognises such a table by them, and refuses it.
OF_THE_CATALOG = frozenset({"provider", "owner"})
# A read has at most this many tasks. Before the first task runs, Spark's planner makes an object for each task, which
# takes a second for 100,000 tasks.
PARTITIONS_MAX = 100_000
NUMBER_MAX = (1 << 63) - 1
# The column with the keys, if the option `key` names none.
KEY_COLUMN = "key"


class BadOption(BadInput):
    """The error for an option that is unknown, missing or has a wrong value. Its text says what to give."""


@dataclass(frozen=True, slots=True)
class Option:
    """A row of the table. `read` makes a value of the option's text, or raises a `ValueError` that says what is wanted.

    `where` names the jobs that take the option: "all", or some of "write", "read" and "stream".
    """

    name: str
    where: str
    read: Callable[[str], Any]
    default: Any
    takes: str
    help: str
    aliases: tuple[str, ...] = ()


def _servers(text: str) -> list[str] | Mounts:
    if mount_table.is_text(text):
        return Mounts.of_text(text)
    return _addresses(text)


def _addresses(text: str) -> list[str]:
    return [snapshot_port for snapshot_port, _, _ in checks.endpoints_of(text)]


def _client_file(text: str) -> ClientFile:
    try:
        return ClientFile.read(text)
    except BadInput as error:
        raise ValueError(str(error)) from None


def _choice(*names: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in names:
            raise ValueError(f"it is one of {', '.join(names)}")
        return text.lower()

    return read


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it is true or false")
    return text.lower() == "true"


def _count(text: str) -> int:
    return _from(1, text, NUMBER_MAX)


def _partitions(text: str) -> int:
    return _from(1, text, PARTITIONS_MAX)


def _number(text: str) -> int:
    return _from(0, text, NUMBER_MAX)


def _from(least: int, text: str, most: int) -> int:
    digits = text.strip()
    # Python's `int` refuses a text of thousands of digits, so the length is checked first.
    if not digits.isdecimal() or len(digits) > 100 or not least <= int(digits) <= most:
        raise ValueError(f"it is a number from {least} to {most}")
    return int(digits)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError("it is a number of seconds above 0")
    return seconds


def _ttl(text: str) -> float | str:
    try:
        seconds = float(text)
    except ValueError:
        # The text names a column.
        return text
    if not 0 < seconds <= DEFAULT.ttl_s_max:
        raise ValueError(f"it is seconds above 0 and at most {DEFAULT.ttl_s_max:.0f}, or the name of a column")
    return seconds


def _name(text: str) -> str:
    if not 0 < len(text) <= 256:
        raise ValueError("it has 1 to 256 characters")
    return text


def _topic(text: str) -> str:
    try:
        return check_topic(text)
    except BadInput as error:
        raise ValueError(str(error)) from None


def _end(text: str) -> int | None:
    try:
        return None if text.lower() == "latest" else _number(text)
    except ValueError as error:
        raise ValueError(f"{error}, or latest") from None


def _start(text: str) -> str | int | dict[str, Any]:
    if text.lower() in ("earliest", "latest", "snapshot"):
        return text.lower()
    if text.strip().isdigit():
        return _number(text)
    if "." in text and "{" not in text:
        number = _revision(text)
        return {"epoch": epoch_of(number), "sequence": sequence_of(number)}
    try:
        offset = json.loads(text)
        bounds = {"epoch": EPOCH_MAX, "sequence": SEQUENCE_MASK}
        good = all(type(offset[name]) is int and 0 <= offset[name] <= most for name, most in bounds.items())
    except (ValueError, TypeError, KeyError):
        good = False
    if not good:
        raise ValueError(
            'it is earliest, latest, snapshot, or an offset such as {"epoch": 1, "sequence": 42} or 1.42; of a topic '
            "earliest, latest, or the offset of a message"
        )
    return {"epoch": offset["epoch"], "sequence": offset["sequence"]}


def _revision(text: str) -> int:
    try:
        return parse_revision(text)
    except BadInput as error:
        raise ValueError(str(error)) from None


def _moment(text: str) -> dt.datetime:
    try:
        moment = dt.datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("it is a day or a time, such as 2026-01-05 or 2026-01-05T14:30:00+01:00") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)


OPTIONS = (
    Option("servers", "all", _servers, None, "tcp://host:port,...", "one server, or both of a pair; its replicas may follow"),
    Option(
        "clientFile", "all", _client_file, None, "a path",
        "in place of `servers`, where they have keys: a client file, the same path on the driver and all executors",
    ),
    Option("replicas", "all", _addresses, None, "tcp://host:port,...", "replicas of the pair, which are read in place of `servers`; writes go to `servers`; with `clientFile` some of its servers"),
    Option("subtree", "all", check_subtree, "", "/.../", "what is read; where every written key has to be; default: everything"),
    Option("topic", "all", _topic, None, "name", "messages of a topic, in place of keys: `value` is one, with a `key` or none"),
    Option("timeout", "all", _seconds, 120.0, "seconds", "how long the servers may give no answer, a failover included"),
    Option("codec", "all", _choice("raw", "json", "msgpack"), "raw", "raw, json, msgpack", "how a value is made of columns, or columns of it"),
    Option("key", "write", _name, None, "column", "the column with the keys; default `key`, which messages may lack"),
    Option("key.template", "write", _name, None, "/a/{column}/b", "the key made of several columns, in place of `key`"),
    Option("value", "write", _name, None, "column", "the column with the values; default `value`, or with a codec all columns that are not named elsewhere, as an object with their names"),
    Option("ttl", "write", _ttl, None, "seconds or column", "how long a key lives if it is not written again; null in the column: for ever"),
    Option("revision", "write", _name, None, "column", "write a row only if its key has no later revision than this"),
    Option("operation", "write", _name, None, "column", "the column that says what a row does: set, or delete, which needs no value; as a stream of changes has it"),
    Option("headers", "write", _name, None, "column", "of a topic: the column with the headers of the messages, array<struct<key:string,value:binary>>; without a codec it is `headers` if there is one"),
    Option("null.value", "write", _choice("error", "delete"), "error", "error, delete", "what a null value means"),
    Option("confirm.overwrite", "write", _truth, False, "true", "mode overwrite (and output mode complete) replaces the whole subtree: say that you mean it"),
    Option("applicationId", "write", _name, None, "text", "with `version`: a job run again is recognised; of a stream it is added to the query id, to tell its sinks apart", ("txnAppId",)),
    Option("version", "write", _number, None, "number", "of `applicationId`, higher in each new run; streams have their batch id", ("txnVersion",)),
    Option("partitions", "read, stream", _partitions, None, "number", "how many tasks read a snapshot, a topic, or a stream's changes; default: one for each 500,000 keys or messages, at most 64, and one for changes; 100,000 at most"),
    Option("pushDownPredicate", "read", _truth, False, "true", "filters on how the key begins reach the servers; only for a frame that is used once (see above)"),
    Option("mode", "read, stream", _choice("permissive", "dropmalformed", "failfast"), "failfast", "PERMISSIVE, DROPMALFORMED, FAILFAST", "what becomes of a value that is not of the codec, or does not fit its column: null, the row is left out, or the read fails"),
    Option("columnNameOfCorruptRecord", "read, stream", _name, "_corrupt_record", "column", "in mode PERMISSIVE, a column of the schema (string or binary) that gets the whole value where it could not be read; else null"),
    Option("startingOffsets", "read, stream", _start, None, "earliest, latest, snapshot, an offset", "where a new query starts: the oldest change retained, now, everything held and then the changes (the default; of a topic earliest); a read has the changes from there (earliest, an offset), in place of a snapshot"),
    Option("endingOffsets", "read", _end, None, "latest, an offset", "of a topic: the offset of the first message that is not read any more"),
    Option("group", "stream", _topic, None, "name", "of a topic: a group whose position follows the query, so that it keeps messages and shows how far the query is"),
    Option("startingTimestamp", "read, stream", _moment, None, "a day or time", "in place of startingOffsets: the changes since then, by the servers' clocks; without a zone it is UTC"),
    Option("endingRevision", "read", _revision, None, "1.42", "with a start: the last revision that is read; default: what there is when the query is planned"),
    Option("endingTimestamp", "read", _moment, None, "a day or time", "in place of endingRevision: what is of then or later is left out"),
    Option("maxOffsetsPerTrigger", "stream", _count, None, "number", "how many messages a micro-batch has at most; about how many changes, as it ends with a whole record"),
    Option("maxRowsPerTrigger", "stream", _count, None, "number", "how many rows a micro-batch has at most; a record of changes that has more is cut; of a subtree the driver counts them"),
    Option("maxBytesPerTrigger", "stream", _count, None, "number", "how many bytes of keys and values a micro-batch has at most, but one row at least; the driver reads them too"),
    Option("minRowsPerTrigger", "stream", _count, None, "number", "a micro-batch waits until there are so many messages, or changes of the store"),
    Option("maxTriggerDelay", "stream", _seconds, 900.0, "seconds", "how long it waits for them at most"),
    Option("failOnDataLoss", "read, stream", _truth, True, "true, false", "whether a query fails when changes it has not seen are not retained any more; else it goes on with the oldest"),
)  # fmt: skip
_BY_NAME = {name.lower(): option for option in OPTIONS for name in (option.name, *option.aliases)}


_CATALOG = (
    "The tables of Spark's catalog, of CREATE TABLE and saveAsTable, do not give a Python source its options: "
    "use CREATE TEMPORARY VIEW ... USING chp OPTIONS (...)"
)


def parse(given: Mapping[str, str], *, several: bool = False) -> dict[str, Any]:
    """Return the value of every option by its name in the table. Raise `BadOption`.

    The value of `servers` is the addresses of one pair. With `several` and a subtree that spans several mounts, the
    value is the mounts.
    """
    values = {option.name: option.default for option in OPTIONS}
    names: dict[str, str] = {}
    if any(name.lower() in OF_THE_CATALOG for name in given):
        raise BadOption(f"chp can't be a table of Spark's catalog. {_CATALOG}")
    for name, text in given.items():
        if name.lower() in SPARKS_OWN:
            continue
        option = _BY_NAME.get(name.lower())
        if option is None:
            raise BadOption(_unknown(name))
        if (other := names.setdefault(option.name, name)) != name:
            raise BadOption(f"options {other} and {name} are two names of one option; give one of them")
        try:
            values[option.name] = option.read(str(text))
        except ValueError as error:
            raise BadOption(f"option {option.name} is {text!r}: {error}") from None
    if values["clientFile"] is not None:
        if values["servers"]:
            raise BadOption(
                "both options servers and clientFile are given; the file names the servers: leave servers out"
            )
        values["servers"] = values["clientFile"].mounts or values["clientFile"]
    if not values["servers"]:
        raise BadOption(
            "option servers is missing; give one or two, such as tcp://127.0.0.1:5556,tcp://127.0.0.1:5566"
            f". ({_CATALOG})"
        )
    if isinstance(values["servers"], Mounts):
        values["servers"] = _of_mounts(values["servers"], values["subtree"], values["topic"], several)
    if values["replicas"]:
        values["replicas"] = _known_replicas(values)
    check_topic_options(values)
    return values


# For each direction of a job: the word of `Option.where` for it, and the name of the job in texts for the user.
DIRECTIONS = {
    "read": ("read", "spark.read"),
    "stream": ("stream", "readStream"),
    "write": ("write", "df.write"),
    "sink": ("write", "a stream's sink"),
}
# A view in SQL is read and written with one set of options. So an option for the other direction is no error there.
_OTHER_SIDE = {"read": "write", "write": "read"}
warned: set[tuple[str, str]] = set()


def check_direction(given: Mapping[str, str], direction: str) -> None:
    """Raise `BadOption` for an option that a job of this direction does not use.

    Only log a warning if the option may belong to a view in SQL, because a view has one set of options for reading and
    writing.
    """
    fits, name = DIRECTIONS[direction]
    for option in (found for each in given if (found := _BY_NAME.get(each.lower())) is not None):
        if option.where == "all" or fits in option.where.split(", "):
            continue
        said = f"option {option.name} is for {option.where}, and {name} does nothing with it"
        if _OTHER_SIDE.get(direction) not in option.where.split(", "):
            raise BadOption(f"{said}: leave it out")
        if (option.name, direction) not in warned:
            warned.add((option.name, direction))
            log.warning("%s", said)


def of_one_pair(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a job that reads or writes one pair; raise `BadOption` if its subtree spans mounts."""
    servers = options["servers"]
    if not isinstance(servers, Mounts):
        return options
    return {**options, "servers": _of_mounts(servers, options["subtree"], None, several=False)}


def _of_mounts(mounts: Mounts, subtree: str, topic: str | None, several: bool) -> Sequence[str] | Mounts:
    """Return the servers of the mount that has a topic or a subtree, or the mounts if several have the subtree."""
    try:
        if topic is not None:
            return mounts.servers[mounts.of_topic(topic)]
        return mounts if several and len(mounts.split([subtree])) > 1 else mounts.alone(subtree)
    except BadInput as error:
        raise BadOption(f"option {'topic' if topic else 'subtree'}: {error}") from None


def _known_replicas(options: Mapping[str, Any]) -> Sequence[str]:
    """Return the addresses of the option replicas, with the keys of the client file if one is given."""
    if isinstance(options["servers"], Mounts):
        raise BadOption(
            f"option replicas is of one pair, and the subtree {options['subtree']!r} spans several mounts; name a "
            "subtree of one mount, or leave replicas out"
        )
    replicas: list[str] = options["replicas"]
    if (file := options["clientFile"]) is None:
        return replicas
    try:
        return cast(Sequence[str], file.only(replicas))
    except BadInput as error:
        raise BadOption(f"option replicas: {error}") from None


CHANGES = ("startingOffsets", "startingTimestamp", "endingRevision", "endingTimestamp")
OF_KEYS = (
    "subtree",
    "ttl",
    "revision",
    "operation",
    "null.value",
    "confirm.overwrite",
    "pushDownPredicate",
    *CHANGES[1:],
)


def check_topic_options(options: Mapping[str, Any], *, stream: bool = False, reads: bool = False) -> None:
    """Raise `BadOption` if an option of keys is given with a topic, or an option of messages without a topic."""
    if options["topic"] is None:
        if options["group"] is not None:
            raise BadOption("option group is of messages: it needs the option topic")
        if options["headers"] is not None:
            raise BadOption("option headers is of messages: it needs the option topic; keys have no headers")
        if options["endingOffsets"] is not None:
            raise BadOption(
                "option endingOffsets is of messages: it needs the option topic; for keys see endingRevision"
            )
        if type(options["startingOffsets"]) is int:
            raise BadOption(
                f"option startingOffsets is {options['startingOffsets']}, an offset of a topic's message, and there is no "
                "option topic; of keys it is such as 1.42"
            )
        return
    defaults = {option.name: option.default for option in OPTIONS}
    if given := next((name for name in OF_KEYS if options[name] != defaults[name]), None):
        raise BadOption(f"option {given} is for keys, and option topic is given: leave one of them out")
    start = options["startingOffsets"]
    if start not in (None, "earliest", "latest") and type(start) is not int:
        raise BadOption("option startingOffsets of a topic is earliest, latest, or the offset of a message, such as 17")
    if not stream and options["group"] is not None and reads:
        raise BadOption("option group is for readStream; a batch read moves no group")
    if stream and options["endingOffsets"] is not None:
        raise BadOption("option endingOffsets is for spark.read; a stream ends by its trigger, as availableNow=True")


def reads_changes(options: Mapping[str, Any], *, stream: bool = False) -> bool:
    """Return True if a read asks for changes. A stream always does.

    Raises `BadOption` for options that exclude each other, or need another one.
    """
    start, since, end, till = (options[name] for name in CHANGES)
    if start is not None and since is not None:
        raise BadOption("both options startingOffsets and startingTimestamp are given; a read has one start")
    if end is not None and till is not None:
        raise BadOption("both options endingRevision and endingTimestamp are given; a read has one end")
    given = next((name for name in CHANGES[2:] if options[name] is not None), None)
    if stream and given:
        raise BadOption(f"option {given} is for spark.read; a stream ends by its trigger, as availableNow=True")
    if stream or not any(options[name] is not None for name in CHANGES):
        return stream
    if start is None and since is None:
        raise BadOption(f"option {given} needs a start: startingOffsets (earliest, or an offset) or startingTimestamp")
    if start in ("latest", "snapshot"):
        raise BadOption(
            f"option startingOffsets is {start!r}, which is for streams: a read of changes has earliest or an offset, "
            "and one of what is held has none of these options"
        )
    return True


def _unknown(name: str) -> str:
    if name.lower() == "path":
        return "option path is not used: give save() or load() no argument, and the option subtree"
    close = difflib.get_close_matches(name.lower(), list(_BY_NAME), n=1, cutoff=0.5)
    meant = f"did you mean {_BY_NAME[close[0]].name}?" if close else f"there are {', '.join(o.name for o in OPTIONS)}"
    return f"option {name} is not known; {meant}"


def table() -> str:
    """Return the table as Markdown, for the documents."""
    rows = ["| option | for | takes | default | |", "|---|---|---|---|---|"]
    for o in OPTIONS:
        default = "" if o.default is None else str(o.default).lower() if isinstance(o.default, bool) else f"{o.default}"
        names = ", ".join(f"`{name}`" for name in (o.name, *o.aliases))
        rows.append(f"| {names} | {o.where} | {o.takes} | {default} | {o.help} |")
    return "\n".join(rows)
