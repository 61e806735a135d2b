"""A Clone of several pairs: one view over an inner Clone for each mount.

    copy         the map of all mounts, and the order of its keys     base    what both kinds of view have in common
    watch        changes of several mounts in one watch               clone   `MountedClone`, which `Clone` makes
    transaction  what stays within one mount: transactions, leases    aio     `MountedAsyncClone`

An inner Clone is a whole Clone of one pair, which knows nothing of mounts. A view only decides which of them has a key
or a topic, and puts their answers together.
"""
