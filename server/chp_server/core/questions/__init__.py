"""The snapshot port P: the questions of clients and operators, and the answers.

    requests            takes each message of the port, and sends it to its handler
    syncs               snapshots and resumes
    image_numbers       snapshots that several readers share
    feeds               every record after a number, from the log or from the journal
    topic_readers       questions about topics; `delivery` serves single readers, and `group_coordinator` serves groups
    message_pages       rows of messages that were read from the journal
    clients             what each client reports about itself
    access_changes      the admin command that replaces the rules of access
    audit_log, status   what an operator sees

The modules here know the context, the state and the peer's link. They do no I/O.
"""
