"""A Clone of several pairs: one view over an inner Clone for each mount.

    copy    the map of all mounts, and the order of its keys      writer   sets by key, and what spans two mounts
    watch   changes of several mounts in one watch                clone    `MountedClone`, which `Clone` makes

An inner Clone is a whole Clone of one pair, which knows nothing of mounts. A view only decides which of them has a key
or a topic, and puts their answers together.
"""
