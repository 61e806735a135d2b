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
    # -- topics.md
    "tests/unit/test_columns_together.py": {
        "test_what_does_not_go_together_is_refused": "T-5 T-24 T-47",
    },
    "tests/unit/test_topics.py": {
        "test_what_can_t_be_the_name_of_a_topic": "T-1",
        "test_messages_that_are_none": "T-2",
        "test_a_batch_says_how_many_messages_it_has": "T-4",
        "test_staged_messages_come_to_both_servers_in_parts_of_the_record": "T-7",
        "test_a_bound_is_told_with_its_figures": "T-9",
        "test_what_is_kept_by_size_and_by_time": "T-10",
        "test_a_topic_is_made_once_and_removed_if_it_is_there": "T-12",
        "test_credit_bounds_what_is_sent": "T-18",
        "test_a_reader_gets_what_the_passive_has_confirmed_and_no_more": "T-19",
        "test_messages_that_are_missing_are_passed_over": "T-16",
        "test_offsets_are_dense_and_whoever_applies_the_record_has_the_same": "T-50",
        "test_what_one_record_places_of_a_topic_is_in_rows_that_a_reader_can_take": "T-52",
        "test_what_a_journal_lacks_is_asked_for_page_by_page": "T-53",
        "test_messages_of_a_server_that_was_active_alone_go_through_the_other": "T-54 T-55",
    },
    "tests/unit/test_groups.py": {
        "test_messages_without_keys_go_round": "T-3",
        "test_slots_of_messages": "T-21 T-22",
        "test_slots_keep_their_offsets_when_they_change_hands_and_when_who_had_them_leaves": "T-23",
        "test_what_may_be_said_of_groups": "T-30",
        "test_a_member_of_several_gets_about_a_page_of_its_own_slots": "T-25",
        "test_members_share_by_slots_in_order_and_each_gets_his_part_once": "T-26 T-39",
        "test_a_step_is_done_by_who_has_the_slots_and_only_from_where_they_are": "T-27 T-28 T-29",
        "test_a_member_that_comes_by_another_connection_goes_on_behind_what_it_was_given": "T-32 T-35 T-37",
        "test_more_than_that_is_refused_with_the_id_of_the_question": "T-33",
        "test_ranges_that_follow_on_may_be_told_as_one_though_a_part_of_it_is_acknowledged": "T-34",
        "test_what_was_acknowledged_and_is_lost_comes_again": "T-36",
        "test_a_group_that_is_begun_anew_ends_its_members_streams": "T-38",
        "test_who_joins_gets_slots_at_a_boundary_and_nothing_comes_twice": "T-40",
        "test_a_successor_takes_the_acknowledgement_that_the_other_did_not_live_to_take": "T-41",
        "test_who_is_slow_loses_what_it_has_in_hand_and_gets_slots_again_when_it_shows_life": "T-42",
        "test_a_topic_that_keeps_what_is_not_acknowledged": "T-11",
        "test_a_commit_is_done_whole_once_or_not_at_all": "T-8 T-44",
        "test_once_is_done_once_whoever_sends_it": "T-45 T-46 T-48",
        "test_what_was_acknowledged_by_a_server_alone_is_parted_whole_and_comes_again": "T-56",
    },
    "tests/wire/test_staged.py": {
        "test_a_topic_is_not_made_by_what_is_staged": "T-6",
    },
    "tests/wire/test_topics.py": {
        "test_who_reads_goes_on_over_a_failover_and_misses_nothing": "T-13 T-15 T-20",
        "test_after_a_failover_who_is_followed_is_asked_first": "T-14",
        "test_messages_are_in_the_journal_and_there_after_a_restart": "T-51",
    },
    "tests/wire/test_golden_chp2.py": {
        "test_the_files_have_what_the_programs_say": "T-17",
    },
    "tests/wire/test_consumers_refused.py": {
        "test_what_was_refused_is_given_again_whoever_waits_for_the_answer": "T-31",
    },
    "tests/wire/test_consumers.py": {
        "test_a_server_that_has_no_such_group_is_believed_only_if_the_one_that_is_followed_has_none_either": "T-43",
    },
    "tests/wire/test_access_matrix.py": {
        "test_a_column_of_the_servers_is_nobody_s_to_write": "T-49",
    },
}
