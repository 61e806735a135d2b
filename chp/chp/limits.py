"""Every limit in one place, each with its reason (SPEC.md, sections 10 and 23).

A limit is part of the protocol if both sides must hold it (keys, values, batches), and else a bound on memory or time
(windows, queues). Everything in this project that grows has one of these above it.
"""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds; every program uses `DEFAULT` unless a test or an operator changes one."""

    # -- the protocol
    # Longer keys are values in disguise; a key is copied at every hop.
    key_bytes_max: int = 1024
    # A subtree is a prefix of keys.
    subtree_bytes_max: int = 1024
    # One value must fit one batch.
    value_bytes_max: int = 16 * MIB
    # It bounds the time for which one batch holds the server's turn: about 30 ms.
    batch_items_max: int = 65_536
    # It bounds the memory that one frame can ask of a peer.
    batch_bytes_max: int = 16 * MIB
    # A batch and the overhead of its columns fit; sockets refuse more (ZMQ_MAXMSGSIZE).
    frame_bytes_max: int = 17 * MIB
    # A batch in a frame is smaller, as a record has headers beside its batches.
    body_bytes_max: int = 17 * MIB - (64 << 10)
    # A connection to P+3 that is not the peer's is cut off after this much: the first message of a peer has 200 bytes.
    stranger_bytes_max: int = MIB
    # A request on the snapshot port has a subtree and a dozen options.
    question_bytes_max: int = 64 << 10
    # Ten years: a key that is to live longer needs no ttl.
    ttl_s_max: float = 315_360_000.0
    # RFC 12 names one property; other properties are notes of applications.
    properties_bytes_max: int = 4096
    property_bytes_max: int = 1024
    # Each subtree of a client is a channel with a batch of its own a turn.
    subtrees_max: int = 64

    # -- a client
    # The two servers of a pair and its replicas: a Clone has sockets and connections to each.
    servers_max: int = 16
    # Each mount is a pair of servers, which a Clone follows with a thread and sockets of their own.
    mounts_max: int = 16
    # The beginnings of names among them are looked through for each topic.
    mounted_topics_max: int = 256
    # Unacknowledged sets are kept for resending.
    window_bytes: int = 64 * MIB
    window_batches: int = 4096
    # A slow watcher may fall behind by this many changes, and the largest record, before it is told so.
    watch_queue_max: int = 100_000
    # Batches are held back while a snapshot arrives, and parts until a record is whole.
    join_buffer_bytes: int = 256 * MIB
    # The keys and values of one snapshot: a snapshot that never ends must not take all memory.
    copy_bytes_max: int = 16 * 1024 * MIB

    # -- a server
    # A turn drains this many messages from the collector before it acts.
    turn_messages_max: int = 1000
    # The bytes of a turn bound those of a record as it is published, which count for a slow reader's mark.
    turn_bytes_max: int = MIB // 2
    # Bytes of messages for topics count a fourth in a turn, as they are not published.
    turn_messages_share: int = 4
    # A set of this many bytes is small: a turn does it before large sets, in a tenth of a millisecond.
    small_set_bytes: int = 4096
    # A client whose sets wait is asked for batches of so many keys while others wait for them: a server does one in
    # about a millisecond.
    shared_batch_items: int = 1024
    # Large sets of all clients wait for their turn; one client has `window_bytes` of them at most. Beyond that the
    # server reads no sets, and they wait in the sockets.
    waiting_sets_bytes_max: int = 64 * MIB
    # An open record with this many items is closed, as its readers weigh it (unpacking.py).
    record_items_max: int = 32_768
    # An open record with this many segments is closed too.
    record_segments_max: int = 2048
    # A turn looks at so many keys of a large map that is read: 1 to 4 ms.
    gather_items_max: int = 4096
    # A turn without records looks at so many times as many.
    gather_quiet_times: int = 4
    # A turn deletes so many keys that expired with their ttl or lease: about 10 ms.
    ending_keys_max: int = 4096
    # Records are kept in memory for clients that come back.
    log_bytes_max: int = 64 * MIB
    log_records_max: int = 100_000
    # A passive keeps sets that it has not yet seen published.
    pending_bytes_max: int = 64 * MIB
    pending_batches_max: int = 100_000
    # An older set was lost, or another server has answered it.
    pending_age_s_max: float = 60.0
    # A server that takes over applies this much of its pending list a turn: about 30 ms of sets of 100 bytes.
    pending_slice_bytes: int = 2 * MIB
    # A commit of more items than this, and of more than an eighth of the map, gets into the map a slice a turn ...
    deferred_items_min: int = 10_000
    # ... and so does one of more items than this, whatever the map has: at once it would take 150 ms.
    deferred_items_always: int = 200_000
    # A turn puts so many items of such a commit into the map, in some 8 ms; one with messages does half of it. So
    # an awaited set, which takes three turns, is done in some 25 ms.
    deferred_slice_items: int = 6000
    # A turn publishes so many bytes of such a commit, in some 8 ms; one with messages does half of it.
    publish_slice_bytes: int = 4 * MIB
    # One snapshot chunk has about 1 MiB of 100-byte values.
    sync_chunk_items: int = 8192
    sync_chunk_bytes: int = MIB
    # A client may ask for this many chunks ahead.
    sync_credit_max: int = 64
    # Snapshots under way at once.
    syncs_max: int = 1024
    # Replicas that follow one server: each gets every record once more, so 64 cost as much as 64 readers of everything.
    replicas_max: int = 64
    # Copies that an acknowledgement waits for: each more is a server whose sync every awaited set waits for.
    copies_max: int = 8
    # What is under way to one replica, beside its last chunk: at 24 MB/s it is the records of 300 ms.
    follower_bytes_max: int = 8 * MIB
    # What is under way to all replicas. Two chunks for each of them, 128 MiB, are kept free of the larger shares.
    followers_bytes_max: int = 192 * MIB
    # A replica reports each second, and the longest turn after which a server still counts as alive is 10 s.
    follower_idle_s_max: float = 20.0
    # Clients of a replica that ask the active, each by a connection of its own: as many readers of topics and members
    # as the active serves. Each takes three descriptors here; all take a quarter of the files that a server may open.
    passed_max: int = 2048
    # One connection has at most this many of them: a Clone asks for one a subtree.
    syncs_of_one_max: int = 128
    # All snapshots send this much in one turn: about 30 ms; the other readers get theirs in the next turns.
    sync_turn_bytes: int = 16 * MIB
    # libzmq may hold this much for one connection; it counts messages, whatever their size.
    reader_bytes_max: int = 64 * MIB
    # One connection gets this much of `sync_turn_bytes`.
    sync_turn_of_one_bytes: int = 4 * MIB
    # All connections may have this much waiting; each may take as much as is still free.
    readers_bytes_max: int = 256 * MIB
    # Once half of `readers_bytes_max` is in use, a reader that takes nothing for so long is cut off. A reader that asks
    # for no more of its snapshot loses it then too, while others wait for the room of its image.
    reader_pressed_s_max: float = 5.0
    # One in this many of the files that a server may open is not used for connections.
    files_spared: int = 8
    # libzmq reads this many requests ahead from each connection: 6 MiB.
    question_mark: int = 100
    # A reader that takes nothing for this long is gone.
    sync_idle_s_max: float = 60.0
    # All images that are read at once have this many bytes, with the values, which the map may have too ...
    images_bytes_max: int = 1024 * MIB
    # ... or this many times the keys of the map, if that is more.
    images_maps_max: int = 4
    # Numbers of which an image may be asked for; each has 300 bytes, and the layer of the undo log that it begins.
    image_numbers_max: int = 1024
    # What changed since these numbers, with the old values: the oldest number is lost beyond that.
    undo_bytes_max: int = 256 * MIB
    # A passive that is not told that a number is not needed any more forgets it after so long.
    image_kept_s_max: float = 3600.0
    # Each part of an image is a reader.
    image_parts_max: int = 4096
    # A number whose images were not read from for this long is kept no more.
    image_idle_s_max: float = 600.0
    # A number whose images were not read from for this long makes room for another.
    image_unread_s_min: float = 30.0
    # A number whose every plan was read to its end is kept for this long, in case a reader failed.
    image_done_s_max: float = 60.0
    # A reader that takes nothing is given up when this many messages wait for it.
    router_queue_max: int = 4096
    # A reader may ask for this many CHP/1 snapshots before it has the first.
    requests_max: int = 16
    # libzmq may hold this many messages for a subscriber; `subscriber_bytes_max` is reached before.
    publish_mark: int = 200_000
    # A subscriber for which so much waits is cut off: that is a hole, which heals.
    subscriber_bytes_max: int = 48 * MIB
    # One connection may subscribe to this much: the 64 subtrees of a Clone, and more.
    topics_bytes_max: int = 128 << 10
    # libzmq reads this many messages ahead from each client: 256 MiB, if each has 4 MiB.
    collector_mark: int = 64
    # libzmq reads this many messages of 17 MiB ahead from each peer; the kernel's buffers hold thousands of small ones.
    peer_mark: int = 4
    # libzmq reads this many topics ahead from each subscriber; the kernel sends more as we take them.
    subscription_mark: int = 50
    channels_max: int = 10_000
    # One connection has this many channels and prefixes of CHP/1 at most: a Clone has 64.
    topics_of_one_max: int = 1000
    sessions_max: int = 100_000
    # The last number of a session is remembered for a day.
    session_idle_s_max: float = 86_400.0
    # Revisions of batches are remembered, over all sessions, for batches that are acknowledged again.
    runs_max: int = 50_000
    # Runs of batches that a client skipped: a run is made where two servers were active.
    skips_of_session_max: int = 8
    # Refusals are remembered, so that a batch that comes again is refused again, and not taken for done. A user
    # with less than a quarter of them loses none to others.
    refusals_max: int = 10_000
    leases_max: int = 100_000
    # One client has so many, so that none takes them all.
    leases_of_one_max: int = 10_000
    # Staged bytes wait for their commit; a larger job commits in several steps.
    staged_bytes_max: int = 1024 * MIB
    # A job that has not gone on for an hour is dead.
    staged_idle_s_max: float = 3600.0
    # After a hand-over the next one is refused for this long: each is a gap for all, and any client may ask.
    switch_pace_s: float = 5.0
    staged_commits_max: int = 1000
    # One client has so many, so that none takes them all: a job has one at a time.
    staged_commits_of_one_max: int = 100
    # The last committed version of this many applications is remembered; a new application is refused beyond that.
    applications_max: int = 10_000
    # The version of an application that commits nothing for so long is forgotten: no job runs again so late.
    application_idle_s_max: float = 30 * 86_400.0
    # The headers of one message. They are notes for the programs that pass it on, and do not replace its value.
    message_headers_max: int = 32
    # The names and values of the headers of one message, in UTF-8: an HTTP proxy passes 8 KiB of headers at least.
    message_headers_bytes_max: int = 4096
    # One header's value, in UTF-8: a trace with its state has less.
    header_value_bytes_max: int = 1024
    # Each topic is some hundred bytes of every state that is sent, and all have to fit one answer.
    topics_max: int = 1000
    # Places where a topic may be cut off: what it keeps is exact to a 500th.
    topic_marks_max: int = 1000
    # Each group is some hundred bytes of every state, and of the answer about its topic.
    groups_max: int = 1000
    # The waits of one Clone for a group: each is some 3 kB, so these are about 300 MB.
    group_waits_max: int = 100_000
    # The groups that one Clone waits for at the same time: each has a thread of the client.
    watched_groups_max: int = 256
    # A message that failed so often fails for good.
    deliveries_max: int = 1000
    # The longest time for which a message that failed is held back: an operator sees its effect within an hour.
    retry_s_max: float = 3600.0
    # The bytes of a reason that a group keeps until its message is put aside: each slot may have one.
    reason_bytes_max: int = 1024
    # Each member of a group has a slot at least.
    members_max: int = 256
    # A member tells this many ranges in hand: a frame of P holds them, and joined they are 256.
    have_max: int = 1000
    # Scheduled messages, of some 300 bytes each beside their values; a user above its share of them is refused more.
    scheduled_max: int = 1_000_000
    # All their bytes, with 300 for each.
    scheduled_bytes_max: int = 512 * MIB
    # The longest delay of a scheduled message, a hundred years: any longer one is a mistake in the unit.
    delay_s_max: float = 100 * 366 * 86_400.0
    # A turn publishes so many that are due: about 10 ms.
    fired_max: int = 1000
    # The latest messages are kept in memory for the passive; all are in the journal.
    messages_kept_bytes: int = 16 * MIB
    # A message to a reader, or a batch, has about this many bytes.
    messages_page_bytes: int = MIB // 4
    # The first page for one of several members has this many messages at most. A slow member keeps them for long, and
    # small pages make the server read what memory no longer has.
    first_page_messages: int = 512
    # This many readings of topics may go on at the same time, as many as snapshots.
    readings_max: int = 1024
    readings_of_one_max: int = 64
    # A large record is published in parts of about this size.
    part_bytes: int = MIB
    # Clients of older epochs get a snapshot.
    history_epochs_max: int = 256
    # Bytes that are sent to the passive and not confirmed yet.
    replica_bytes_max: int = 128 * MIB


DEFAULT = Limits()
