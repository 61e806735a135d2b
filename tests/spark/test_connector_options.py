"""Options: what is wrong is said by name, with what was meant; and rows become segments.

Or an error that names the column.
"""

import datetime as dt
import decimal
import json
from collections.abc import Callable
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from chp_client.spark import foreach_writer
from chp_client.spark import options as options_module
from chp_client.spark.datasource import ChpDataSource
from chp_client.spark.foreach import foreach_batch, purpose
from chp_client.spark.options import OPTIONS, BadOption, parse, reads_changes, table
from chp_client.spark.progress import Progress, say
from chp_client.spark.progress import log as progress_log
from chp_client.spark.values.fields import BadDataFrame
from chp_client.spark.values.rows import PART_BYTES, Shape

SERVERS = {"servers": "tcp://a:5556,tcp://b:5566"}


def segments(options: dict[str, str], **columns: object) -> list[tuple[list[str], list[bytes], Any]]:
    batch = pa.record_batch(columns)
    shape = Shape(parse({**SERVERS, **options}), batch.schema.names)
    return [(s.keys, s.values, s.extras) for s in shape.segments(batch)]


def test_option_names_ignore_case_and_options_have_defaults() -> None:
    options = parse(
        {"SERVERS": "tcp://a:5556, tcp://b:5566", "Confirm.Overwrite": "TRUE", "txnappid": "x", "txnVersion": "7"}
    )
    assert options["servers"] == ["tcp://a:5556", "tcp://b:5566"] and options["confirm.overwrite"] is True
    assert (options["applicationId"], options["version"], options["key"]) == ("x", 7, None)
    assert parse({**SERVERS, "checkpointLocation": "/x"})["subtree"] == "", "Spark's own are passed over"
    assert len(table().splitlines()) == len(OPTIONS) + 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "option servers is missing"),
        ({"servers": ""}, "option servers is '': server '' is not tcp"),
        ({"servers": "local/host"}, "is not tcp://host:port"),
        ({"provider": "chp", **SERVERS}, "can't be a table of Spark's catalog.*use CREATE TEMPORARY VIEW"),
        ({**SERVERS, "key.tmplate": "x"}, "key.tmplate is not known; did you mean key.template"),
        ({**SERVERS, "zzz": "x"}, "zzz is not known; there are servers, clientFile, replicas, subtree"),
        ({**SERVERS, "path": "/rates/"}, "option path is not used.*subtree"),
        ({**SERVERS, "subtree": "rates"}, "subtree is 'rates'.*'/rates/'"),
        ({**SERVERS, "codec": "pickle"}, "codec is 'pickle': it is one of raw, json, msgpack"),
        ({**SERVERS, "confirm.overwrite": "yes"}, "it is true or false"),
        ({**SERVERS, "ttl": "0"}, "ttl is '0': it is seconds above 0"),
        ({**SERVERS, "timeout": "soon"}, "timeout is 'soon': it is a number of seconds"),
        ({**SERVERS, "partitions": "0"}, "partitions is '0'"),
        ({**SERVERS, "partitions": "9" * 30}, "it is a number from 1 to 100000"),
        ({**SERVERS, "partitions": "9" * 5000}, "it is a number from 1 to 100000"),
        ({**SERVERS, "partitions": "\u00b2"}, "it is a number from 1 to 100000"),
        ({**SERVERS, "maxOffsetsPerTrigger": "9" * 30}, "it is a number from 1 to 9223372036854775807"),
        ({**SERVERS, "txnAppId": "a", "applicationId": "b"}, "txnAppId and applicationId are two names of one option"),
        ({**SERVERS, "startingOffsets": "42"}, "of keys it is such as 1.42"),
        ({**SERVERS, "startingOffsets": '{"epoch": 1}'}, "it is earliest, latest, snapshot, or an offset"),
        ({**SERVERS, "startingOffsets": '{"epoch": 32768, "sequence": 1}'}, "it is earliest, latest, snapshot, or an"),
        ({**SERVERS, "startingOffsets": '{"epoch": 1, "sequence": 281474976710656}'}, "it is earliest, latest"),
        ({**SERVERS, "version": "-1"}, "version is '-1'"),
        ({**SERVERS, "applicationId": ""}, "it has 1 to 256 characters"),
    ],
)
def test_wrong_options_are_refused_by_name(given: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption, match=said):
        parse(given)


