"""Which test holds which rule of the specification: file -> test -> ids, as pages in spec/ have them in brackets.

`test_spec_rules.py` fails for a rule that stands here nowhere, for an id that no page has, and for a test that is gone.
"""

HELD: dict[str, dict[str, str]] = {
    # -- chp1.md
    "tests/wire/test_classic_stand_ins.py": {
        "test_a_client_gets_the_snapshot_then_the_updates": "C-1",
    },
    "tests/wire/test_server_chp1.py": {
        "test_a_kvset_is_published_with_its_uuid_and_the_next_number": "C-2 C-35 C-24",
        "test_a_snapshot_has_every_key_with_its_own_number_and_ends_with_the_current_one": "C-8 C-26 C-30 C-32",
        "test_20000_keys_to_a_reader_that_pauses_all_arrive_with_the_end_mark": "C-9",
        "test_a_passive_server_is_silent_to_chp1_and_takes_over_at_once_when_it_should": "C-17 C-40",
        "test_reserved_words_as_keys_are_refused": "C-19 C-20",
        "test_a_reader_that_asks_twice_gets_both_snapshots_whole": "C-28",
        "test_an_empty_value_of_chp2_is_left_out_of_a_chp1_snapshot": "C-31",
        "test_an_empty_value_deletes": "C-34",
        "test_a_ttl_is_relative_in_kvpub_a_moment_in_kvsync_and_ends_in_a_delete": "C-36 C-37",
        "test_hugz_comes_every_second_under_traffic_too": "C-39",
        "test_a_uuid_is_applied_once_and_none_each_time": "C-47 C-48",
        "test_properties_are_whole_also_after_a_duplicate": "C-55",
        "test_a_bad_ttl_or_property_is_refused_whole": "C-59",
        "test_a_new_set_replaces_the_ttl": "C-62",
        "test_keys_and_values_of_exactly_the_maximum_and_one_more": "C-66",
        "test_a_subscriber_to_everything_drops_what_is_chp2_by_its_number": "C-68",
    },
    "tests/wire/test_garbage.py": {
        "test_four_actives_of_garbage_do_not_pass_for_a_peer": "C-3",
        "test_a_malformed_set_is_counted_and_later_sets_are_published": "C-63",
        "test_any_frames_on_any_port_are_refusals_and_no_more": "C-64",
    },
    "tests/wire/test_ipc.py": {
        "test_a_clone_by_files_and_one_by_ports_have_the_same": "C-4",
    },
    "tests/unit/test_client_chp1.py": {
        "test_a_set_is_plain_kvsets_to_both_collectors_with_a_uuid_each": "C-5 C-46",
        "test_a_snapshot_replaces_the_map_and_what_came_meanwhile_follows": "C-6 C-7 C-12",
        "test_updates_are_applied_when_strictly_greater_and_an_empty_value_deletes": "C-13 C-14",
        "test_silence_makes_it_stale_and_the_other_server_is_joined": "C-15",
        "test_it_asks_one_server_and_the_other_again_and_again": "C-16 C-18",
        "test_a_lower_number_in_hugz_is_a_server_that_began_anew": "C-43",
        "test_a_delete_by_ttl_carries_the_moment_and_is_still_a_delete": "C-38 C-61",
        "test_an_own_set_does_not_flip_back": "C-49",
        "test_what_has_no_echo_is_sent_again_with_the_same_uuids_after_a_join": "C-50",
        "test_a_hugz_without_a_greeting_is_a_server_of_chp1": "C-70",
        "test_who_said_nothing_yet_is_asked_in_chp2_only_when_a_hugz_would_have_come": "C-71",
    },
    "tests/wire/test_snapshots.py": {
        "test_a_reader_that_asks_and_takes_nothing_is_given_up": "C-10",
        "test_15_readers_of_100000_keys_while_heartbeats_go_on": "C-11",
    },
    "tests/unit/test_messages.py": {
        "test_any_text_is_a_subtree_for_chp1": "C-21",
        "test_hugz_in_every_dialect": "C-42",
        "test_bad_hugz": "C-45",
    },
    "tests/wire/test_classic_clients.py": {
        "test_a_subtree_even_without_slashes": "C-22",
        "test_hugz_comes_under_traffic_too_with_a_number_that_never_runs_ahead": "C-41 C-69",
    },
    "tests/process/test_clients_facts.py": {
        "test_line_13_a_key_outside_the_own_subtree_is_refused_and_not_kept": "C-23",
    },
    "tests/wire/test_golden_frames.py": {
        "test_built_byte_for_byte": "C-25 C-44",
        "test_read": "C-29 C-33",
        "test_refused": "C-27 C-65",
        "test_ttl_in_all_three_places": "C-56",
    },
    "tests/unit/test_properties.py": {
        "test_read": "C-51 C-52",
        "test_refused": "C-53 C-54",
        "test_bad_ttl": "C-57",
        "test_relative_ttl": "C-58",
    },
    "tests/process/test_faults_clock.py": {
        "test_the_core_counts_ttls_by_the_monotonic_clock_alone": "C-60",
    },
    "tests/unit/test_chp1_overflow.py": {
        "test_what_is_not_held_back_is_not_missed": "C-67",
    },
}
