"""Every limit in one place, each with its reason (SPEC.md, sections 10 and 23).

A limit is part of the protocol if both sides must keep it (keys, values, batches). Any other limit bounds memory or
time (windows, queues). Everything in this project that grows is bounded by one of these limits.
"""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds; every program uses `DEFAULT` unless a test or an operator changes one."""

    # -- the protocol
    # A key is copied at every hop, so longer content belongs in the value.
    key_bytes_max: int = 1024
    # A subtree is a prefix of keys.
    subtree_bytes_max: int = 1024
    # One value must fit one batch.
    value_bytes_max: int = 16 * MIB
    # A batch of this many items takes about 30 ms of a server's turn.
    batch_items_max: int = 65_536
    # This bounds the memory that one frame can take from the program that reads it.
    batch_bytes_max: int = 16 * MIB
    # A frame has room for a batch and the overhead of its columns. Sockets refuse larger frames (ZMQ_MAXMSGSIZE).
    frame_bytes_max: int = 17 * MIB
    # The body of a batch is smaller than a frame, as a record has headers beside its batches.
    body_bytes_max: int = 17 * MIB - (64 << 10)
    # A connection to P+3 that is not the peer's is cut off after this many bytes. A peer's first message has 200.
    stranger_bytes_max: int = MIB
    # A request on the snapshot port has at most this many bytes: a subtree and a dozen options.
    question_bytes_max: int = 64 << 10
    # Ten years: a key that is to live longer needs no ttl.
    ttl_s_max: float = 315_360_000.0
    # The bytes of all properties of a key, and of one property. RFC 12 names only ttl; others are notes of
    # applications.
    properties_bytes_max: int = 4096
    property_bytes_max: int = 1024
    # A client subscribes to at most this many subtrees. Each is a channel, with a batch of its own in each turn.
    subtrees_max: int = 64

    # -- a client
    # A Clone knows at most this many servers, those of a pair and its replicas. It has sockets and connections to each.
    servers_max: int = 16
    # Each mount is a pair of servers, which a Clone follows with a thread and sockets of their own.
    mounts_max: int = 16
    # A mount table names at most this many topics. The beginnings of names among them are looked through for each
    # topic.
    mounted_topics_max: int = 256
    # A client keeps at most this much of unacknowledged sets, in bytes and in batches, to send them again.
    window_bytes: int = 64 * MIB
    window_batches: int = 4096
    # A slow watcher may fall behind by this many changes and the largest record. Then it is told that it fell behind.
    watch_queue_max: int = 100_000
    # A client holds back at most this many bytes: batches while a snapshot arrives, and parts until a record is whole.
    join_buffer_bytes: int = 256 * MIB
    # The keys and values of one snapshot: a snapshot that never ends must not take all memory.
    copy_bytes_max: int = 16 * 1024 * MIB

    # -- a server
    # A turn drains this many messages from the collector before it acts.
    turn_messages_max: int = 1000
    # A turn takes at most this many bytes of messages. So it bounds the record that it publishes, which counts for the
    # bytes at which a slow reader is cut off.
    turn_bytes_max: int = MIB // 2
    # The bytes of messages for topics are divided by this in the count of a turn, as they are not published.
    turn_messages_share: int = 4
    # A set of at most this many bytes is small: a turn does it before large sets, in a tenth of a millisecond.
    small_set_bytes: int = 4096
    # While other clients wait for the large sets of a client, the server asks that client for batches of at most this
    # many keys. A server does such a batch in about a millisecond.
    shared_batch_items: int = 1024
    # Large sets of all clients wait for their turn; one client has `window_bytes` of them at most. Beyond that the
    # server reads no sets, and they wait in the sockets.
    waiting_sets_bytes_max: int = 64 * MIB
    # An open record with this many items is closed, as its readers weigh it (unpacking.py).
    record_items_max: int = 32_768
    # An open record with this many segments is closed too.
    record_segments_max: int = 2048
    # A turn looks at this many keys of a large map that is read, in 1 to 4 ms.
    gather_items_max: int = 4096
    # A turn without records looks at this many times as many keys.
    gather_quiet_times: int = 4
    # A turn deletes at most this many keys that expired with their ttl or lease, in about 10 ms.
    ending_keys_max: int = 4096
    # Records are kept in memory for clients that come back.
    log_bytes_max: int = 64 * MIB
    log_records_max: int = 100_000
    # A passive keeps at most this much of the sets that it has not yet seen published.
    pending_bytes_max: int = 64 * MIB
    pending_batches_max: int = 100_000
    # A passive drops an older set from its pending list: it was lost, or another server has answered it.
    pending_age_s_max: float = 60.0
    # A server that takes over applies this much of its pending list a turn: about 30 ms of sets of 100 bytes.
    pending_slice_bytes: int = 2 * MIB
    # A commit of more items than this, and of more than an eighth of the map, gets into the map one slice a turn.
    deferred_items_min: int = 10_000
    # A commit of more items than this is sliced too, whatever the size of the map: at once it would take 150 ms.
    deferred_items_always: int = 200_000
    # A turn puts this many items of such a commit into the map, in about 8 ms. A turn with messages puts half as many.
    # So an awaited set, which takes three turns, is done in about 25 ms.
    deferred_slice_items: int = 6000
    # A turn publishes this many bytes of such a commit, in about 8 ms. A turn with messages publishes half as many.
    publish_slice_bytes: int = 4 * MIB
    # One snapshot chunk has about 1 MiB of 100-byte values.
    sync_chunk_items: int = 8192
    sync_chunk_bytes: int = MIB
    # A client may ask for this many chunks ahead.
    sync_credit_max: int = 64
    # At most this many snapshots are under way at the same time.
    syncs_max: int = 1024
    # At most this many replicas follow one server. Each gets every record, so 64 cost as much as 64 readers of
    # everything.
    replicas_max: int = 64
    # An acknowledgement waits for at most this many copies. Every awaited set waits for the sync of each of these
    # servers.
    copies_max: int = 8
    # At most this many bytes are under way to one replica, beside its last chunk. At 24 MB/s they are sent in 300 ms.
    follower_bytes_max: int = 8 * MIB
    # At most this many bytes are under way to all replicas. Of these, 128 MiB are kept free, two chunks for each
    # replica, so that replicas that take nothing stop no other one.
    followers_bytes_max: int = 192 * MIB
    # A replica that has not reported for this long counts as gone. It reports each second, and the longest turn after
    # which a server still counts as alive is 10 s.
    follower_idle_s_max: float = 20.0
    # At most this many clients of a replica ask the active through it, each by a connection of its own: as many readers
    # of topics and members as the active serves. Each client takes three descriptors on the replica. All of them take
    # at most a quarter of the files that a server may open.
    passed_max: int = 2048
    # One connection has at most this many snapshots under way: a Clone asks for one snapshot for each subtree.
    syncs_of_one_max: int = 128
    # All snapshots send this much in one turn: about 30 ms; the other readers get theirs in the next turns.
    sync_turn_bytes: int = 16 * MIB
    # The server gives libzmq at most this many bytes for one connection to hold; libzmq itself only counts messages.
    reader_bytes_max: int = 64 * MIB
    # One connection gets at most this much of `sync_turn_bytes`.
    sync_turn_of_one_bytes: int = 4 * MIB
    # All connections may have this much waiting; each may take as much as is still free.
    readers_bytes_max: int = 256 * MIB
    # Once half of `readers_bytes_max` is in use, a reader that takes nothing for this long is cut off. A reader that
    # asks for no more of its snapshot for this long loses it, while others wait for the room of its image.
    reader_pressed_s_max: float = 5.0
    # One in this many of the files that a server may open is not used for connections.
    files_spared: int = 8
    # libzmq reads this many requests ahead from each connection: 6 MiB.
    question_mark: int = 100
    # A reader that takes nothing for this long counts as gone.
    sync_idle_s_max: float = 60.0
    # No other image is made while those that are read take this many bytes and also exceed `images_maps_max`. The bytes
    # include values that the map may have too.
    images_bytes_max: int = 1024 * MIB
    # The images that are read have this many times the keys of the map, before `images_bytes_max` counts.
    images_maps_max: int = 4
    # At most this many numbers are kept, so that readers may ask for an image at each of them. A number takes 300
    # bytes, and the layer of the undo log that it begins.
    image_numbers_max: int = 1024
    # The undo log has at most this many bytes: what changed since these numbers, with the old values. When it is full,
    # the oldest number is dropped.
    undo_bytes_max: int = 256 * MIB
    # A passive forgets a number after this long, if the active has not told it before that the number is not needed.
    image_kept_s_max: float = 3600.0
    # An image is read in at most this many parts, each by a reader of its own.
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
    # A subscriber for which this many bytes wait is cut off: it misses updates, and then resumes.
    subscriber_bytes_max: int = 48 * MIB
    # One connection may subscribe to topics of this many bytes: the 64 subtrees of a Clone, and more.
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
    # The revisions of this many runs of batches are remembered, over all sessions, to acknowledge batches again.
    runs_max: int = 50_000
    # A session has at most this many runs of skipped batches. A run comes about when two servers are active.
    skips_of_session_max: int = 8
    # This many refusals are remembered, so that a batch that comes again is refused again, and not taken for done. A
    # user with less than a quarter of them loses none to others.
    refusals_max: int = 10_000
    leases_max: int = 100_000
    # One client has at most this many leases, so that no client takes them all.
    leases_of_one_max: int = 10_000
    # Staged bytes wait for their commit; a larger job commits in several steps.
    staged_bytes_max: int = 1024 * MIB
    # A job that has not gone on for an hour is dead.
    staged_idle_s_max: float = 3600.0
    # After a hand-over the next one is refused for this long: each interrupts all clients, and any client may ask for
    # one.
    switch_pace_s: float = 5.0
    staged_commits_max: int = 1000
    # One client has at most this many staged commits, so that no client takes them all. A job has one at a time.
    staged_commits_of_one_max: int = 100
    # The last committed version of this many applications is remembered; a new application is refused beyond that.
    applications_max: int = 10_000
    # The version of an application that commits nothing for this long is forgotten: no job runs again so late.
    application_idle_s_max: float = 30 * 86_400.0
    # One message has at most this many headers. They are notes for the programs that pass the message on.
    message_headers_max: int = 32
    # The bytes of all header names and values of one message, in UTF-8. Any HTTP proxy passes at least 8 KiB of
    # headers.
    message_headers_bytes_max: int = 4096
    # The bytes of one header's value, in UTF-8. A trace with its state takes less.
    header_value_bytes_max: int = 1024
    # Each topic is some hundred bytes of every state that is sent, and all have to fit one answer.
    topics_max: int = 1000
    # A topic has at most this many places where its beginning may be cut off, so what it keeps is exact to a 500th.
    topic_marks_max: int = 1000
    # Each group is some hundred bytes of every state, and of the answer about its topic.
    groups_max: int = 1000
    # A Clone has at most this many waits for one group: each takes some 3 kB, so all take about 300 MB.
    group_waits_max: int = 100_000
    # One Clone waits for at most this many groups at the same time. Each group has a thread of the client.
    watched_groups_max: int = 256
    # A group may set at most this many deliveries of a message; after the last one a failed message fails for good.
    deliveries_max: int = 1000
    # The longest time for which a message that failed is held back: an operator sees its effect within an hour.
    retry_s_max: float = 3600.0
    # The bytes of a reason that a group keeps until its message is put aside: each slot may have one.
    reason_bytes_max: int = 1024
    # A group has at most this many members, as each member has at least one of the 256 slots.
    members_max: int = 256
    # A member tells at most this many ranges that it has in hand. A frame of P has room for them, and when adjacent
    # ranges are joined, 256 are left.
    have_max: int = 1000
    # At most this many messages are scheduled. Each takes some 300 bytes beside its value. A user above its share may
    # schedule no more.
    scheduled_max: int = 1_000_000
    # The bytes of all scheduled messages, with 300 for each.
    scheduled_bytes_max: int = 512 * MIB
    # The longest delay of a scheduled message, a hundred years: any longer one is a mistake in the unit.
    delay_s_max: float = 100 * 366 * 86_400.0
    # A turn publishes at most this many scheduled messages that are due, in about 10 ms.
    fired_max: int = 1000
    # The latest messages are kept in memory for the passive; all are in the journal.
    messages_kept_bytes: int = 16 * MIB
    # A page of messages for a reader of a topic, or for a member, has about this many bytes.
    messages_page_bytes: int = MIB // 4
    # The first page for one of several members has this many messages at most. A slow member keeps them for long, and
    # small pages make the server read what memory no longer has.
    first_page_messages: int = 512
    # This many readings of topics may go on at the same time, as many as snapshots.
    readings_max: int = 1024
    readings_of_one_max: int = 64
    # A large record is published in parts of about this size.
    part_bytes: int = MIB
    # A server remembers the history of this many epochs. Clients of older epochs get a snapshot.
    history_epochs_max: int = 256
    # At most this many bytes are sent to the passive and not confirmed yet.
    replica_bytes_max: int = 128 * MIB


DEFAULT = Limits()
