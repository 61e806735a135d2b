"""Every limit in one place, each with its reason (SPEC.md, sections 10 and 23).

A limit is part of the protocol when both sides must hold it (keys, values, batches), and a bound on memory or
time otherwise (windows, queues). Nothing in this project grows without one of these above it.
"""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds; `DEFAULT` is what every program uses unless a test or an operator says otherwise."""

    # -- the protocol
    key_bytes_max: int = 1024  # longer keys are values in disguise; a key is copied at every hop
    subtree_bytes_max: int = 1024  # a subtree is a prefix of keys
    value_bytes_max: int = 16 * MIB  # one value must fit one batch
    batch_items_max: int = 65_536  # bounds the time one batch holds the server's turn: about 30 ms
    batch_bytes_max: int = 16 * MIB  # bounds the memory one frame can ask of a peer
    frame_bytes_max: int = 17 * MIB  # a batch and its columns' overhead; sockets refuse more (ZMQ_MAXMSGSIZE)
    body_bytes_max: int = 17 * MIB - (64 << 10)  # of a batch in it: a record has headers beside
    question_bytes_max: int = 64 << 10  # a request on the snapshot port: a subtree and a dozen options
    ttl_s_max: float = 315_360_000.0  # ten years; what is meant to live longer needs no ttl
    properties_bytes_max: int = 4096  # RFC 12 names one property; the rest is somebody's note
    property_bytes_max: int = 1024
    subtrees_max: int = 64  # of one client: each is a channel with a batch of its own a turn

    # -- a client
    window_bytes: int = 64 * MIB  # unacknowledged sets kept for resending
    window_batches: int = 4096
    watch_queue_max: int = 100_000  # changes a slow watcher may fall behind before it is told so
    join_buffer_bytes: int = 256 * MIB  # batches held back while a snapshot arrives, parts until a record is whole
    copy_bytes_max: int = 16 * 1024 * MIB  # keys and values of one snapshot: one that never ends must not take it all

    # -- a server
    turn_messages_max: int = 1000  # messages drained from the collector before it acts: bounds a turn
    turn_bytes_max: int = MIB // 2  # of one turn, so of one record as it is published: what a slow reader's mark counts
    turn_messages_share: int = 4  # bytes of messages for topics count so much less there: they are not published
    record_items_max: int = 32_768  # of an open record; then a new one is begun, as a reader weighs it (unpacking.py)
    record_segments_max: int = 2048  # the same
    gather_items_max: int = 16_384  # keys looked at in one turn, of a large map that is read: 5 to 15 ms
    ending_keys_max: int = 4096  # deleted in one turn as their time, or their lease, is over: about 10 ms
    log_bytes_max: int = 64 * MIB  # records kept in memory for clients that come back
    log_records_max: int = 100_000
    pending_bytes_max: int = 64 * MIB  # of a passive: sets not yet seen published
    pending_batches_max: int = 100_000
    pending_age_s_max: float = 60.0  # a set older than this was lost or answered elsewhere
    pending_slice_bytes: int = 2 * MIB  # of it that who takes over applies a turn: about 30 ms of sets of 100 bytes
    sync_chunk_items: int = 8192  # one snapshot chunk: about 1 MiB of 100-byte values
    sync_chunk_bytes: int = MIB
    sync_credit_max: int = 64  # chunks a client may ask for ahead
    syncs_max: int = 1024  # snapshots under way at once ...
    syncs_of_one_max: int = 128  # ... of which one connection has at most so many: a Clone asks for one a subtree
    sync_turn_bytes: int = 16 * MIB  # of all snapshots' chunks in one turn: about 30 ms, and the others get theirs next
    reader_bytes_max: int = 64 * MIB  # of one connection's answers in libzmq; it counts messages, whatever their size
    sync_turn_of_one_bytes: int = 4 * MIB  # of these for one connection
    readers_bytes_max: int = 256 * MIB  # of all connections' answers; each may have as much as is still free of it
    reader_pressed_s_max: float = 5.0  # who takes nothing for so long is cut off, once half of that is in use;
    # and who lets a snapshot stand still loses it, while others wait for the room of its image
    files_spared: int = 8  # such a part of the files that a server may open is kept free of connections
    question_mark: int = 100  # requests that libzmq reads ahead from each connection: 6 MiB
    sync_idle_s_max: float = 60.0  # a reader that takes nothing for so long is gone
    images_max: int = 32  # snapshots kept for several readers at once; each keeps the values of its number alive
    images_items_max: int = 8 << 20  # keys of all images that are read at once, of some 24 bytes each, and values ...
    images_maps_max: int = 4  # ... or this many times those of the map, if that is larger
    image_parts_max: int = 4096  # slices of one image: each is a reader
    image_idle_s_max: float = 600.0  # an image that nobody has read from for so long is let go
    image_unread_s_min: float = 30.0  # one that was not read for so long makes room for another
    image_done_s_max: float = 60.0  # one of which every slice was read, in case a reader failed
    router_queue_max: int = 4096  # messages held for one reader that takes nothing, before it is given up
    requests_max: int = 16  # CHP/1 snapshots one reader may ask for before it has the first
    publish_mark: int = 200_000  # messages libzmq may hold for a subscriber; `subscriber_bytes_max` is reached before
    subscriber_bytes_max: int = 48 * MIB  # that wait for one subscriber, which is then cut off: a hole, which heals
    topics_bytes_max: int = 128 << 10  # that one connection may subscribe to: the 64 subtrees of a Clone, and more
    collector_mark: int = 64  # messages that libzmq reads ahead from each client: of 4 MiB, say, so 256 MiB ...
    peer_mark: int = 4  # ... and from each peer: of 17 MiB; the kernel's buffers hold thousands of small ones
    subscription_mark: int = 50  # topics that libzmq reads ahead of each: more is let in by the kernel as we take them
    channels_max: int = 10_000
    topics_of_one_max: int = 1000  # of these, and of CHP/1's prefixes, for one connection: a Clone has 64 at most
    sessions_max: int = 100_000
    session_idle_s_max: float = 86_400.0  # a session's last number is remembered for a day
    runs_max: int = 50_000  # revisions of batches, remembered over all sessions for those acknowledged again
    skips_of_session_max: int = 8  # runs of batches that a client skipped: one is made where two servers were active
    refusals_max: int = 10_000  # remembered, so that a batch that comes again is refused again, and not taken for done
    leases_max: int = 100_000
    leases_of_one_max: int = 10_000  # of one client, so that none takes them all
    staged_bytes_max: int = 1024 * MIB  # waiting for their commit; a larger job commits in several
    staged_idle_s_max: float = 3600.0  # a job that has not gone on for an hour is dead
    switch_pace_s: float = 5.0  # after a hand-over: each is a gap for all, and anybody may ask
    staged_commits_max: int = 1000
    staged_commits_of_one_max: int = 100  # of one client, so that none takes them all: a job has one at a time
    applications_max: int = 10_000  # whose last committed version is remembered
    topics_max: int = 1000  # each is some hundred bytes of every state that is sent; it has to fit one answer
    topic_marks_max: int = 1000  # places where a topic may be cut off: what it keeps is exact to a 500th
    groups_max: int = 1000  # of one topic; each is some hundred bytes of every state, and of the answer about the topic
    members_max: int = 256  # of one group: each has a slot at least
    have_max: int = 1000  # ranges in hand that a member tells: a frame of P holds so many, and joined they are 256
    messages_kept_bytes: int = 16 * MIB  # of the latest messages, in memory, for the passive; all are in the journal
    messages_page_bytes: int = MIB // 4  # of one message to a reader, or one batch
    readings_max: int = 1024  # of topics at once; as of snapshots
    readings_of_one_max: int = 64
    part_bytes: int = MIB  # a large record is published in parts of about this size
    history_epochs_max: int = 256  # older ones are answered with a snapshot
    replica_bytes_max: int = 128 * MIB  # sent to the passive and not confirmed yet


DEFAULT = Limits()