COLUMNS = StructType([StructField("key", StringType()), StructField("value", StringType())])


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (lambda source: source.reader(COLUMNS), "maxRowsPerTrigger", "7"),
        (lambda source: source.streamReader(COLUMNS), "ttl", "60"),
        (lambda source: source.streamReader(COLUMNS), "pushDownPredicate", "true"),
        (lambda source: source.writer(COLUMNS, False), "maxRowsPerTrigger", "7"),
        (lambda source: source.streamWriter(COLUMNS, False), "startingOffsets", "earliest"),
        (lambda source: foreach_batch(**source.options), "partitions", "8"),
        (lambda source: foreach_writer(**source.options), "mode", "permissive"),
    ],
)
def test_an_option_that_the_job_does_nothing_with_is_refused(
    make: Callable[[Any], object], name: str, value: str
) -> None:
    with pytest.raises(BadOption, match=f"option {name} is for .* does nothing with it: leave it out"):
        make(ChpDataSource({**SERVERS, name: value}))


def test_a_sink_of_a_stream_refuses_a_version() -> None:
    with pytest.raises(BadOption, match="option version is the batch id here"):
        ChpDataSource({**SERVERS, "applicationId": "a", "version": "1"}).streamWriter(COLUMNS, False)


def test_batch_reads_and_writes_warn_of_an_option_for_the_other_one(caplog: pytest.LogCaptureFixture) -> None:
    """A view in SQL has one set of options for both."""
    options_module.warned.clear()
    source = ChpDataSource({**SERVERS, "ttl": "60", "partitions": "8"})
    source.reader(COLUMNS)
    source.writer(COLUMNS, False)
    assert [record.message for record in caplog.records] == [
        "option ttl is for write, and spark.read does nothing with it",
        "option partitions is for read, stream, and df.write does nothing with it",
    ]


def test_starting_offsets_may_be_an_epoch_and_a_sequence() -> None:
    assert parse({**SERVERS, "startingOffsets": '{"epoch": 1, "sequence": 42}'})["startingOffsets"] == {
        "epoch": 1,
        "sequence": 42,
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingOffsets": "earliest", "startingTimestamp": "2026-01-05"}, "a read has one start"),
        ({"startingOffsets": "earliest", "endingRevision": "1.2", "endingTimestamp": "2026-01-05"}, "has one end"),
        ({"endingRevision": "1.2"}, "option endingRevision needs a start"),
        ({"startingOffsets": "latest"}, "which is for streams: a read of changes has earliest or an offset"),
    ],
)
def test_invalid_combinations_of_change_options_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption, match=said):
        reads_changes(parse({**SERVERS, **given}))


def test_a_stream_or_a_start_option_reads_changes() -> None:
    assert not reads_changes(parse(SERVERS)) and reads_changes(parse(SERVERS), stream=True)
    given = parse({**SERVERS, "startingOffsets": "1.42", "endingRevision": "1.50"})
    assert reads_changes(given) and given["startingOffsets"] == {"epoch": 1, "sequence": 42}
    with pytest.raises(BadOption, match=r"endingRevision is for spark\.read; a stream ends by its trigger"):
        reads_changes(given, stream=True)
    day = parse({**SERVERS, "startingTimestamp": "2026-01-05"})["startingTimestamp"]
    assert day == dt.datetime(2026, 1, 5, tzinfo=dt.UTC), "without a zone it is UTC"
    for name, text in (("startingTimestamp", "yesterday"), ("endingRevision", "last"), ("startingOffsets", "1.x")):
        with pytest.raises(BadOption, match=name):
            parse({**SERVERS, name: text})


def test_an_operation_column_says_which_rows_delete() -> None:
    given = {"operation": "op"}
    found = segments(given, key=["/a", "/b", "/c"], value=["1", None, "3"], op=["set", "delete", "delete"])
    assert found == [(["/a", "/b", "/c"], [b"1", b"", b""], {"d": [1, 2]})]
    found = segments({**given, "codec": "json"}, key=["/a", "/b"], bid=[1.5, 2.5], op=["delete", "set"])
    assert found == [(["/a", "/b"], [b"", b'{"bid":2.5}'], {"d": [0]})]
    with pytest.raises(BadDataFrame, match=r"column 'op' has 'upsert' in row 1"):
        segments(given, key=["/a", "/b"], value=["1", "2"], op=["set", "upsert"])
    with pytest.raises(BadDataFrame, match="column 'op' has None in row 0"):
        segments(given, key=["/a", "/b"], value=["1", "2"], op=pa.array([None, "set"]))
    with pytest.raises(BadDataFrame, match="column 'op' is int64; an operation is text"):
        segments(given, key=["/a"], value=["1"], op=[1])
    with pytest.raises(BadDataFrame, match="is null in row 0 of a batch"):
        segments(given, key=["/a"], value=pa.array([None], pa.string()), op=["set"])
    assert (
        segments(given, key=pa.array([], pa.string()), value=pa.array([], pa.string()), op=pa.array([], pa.string()))
        == []
    )


