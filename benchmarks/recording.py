"""Recording and replaying: the Guide's market data, 100,000 messages of 100 bytes a second, and as fast as it goes.

    record, 100,000/s    one key a call at that pace; `late_s`: how long after the last acknowledgement all is in files
    record, set_many     as fast as the writer can; the rate counts until all is in files
    replay, max          a recording into an empty store, until all is acknowledged

Writer, server and recorder are a process each; the server is alone and keeps its records in memory. `missing` counts
sets that are not in the files.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

from .roles import Meter, Pipe, Role, closing_all
from .rounds import Round, in_turn, summary
from .servers import ChpServer
from .workload import KEYS, keys, values

SIZE = 100
PACE = 100_000
SLICE_S = 0.005


def run(quick: bool = False) -> dict[str, Any]:
    """Run the benchmark."""
    seconds, rounds = (2, 2) if quick else (8, 5)
    fast, replayed = (300_000, 300_000) if quick else (2_000_000, 2_000_000)
    with tempfile.TemporaryDirectory(prefix="chp-bench-") as folder:
        kept = Path(folder)
        cases = {
            "record, 100-byte values at 100,000/s": lambda: record_round(kept, PACE * seconds, PACE),
            "record, 100-byte values as fast as it goes": lambda: record_round(kept, fast, 0),
        }
        found = {name: _case(name, work, rounds) for name, work in cases.items()}
        recording = kept / "to-replay"
        record_round(recording, replayed, 0)
        [made] = recording.iterdir()
        name = "replay, 100-byte values, max"
        found[name] = _case(name, lambda: replay_round(made, replayed), rounds)
    return {"title": "Recording to Parquet, and replaying", "unit": "rows/s", "cases": found}


def _case(name: str, work: Any, rounds: int) -> dict[str, Any]:
    results = in_turn({"chp": work}, rounds)
    return {"contenders": {"chp": summary(results["chp"])}, "raw": results}


def record_round(folder: Path, sets: int, pace: int) -> Round:
    """Write `sets` sets while a recorder runs."""
    folder.mkdir(exist_ok=True)
    directory = tempfile.mkdtemp(dir=folder)
    with closing_all() as keep:
        server = keep(ChpServer(retain_memory_bytes=512 << 20))
        recorder = keep(Role(recorder_role, address=server.address, directory=directory))
        writer = keep(Role(writer_role, address=server.address))
        recorder.hear()
        writer.hear()
        meter = Meter(recorder=recorder, server=server, writer=writer)
        wrote = writer.ask(sets=sets, pace=pace)
        said = recorder.ask(stop=True)
        figures = meter.read(sets)
    seconds = said["end"] - wrote["begin"]
    return {
        "rate": sets / seconds,
        "written_a_s": sets / (wrote["end"] - wrote["begin"]),
        "late_s": said["end"] - wrote["end"],
        "missing": sets - said["rows"],
        "holes": said["holes"],
        "file_mib": said["file_bytes"] / (1 << 20),
        **figures,
    }


def replay_round(directory: Path, rows: int) -> Round:
    """Play a recording into a new server."""
    with closing_all() as keep:
        server = keep(ChpServer())
        player = keep(Role(replay_role, address=server.address))
        player.hear()
        meter = Meter(player=player, server=server)
        said = player.ask(directory=str(directory))
        return {"rate": said["rows"] / said["seconds"], "missing": rows - said["rows"], **meter.read(rows)}


# -- the processes


def writer_role(pipe: Pipe, address: str) -> None:
    """Set keys at a pace, one key a call; or, without a pace, a thousand keys a call."""
    from chp_client import Clone

    names, column = keys(), values(SIZE, 1)
    with Clone(address, None) as clone:
        clone.set("/up", b"").wait(30)
        pipe.say(up=True)
        todo = pipe.hear()
        begin = time.monotonic()
        if todo["pace"]:
            _paced(clone, names, column, todo["sets"], todo["pace"])
        else:
            for n in range(0, todo["sets"], 1000):
                at = n % KEYS
                clone.set_many((names[at : at + 1000], column[at : at + 1000]))
        clone.flush(timeout=120)
        pipe.say(begin=begin, end=time.monotonic())
        pipe.hear()


def _paced(clone: Any, names: list[str], column: list[bytes], sets: int, pace: int) -> None:
    done, begin = 0, time.monotonic()
    while done < sets:
        due = min(sets, int((time.monotonic() - begin) * pace))
        for i in range(done, due):
            clone.set(names[i % KEYS], column[i % KEYS])
        done = due
        time.sleep(SLICE_S)


def recorder_role(pipe: Pipe, address: str, directory: str) -> None:
    """Record until told to stop."""
    from chp_client.recording.files import files
    from chp_client.recording.recorder import record

    stop, begun, done = Event(), Event(), []

    def run() -> None:
        done.append(record(address, directory, "/bench/", start="end", stop=stop, say=lambda _: begun.set()))

    thread = Thread(target=run)
    thread.start()
    begun.wait(30)
    pipe.say(up=True)
    pipe.hear()
    stop.set()
    thread.join()
    end = time.monotonic()
    size = sum(each.path.stat().st_size for each in files(Path(directory)))
    pipe.say(end=end, rows=done[0].rows, holes=done[0].holes, file_bytes=size)
    pipe.hear()


def replay_role(pipe: Pipe, address: str) -> None:
    """Replay as fast as it goes."""
    from chp_client import Clone
    from chp_client.recording.replayer import replay

    with Clone(address, None) as clone:
        clone.set("/up", b"").wait(30)
        pipe.say(up=True)
        done = replay(pipe.hear()["directory"], clone)
        pipe.say(rows=done.rows, seconds=done.seconds)
        pipe.hear()