def test_progress_is_a_line_every_few_seconds() -> None:
    now, lines = [0.0], list[str]()
    progress = Progress("partition 3", "rows staged", lambda: now[0], lines.append)
    for second in range(12):
        now[0] = float(second)
        progress.add(1_000)
    assert lines == [
        "partition 3: 6,000 rows staged, 1,200 a second",
        "partition 3: 11,000 rows staged, 1,100 a second",
    ]


def test_progress_goes_to_standard_error_without_a_log_handler(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "chp_client.progress"):
        say("half")
    assert caplog.messages == ["half"] and not capsys.readouterr().err
    monkeypatch.setattr(progress_log, "propagate", False)
    say("all")
    assert capsys.readouterr().err == "chp: all\n"


def test_key_and_value_columns() -> None:
    assert segments({}, key=["/a", "/b"], value=["1", "é"]) == [(["/a", "/b"], [b"1", "é".encode()], None)]
    assert segments({"key": "k", "value": "v"}, v=[b"\0"], k=["/a"], more=[1]) == [(["/a"], [b"\0"], None)]


def test_a_key_template_takes_text_numbers_and_days() -> None:
    columns = {"base": ["EUR"], "n": [7], "day": [dt.date(2026, 1, 5)], "value": ["x"]}
    assert segments({"key.template": "/r/{base}/{n}/{day}"}, **columns)[0][0] == ["/r/EUR/7/2026-01-05"]


def test_codecs_encode_the_columns_beside_the_key() -> None:
    columns = {
        "key": ["/a"],
        "bid": [1.5],
        "n": pa.nulls(1),
        "day": [dt.date(2026, 1, 5)],
        "p": [decimal.Decimal("1.10")],
    }
    wanted = {"bid": 1.5, "n": None, "day": "2026-01-05", "p": "1.10"}
    assert json.loads(segments({"codec": "json"}, **columns)[0][1][0]) == wanted
    assert msgpack.unpackb(segments({"codec": "msgpack"}, **columns)[0][1][0]) == wanted
    assert segments({"codec": "json", "value": "bid"}, **columns)[0][1] == [b"1.5"]


@pytest.mark.parametrize(("codec", "decode"), [("json", json.loads), ("msgpack", msgpack.unpackb)])
def test_codecs_write_a_map_column_as_an_object(codec: str, decode: Callable[[bytes], object]) -> None:
    """A map is an object as one of several columns, and as the only one."""
    maps = pa.array([[("EUR", 1.5)], None], pa.map_(pa.string(), pa.float64()))
    columns = {"key": ["/a", "/b"], "m": maps}
    assert [decode(v) for v in segments({"codec": codec}, **columns)[0][1]] == [{"m": {"EUR": 1.5}}, {"m": None}]
    (found,) = segments({"codec": codec, "value": "m", "null.value": "delete"}, **columns)
    assert decode(found[1][0]) == {"EUR": 1.5} and found[2] == {"d": [1]}


def test_nulls_ttls_and_revisions() -> None:
    columns = {"key": ["/a", "/b", "/c"], "value": ["1", None, "3"], "ttl": [None, 2, 0.5], "rev": [7, None, 9]}
    (found,) = segments({"null.value": "delete", "ttl": "ttl", "revision": "rev"}, **columns)
    assert found[1] == [b"1", b"", b"3"]
    assert found[2] == {"d": [1], "t": [[1, 2], [2000, 500]], "n": [[0, 2], [7, 9]]}
    assert segments({"ttl": "1.5"}, key=["/a"], value=["1"])[0][2] == {"t": 1500}


def test_large_batches_are_cut_into_segments_with_their_columns() -> None:
    n = 10
    columns = {
        "key": [f"/{i}" for i in range(n)],
        "value": [b"x" * (PART_BYTES // 4)] * (n - 1) + [None],
        "ttl": list(range(1, n + 1)),
    }
    found = segments({"null.value": "delete", "ttl": "ttl"}, **columns)
    assert len(found) >= 3 and [key for keys, _, _ in found for key in keys] == columns["key"]
    assert [ms for _, _, extras in found for ms in extras["t"][1]] == [1000 * i for i in range(1, n + 1)]
    assert found[-1][2]["d"] == [len(found[-1][0]) - 1]


@pytest.mark.parametrize(
    ("options", "columns", "said"),
    [
        ({}, {"k": ["/a"], "value": ["1"]}, "no column 'key' for the key; the frame has k, value. Name another"),
        ({}, {"key": ["/a"], "v": ["1"]}, "no column 'value' for the value.*option value"),
        ({"key.template": "/{base}"}, {"value": ["1"]}, "no column 'base' for the key of the template '/{base}'"),
        ({"key.template": "/{base"}, {"value": ["1"], "base": ["x"]}, "a brace without its partner"),
        ({"ttl": "soon"}, {"key": ["/a"], "value": ["1"]}, "no column 'soon' for the ttl"),
        ({"revision": "rev"}, {"key": ["/a"], "value": ["1"]}, "no column 'rev' for the revision"),
        ({"codec": "json"}, {"key": ["/a"]}, "no column is left for the value"),
        ({}, {"key": [1], "value": ["1"]}, "column 'key' is int64; a key is text"),
        ({"key.template": "/{x}"}, {"x": [1.5], "value": ["1"]}, "column 'x' is double"),
        ({}, {"key": ["/a"], "value": [1.5]}, "column 'value' is double; a value is binary or text"),
        ({"codec": "json"}, {"key": ["/a"], "x": [dt.timedelta(1)]}, "column 'x' is duration.*no codec here takes"),
        ({"codec": "json"}, {"key": ["/a", "/b"], "x": [1, float("nan")]}, "'x' can't be written as json in row 1"),
        ({"codec": "json"}, {"key": ["/a"], "x": pa.array([None], pa.binary())}, "column 'x' is or has binary.*base64"),
        ({"codec": "json"}, {"key": ["/a"], "x": [{"y": [b"1"]}]}, "column 'x' is or has binary.*codec msgpack"),
        ({"key.template": "/fixed"}, {"value": ["1"]}, "key template '/fixed' names no column"),
        ({}, {"key": ["/a", None], "value": ["1", "2"]}, "key 'key' is null in row 1"),
        ({}, {"key": ["/a", "/b"], "value": ["1", None]}, "column 'value' is null in row 1.*null.value=delete"),
        ({}, {"key": ["/a", ""], "value": ["1", "2"]}, "column 'key' has a key that can't be one: the key is empty"),
        ({"subtree": "/r/"}, {"key": ["/r/1", "/s"], "value": ["1", "2"]}, "key '/s' is not in the subtree '/r/'"),
        ({}, {"key": ["/a"], "value": [b"x" * (16 * 2**20 + 1)]}, "column 'value' has a value of 16777217 bytes"),
        ({"ttl": "t"}, {"key": ["/a"], "value": ["1"], "t": [-1]}, "column 't' is -1"),
        ({"revision": "r"}, {"key": ["/a"], "value": ["1"], "r": [-1]}, "column 'r' has -1"),
        ({"revision": "r"}, {"key": ["/a"], "value": ["1"], "r": ["1"]}, "column 'r' is string"),
    ],
)  # fmt: skip
def test_bad_data_frames_are_refused(options: dict[str, str], columns: dict[str, object], said: str) -> None:
    with pytest.raises(BadDataFrame, match=said):
        segments(options, **columns)


def test_foreach_batch_takes_servers_as_a_list() -> None:
    foreach_batch(servers=["tcp://a:5556", "b:5566"], subtree="/a/")
    with pytest.raises(BadOption, match="server 'a/b' is not tcp"):
        foreach_batch(servers=["tcp://a:5556", "a/b"])


def test_the_option_ending_revision_takes_dotted_text_or_a_number() -> None:
    for text in ("1.88", "281474976710744"):
        assert (
            parse({**SERVERS, "startingOffsets": "earliest", "endingRevision": text})["endingRevision"]
            == (1 << 48) + 88
        )


def test_a_sink_is_told_apart_in_the_same_way_whether_the_usual_key_is_named_or_not() -> None:
    servers = {"servers": "tcp://127.0.0.1:5556"}
    assert purpose(parse(servers)) == purpose(parse({**servers, "key": "key"})) == "4bcbf7c6beea75d4"
    assert purpose(parse({**servers, "key": "id"})) != purpose(parse(servers))
