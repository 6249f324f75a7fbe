"""The zoo: bugs that Apache RocketMQ or its peers really had, as edits that put them back here.

Numbers are those of README.md; a # before a number means RocketMQ's own list of bugs. An edit's old text occurs exactly
once in its file; all edits of a bug are in one package. What has no entry is impossible here, and README.md says why.
"""

from __future__ import annotations

from dataclasses import dataclass

BROKER = "services/mq-broker/src/mq_broker"
BROKER_TESTS = "services/mq-broker/tests"


@dataclass(frozen=True, slots=True)
class Edit:
    """`old` becomes `new` in the file at `path`, which is relative to the repository."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Bug:
    """One bug: how it is put back, and the tests (pytest node ids) of which at least one must go red."""

    number: str
    title: str
    how: str  # it is put back, for README.md
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


def bug(number: str, title: str, how: str, path: str, old: str, new: str, *tests: str) -> Bug:
    """A bug of one edit."""
    return Bug(number, title, how, (Edit(path, old, new),), tests)


STORE = f"{BROKER}/store"
STORE_TESTS = f"{BROKER_TESTS}/test_broker_store.py"
HERE = "tests/robustness/test_robustness_bugs.py"
NEW_QUEUES_TESTS = "libs/mqclient/tests/test_mqclient_new_queues.py"
PROGRESS_TESTS = "libs/mqclient/tests/test_mqclient_progress_memory.py"
IN_SYNC = f"{BROKER}/replication/in_sync.py"
COUNTED = "replicas = self.in_sync.replicas | (self.deciding.replicas if self.deciding else frozenset())"
LEDGER_TESTS, LINKS_TESTS = f"{BROKER_TESTS}/test_broker_in_sync_ledger.py", f"{BROKER_TESTS}/test_broker_links.py"
RECORD_LIMITS_TESTS = f"{BROKER_TESTS}/test_broker_record_limits.py"
WRITING_AGAIN_TESTS = f"{BROKER_TESTS}/test_broker_writing_again.py"

BUGS: tuple[Bug, ...] = (
    bug(
        "1",
        "ignore fsync error (#2706)",
        "a failed sync is logged and forgotten",
        f"{STORE}/durability.py",
        "                self.stop(error)\n                return\n",
        "",
        f"{STORE_TESTS}::TestFailingDisk::test_the_first_failed_sync_fences_for_good",
    ),
    bug(
        "2",
        "retry fsync after error",
        "a failed sync is called once more",
        f"{STORE}/durability.py",
        "                await self._disk.offload_in(Lane.SYNC, sync_to_end)\n",
        "                try:\n"
        "                    await self._disk.offload_in(Lane.SYNC, sync_to_end)\n"
        "                except OSError:\n"
        "                    await self._disk.offload_in(Lane.SYNC, sync_to_end)\n",
        f"{STORE_TESTS}::TestFailingDisk::test_the_first_failed_sync_fences_for_good",
    ),
    bug(
        "3",
        "mark flushed when the file could not be held",
        "of several files that were written, only the newest is synced",
        f"{STORE}/commit_log.py",
        "files = [self._files[start] for start in starts]",
        "files = [self._files[start] for start in starts[-1:]]",
        f"{HERE}::test_an_acknowledgement_covers_both_sides_of_a_roll_over",
    ),
    bug(
        "4",
        "CRC skips properties (#7437)",
        "the seal of a record is compared with the body's CRC only",
        "libs/mqproto/src/mqproto/record.py",
        "return bytes(buffer[covered:end]) == crc_property(crc)",
        'body_end = at + BODY_AT + int.from_bytes(buffer[at + 84 : at + 88], "big")\n'
        "    body_crc = zlib.crc32(bytes(buffer[at + BODY_AT : body_end])) & CRC_MASK\n"
        '    return body_crc == int.from_bytes(buffer[at + 8 : at + 12], "big")',
        "libs/mqproto/tests/test_mqproto_fuzz.py::test_every_bit_of_a_sealed_record_is_guarded_by_its_seal",
    ),
    bug(
        "5",
        "CRC value 0 = invalid (#9121)",
        "a seal of ten zeros is never right",
        "libs/mqproto/src/mqproto/record.py",
        "return bytes(buffer[covered:end]) == crc_property(crc)",
        "return crc & CRC_MASK != 0 and bytes(buffer[covered:end]) == crc_property(crc)",
        f"{HERE}::test_a_record_whose_crc_is_0_is_as_good_as_any",
    ),
    bug(
        "6",
        "no offset check on stale bytes (#10017)",
        "a whole record counts wherever it stands",
        f"{STORE}/log_scan.py",
        "record.log_offset == log_offset and is_sealed(block, at, record.size)",
        "is_sealed(block, at, record.size)",
        f"{HERE}::test_a_whole_record_that_belongs_elsewhere_is_not_taken_for_one",
    ),
    bug(
        "7",
        "recovery stops and truncates at mid-log flip",
        "the log ends at the first bytes that are no record, durable or not",
        f"{STORE}/recovery.py",
        "            if go_on is None and at >= durable:\n                return at\n",
        "            if at is not None:\n                return at\n",
        f"{HERE}::test_a_flipped_bit_in_the_middle_of_the_log_costs_one_record",
    ),
    bug(
        "8",
        "truncation not durable (#10666)",
        "what is cut off stays in the file",
        f"{STORE}/commit_log.py",
        "            file.truncate(end - start)\n",
        "",
        f"{HERE}::test_a_tail_that_was_cut_off_never_comes_back",
    ),
    bug(
        "9",
        "checkpoint ahead of CQ (#678/#10073)",
        "the checkpoint is written without the consume queues' sync",
        f"{STORE}/durability.py",
        "                await self._sync_queues(dirty)\n",
        "",
        f"{HERE}::test_what_a_checkpoint_counts_is_on_disk_before_it",
    ),
    bug(
        "10",
        "recovery start chosen by wall clock",
        "reading begins at the newest file whose first record is not younger than the checkpoint",
        f"{STORE}/recovery.py",
        "            report.scanned_from = max(trusted.log_offset, self.files.begin)\n",
        "            report.scanned_from = max(\n"
        "                start for start in [self.files.begin, *self.files.starts]\n"
        '                if int.from_bytes(self.files.read(8, start + 56), "big") <= trusted.newest_store_ms\n'
        "            )\n",
        f"{HERE}::test_recovery_begins_at_an_offset_and_not_at_a_time",
    ),
    bug(
        "11",
        "only last file re-dispatched (#1434)",
        "lost consume queues are told again from the last file on",
        f"{STORE}/recovery.py",
        "report.rebuilt, report.scanned_from = True, self.files.begin",
        "report.rebuilt, report.scanned_from = True, max(self.files.starts, default=0)",
        f"{HERE}::test_lost_consume_queues_are_told_again_by_every_file_of_the_log",
    ),
    bug(
        "12",
        "index file deleted on abnormal recovery (#8007)",
        "after a kill the index files go, and indexing goes on at the checkpoint",
        f"{STORE}/index.py",
        "        self.indexed_end = max(point.log_offset, self._log.begin)\n",
        "        self.indexed_end = max(point.log_offset, self._log.begin)\n"
        "        if not clean:\n"
        "            self.close()\n"
        "            for name in names:\n"
        "                self._disk.unlink(self._folder / name)\n",
        f"{HERE}::test_keys_from_before_the_checkpoint_are_found_after_a_kill",
    ),
    bug(
        "13",
        "JSON offsets written in place (#3401)",
        "the new content is written over the old file",
        "libs/osenv/src/osenv/disk.py",
        "    _write_whole(disk, temporary, content)\n    if keep_previous and disk.exists(path):\n",
        "    _write_whole(disk, path, content)\n    if disk.exists(path.with_name(path.name + temporary.name)):\n",
        "libs/osenv/tests/test_osenv_replace_file.py::test_stop_at_any_call_leaves_old_or_new",
    ),
    bug(
        "14",
        "consumer reads past durable offset (#8239)",
        "consumers read up to the end of the log",
        f"{STORE}/message_store.py",
        "return self.flusher.durable_end if self.is_sync_flush else self.log.end",
        "return self.log.end",
        f"{STORE_TESTS}::test_under_sync_flush_what_is_not_on_disk_cannot_be_read",
    ),
    bug(
        "15",
        "no dir fsync after create/rename",
        "new names are not synced",
        f"{STORE}/commit_log.py",
        "                self._disk.sync_dir(folder)\n",
        "                pass\n",
        f"{HERE}::test_an_acknowledgement_covers_both_sides_of_a_roll_over",
    ),
    bug(
        "16",
        "sparse preallocation (SIGBUS)",
        "files get their length and no blocks",
        f"{STORE}/commit_log.py",
        "file.allocate(0, self._file_bytes)",
        "file.truncate(self._file_bytes)",
        f"{HERE}::test_a_file_of_the_log_has_all_its_blocks_from_the_beginning",
    ),
    bug(
        "17",
        "replica acks page cache",
        "under SYNC_FLUSH, too, a replica vouches for what is written",
        f"{BROKER}/replication/following.py",
        "self._node.states_in.vouched(store.stored_end)",
        "self._node.states_in.vouched(store.log_end)",
        f"{LINKS_TESTS}::test_a_replica_vouches_for_what_its_flush_disk_type_says",
    ),
    bug(
        "18",
        "ack counted per connection",
        "one acknowledgement is enough, whichever replica of the in-sync set it comes from",
        IN_SYNC,
        "min([confirmed, *(self._acknowledged(one) for one in replicas - {self.me})])",
        "min([confirmed, max((self._acknowledged(one) for one in replicas - {self.me}), default=confirmed)])",
        f"{LEDGER_TESTS}::test_two_links_of_one_replica_are_one_replica",
    ),
    Bug(
        "19",
        "forged replica ack > master (#3015)",
        "what a replica acknowledges is not compared with the end of the log",
        (
            Edit(IN_SYNC, "        if log_offset > log_end:\n", "        if log_offset > log_end and False:\n"),
            Edit(
                f"{BROKER}/replication/feed.py",
                "if not max(report.acknowledged_offset, report.durable_offset) <= report.written_offset <= end:",
                "if not max(report.acknowledged_offset, report.durable_offset) <= report.written_offset:",
            ),
        ),
        (
            f"{LEDGER_TESTS}::test_what_a_replica_cannot_have_is_rejected",
            f"{LINKS_TESTS}::test_a_master_rejects_what_cannot_be",
        ),
    ),
    Bug(
        "20",
        "no epoch fence (#7017)",
        "a replica follows a master of any epoch",
        (
            Edit(f"{BROKER}/replication/following.py", "if epoch < self.epoch:", "if epoch < (0, 0):"),
            Edit(f"{BROKER}/replication/following.py", "if frame.epoch < self._epoch:", "if frame.epoch < (0, 0):"),
        ),
        (
            f"{BROKER_TESTS}/test_broker_reconciling.py::test_a_master_that_cannot_be_followed_is_rejected",
            f"{LINKS_TESTS}::test_a_master_of_the_past_is_not_followed",
        ),
    ),
    Bug(
        "21",
        "ISR expand without union (#5663)",
        "who is about to join does not count before the decision is on disk, and then counts at once",
        (
            Edit(
                IN_SYNC,
                COUNTED,
                "replicas = self.in_sync.replicas",
            ),
            Edit(IN_SYNC, "            replicas |= {self._joining}\n", "            pass\n"),
        ),
        (f"{LEDGER_TESTS}::test_whatever_is_confirmed_every_replica_of_the_durable_set_has",),
    ),
    bug(
        "22",
        "early shrink",
        "a replica that is to leave the set counts no more, though the decision is not on disk",
        IN_SYNC,
        COUNTED,
        "replicas = self.deciding.replicas if self.deciding else self.in_sync.replicas",
        f"{LEDGER_TESTS}::test_a_replica_leaves_the_set_durably_before_anything_is_confirmed_without_it",
    ),
    bug(
        "23",
        "CQ offset reuse after restart (#7689)",
        "of a consume queue that has no messages left the last file goes too",
        f"{STORE}/consume_queue.py",
        "return end is not None and end <= self.first_offset * CQ_ENTRY.size",
        "return self.first_offset == self.max_offset and (end or self._files.capacity_end) > 0",
        f"{HERE}::test_offsets_of_a_queue_go_on_when_all_of_its_messages_have_been_deleted[nothing]",
    ),
    bug(
        "24",
        "consumer offset not truncated with the log (#4771)",
        "offsets and finished ranges beyond the end of a queue stay",
        f"{BROKER}/core/consumer_offsets.py",
        "            if before.end > end:\n",
        "            if before.end > end + (1 << 62):\n",
        f"{STORE_TESTS}::TestRecovery::test_progress_in_messages_that_were_lost_comes_back_to_the_end_of_the_log[offset]",
        f"{STORE_TESTS}::TestRecovery::test_progress_in_messages_that_were_lost_comes_back_to_the_end_of_the_log[range]",
    ),
    bug(
        "25",
        "epoch file torn",
        "replica.json is written in place",
        f"{BROKER}/replication/node.py",
        "        for path in self._paths:\n"
        "            await self._disk.offload(replace_file, self._disk, path, content, keep_previous=False)\n",
        "        files = [self._disk.open(path, create=True) for path in self._paths]\n"
        "        for file in files:\n"
        "            file.truncate(0)\n"
        "            file.pwrite(content, 0)\n"
        "        for file in files:\n"
        "            file.sync_data()\n"
        "            file.close()\n"
        "        self._disk.sync_dir(self._paths[0].parent)\n",
        f"{BROKER_TESTS}/test_broker_replica_state.py::test_no_power_cut_takes_an_epoch_back_or_tears_it",
    ),
    bug(
        "26",
        "committed transaction dropped at minISR (#7709)",
        "a half message of which the replica has no copy yet is given up",
        "libs/mqclient/src/mqclient/producer/transaction_producer.py",
        "frozenset({SendStatus.SEND_OK, SendStatus.SLAVE_NOT_AVAILABLE})",
        "frozenset({SendStatus.SEND_OK})",
        "libs/mqclient/tests/test_mqclient_transaction_producer.py"
        "::test_a_half_that_is_less_safe_than_wished_is_rolled_back_unless_only_the_replica_is_away",
    ),
    bug(
        "27",
        "check loop never advances (#9500)",
        "a half that cannot be checked ends the round, which begins with it again the next time",
        f"{BROKER}/processor/half_messages.py",
        "                    one.failed(half, error)\n",
        "                    one.failed(half, error)\n                    return\n",
        f"{BROKER_TESTS}/test_broker_transaction_checks.py"
        "::TestRounds::test_a_half_that_cannot_be_read_is_passed_over_and_the_round_goes_on",
    ),
    bug(
        "29",
        "delay offsets overwritten before load (#6881)",
        "what delayOffset.json says is not taken over, and the next checkpoint writes over it",
        f"{BROKER}/core/delays.py",
        "        self._done = done_of(document)\n",
        "        done_of(document)\n",
        f"{BROKER_TESTS}/test_broker_delay.py"
        "::test_a_restart_delivers_what_waited_once_and_what_came_due_meanwhile_at_once[True]",
        f"{BROKER_TESTS}/test_broker_timer_faults.py"
        "::TestRestarts::test_a_restart_at_any_time_delivers_everything_once_and_in_time[clean]",
    ),
    Bug(
        "40",
        "waiting messages beyond the confirm offset deleted",
        "old files go up to the end of the log, whatever is confirmed",
        (
            Edit(
                f"{STORE}/retention.py",
                "end is not None and end <= self.readable_end() else None",
                "end is not None and end <= self.log.end else None",
            ),
            Edit(f"{STORE}/retention.py", "self._carried_to = self.store.log_end  #", "self._carried_to = 0  #"),
        ),
        (
            f"{BROKER_TESTS}/test_broker_replication_cleaning.py"
            "::test_a_master_without_its_replica_deletes_nothing_beyond_the_confirm_offset",
        ),
    ),
    bug(
        "48",
        "a full disk of waiting messages is rewritten for ever",
        "the oldest file goes whatever has to be written again for that",
        f"{STORE}/retention.py",
        "if end <= self._worth_to:",
        "if end > self._worth_to:",
        f"{BROKER_TESTS}/test_broker_carrying_over.py"
        "::TestDelayed::test_on_a_full_disk_nothing_is_carried_when_that_frees_nothing",
    ),
    bug(
        "42",
        "times of the calendar follow a clock of the broker's own",
        "steps of the wall clock are not noticed",
        f"{BROKER}/core/broker_time.py",
        "        if self._wall is not None:\n",
        "        if self._wall is None:\n",
        f"{BROKER_TESTS}/test_broker_timer.py"
        "::TestWallClock::test_what_waits_during_a_step_comes_by_the_corrected_clock",
        f"{BROKER_TESTS}/test_broker_timer.py"
        "::TestWallClock::test_after_one_start_a_year_ahead_times_of_the_calendar_are_kept_at_later_starts",
    ),
    bug(
        "30",
        "duplicate doubling on consumer restart (#7182)",
        "a consumer that leaves gives failed messages back and does not count them as finished",
        "libs/mqclient/src/mqclient/consumer/consuming.py",
        "            else:\n                self._finish(process_queue, [message])\n",
        "            else:\n                self._closing or self._finish(process_queue, [message])\n",
        "libs/mqclient/tests/test_mqclient_consuming.py"
        "::test_message_that_fails_while_its_consumer_leaves_comes_again_once_and_not_twice",
    ),
    bug(
        "31",
        "check-back ROLLBACK without tombstone",
        "a check-back that finds no row answers ROLLBACK and writes none",
        "libs/mqclient/src/mqclient/sqlalchemy/transactions.py",
        "                await self._insert(connection, id_, TOMBSTONE, now_ms)\n",
        "                pass\n",
        "libs/mqclient/tests/test_mqclient_sqlalchemy.py"
        "::TestTable::test_a_late_local_transaction_fails_on_the_tombstone_whole",
    ),
    bug(
        "32",
        "callback without amount check",
        "a webhook of the gateway is believed whatever amount it names",
        "services/payments/src/payments/domain/gateway_event.py",
        "    if event.amount_minor != payment.amount_minor:\n"
        '        return _rejected(f"the payment is of {payment.amount_minor}, not {event.amount_minor}")\n',
        "",
        "services/payments/tests/test_payments_webhooks.py"
        "::test_a_webhook_with_another_amount_or_currency_moves_nothing",
    ),
    bug(
        "33",
        "close without status predicate",
        "the status of an order changes whatever it is by now",
        "services/orders/src/orders/adapters/order_writes.py",
        'orders.c.status == bindparam("old_status"),\n    orders.c.version == bindparam("old_version"),',
        'orders.c.status.is_not(None) | (orders.c.status == bindparam("old_status")),\n'
        '    orders.c.version.is_not(None) | (orders.c.version == bindparam("old_version")),',
        "services/orders/tests/test_orders_use_cases.py::test_a_decision_on_an_old_reading_loses_by_compare_and_set",
    ),
    bug(
        "34",
        "SQLite synchronous=OFF/NORMAL",
        "NORMAL instead of FULL",
        "libs/servicekit/src/servicekit/sql/backends.py",
        'cursor.execute("PRAGMA synchronous=FULL")',
        'cursor.execute("PRAGMA synchronous=NORMAL")',
        "libs/servicekit/tests/test_servicekit_sqlite.py"
        "::test_every_connection_syncs_its_commits_and_checks_its_references",
    ),
    bug(
        "53",
        "a body that never comes holds a work slot",
        "a request takes its place in work before its body is read",
        "libs/servicekit/src/servicekit/http/application.py",
        "    if admission_limit is not None:\n"
        "        app.add_middleware(LoadShedding, admission=Admission(admission_limit, clock))\n"
        "    app.add_middleware(BodyLimit, clock=clock)\n",
        "    app.add_middleware(BodyLimit, clock=clock)\n"
        "    if admission_limit is not None:\n"
        "        app.add_middleware(LoadShedding, admission=Admission(admission_limit, clock))\n",
        "libs/servicekit/tests/test_servicekit_http_server.py::test_bodies_that_never_come_stop_no_write",
    ),
    bug(
        "49",
        "room for one batch of a queue is room for all of them",
        "each batch of a frame has room reserved from the end of its consume queue on",
        f"{STORE}/message_store.py",
        "                queue.reserve(end)\n",
        "                queue.reserve(queue.max_offset + batch.count)\n",
        f"{BROKER_TESTS}/test_broker_store.py"
        "::TestFailingDisk::test_no_room_for_all_batches_of_one_queue_rejects_each_of_them",
    ),
    bug(
        "37",
        "a record that is accepted and cannot be read",
        "properties of more than 32,767 bytes are no record for decode_record, though others take and store them",
        "libs/mqproto/src/mqproto/record.py",
        "    if topic_end + 2 + properties_size != end:\n",
        "    if properties_size > 32_767 or topic_end + 2 + properties_size != end:\n",
        f"{RECORD_LIMITS_TESTS}::TestLongProperties::test_a_kill_loses_nothing_behind_a_record_with_long_properties",
        f"{RECORD_LIMITS_TESTS}::TestLongProperties::test_a_replica_copies_a_record_with_long_properties",
    ),
    bug(
        "38",
        "two answers to which tag a record has",
        "of two TAGS properties the proof of a record from disk reads the first, everything else the last",
        "libs/mqproto/src/mqproto/properties.py",
        "    at = data.rfind(beginning, start, end)\n",
        "    at = data.find(beginning, start, end)\n",
        f"{RECORD_LIMITS_TESTS}::TestReservedProperties"
        "::test_a_stored_record_with_two_tags_has_the_last_one_in_memory_and_on_disk",
    ),
    bug(
        "39",
        "no room for what the broker adds",
        "a copy whose properties take more than 32,767 bytes is rejected, also of records that were accepted",
        f"{BROKER}/core/rewrite.py",
        "    if len(encoded) > PROPERTIES_BYTES_MAX - CRC_BYTES:\n        encoded = _shortened(record, properties)\n",
        '    if len(encoded) > 32_767 - CRC_BYTES:\n        raise BatchError("the properties do not fit")\n',
        f"{WRITING_AGAIN_TESTS}::test_files_go_although_messages_wait_whose_copies_have_no_room_to_spare",
        f"{WRITING_AGAIN_TESTS}::test_a_half_whose_copy_has_no_room_to_spare_is_checked",
        f"{WRITING_AGAIN_TESTS}::test_a_full_message_that_is_never_consumed_becomes_a_dead_letter",
    ),
    Bug(
        "36",
        "a running group skips what is sent to new queues",
        "under CONSUME_FROM_LAST_OFFSET a group begins with a new queue at its end, whatever it has consumed before",
        (
            Edit(
                "libs/mqclient/src/mqclient/consumer/rebalance.py",
                "        return {queue for queue in queues if queue not in self._first_seen[queue.topic]}\n",
                "        return set()\n",
            ),
            Edit(
                "libs/mqclient/src/mqclient/consumer/offsets.py",
                "            return FROM_FIRST\n",
                "            return self._begin\n",
            ),
        ),
        (
            f"{NEW_QUEUES_TESTS}::test_a_group_whose_members_were_away_misses_nothing_of_a_new_queue[1-more_queues]",
            f"{NEW_QUEUES_TESTS}::test_a_running_group_misses_nothing_of_a_new_queue"
            "[ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET-another_broker]",
        ),
    ),
    bug(
        "41",
        "two processes with one client id",
        "the newest session of a client id is the client's, whichever process it belongs to",
        "services/mq-broker/src/mq_broker/processor/sessions.py",
        "        if rival is not None:\n",
        "        if False:\n",
        "libs/mqclient/tests/test_mqclient_client_ids.py"
        "::test_the_second_process_of_an_instance_name_does_not_start_and_the_first_goes_on",
    ),
    bug(
        "43",
        "everything of the first seconds after kill -9 comes again",
        "after any stop that was not in order a broker under asynchronous flush renews the versions of all progress",
        f"{BROKER}/processor/broker.py",
        " or (report.same_boot and not lost)\n",
        "\n",
        f"{PROGRESS_TESTS}::test_a_broker_that_is_killed_makes_nothing_come_again",
    ),
    bug(
        "44",
        "progress rejected after a reset",
        "what a listener finishes of before a reset is reported beside what is finished after it",
        "libs/mqclient/src/mqclient/consumer/engine.py",
        "            if process_queue.outdated:\n                continue\n",
        "",
        "libs/mqclient/tests/test_mqclient_progress.py::test_a_report_names_each_queue_once_also_after_a_reset",
    ),
    bug(
        "45",
        "two members join, and both begin with the same queues",
        "a member begins with the share that it computed before its pause",
        "libs/mqclient/src/mqclient/consumer/rebalance.py",
        "            ready = added & waited_for if any(share.has_others for share in known) else added\n",
        "            if any(share.has_others for share in known) and added:\n"
        "                self.done_once.set()\n"
        "                await self._instance.clock.sleep(HAND_OVER_S)\n"
        "            ready = added\n",
        "libs/mqclient/tests/test_mqclient_consumer.py"
        "::test_members_that_join_one_after_the_other_consume_nothing_twice",
    ),
    bug(
        "46",
        "more queues than one poll stream takes",
        "all polls of a broker go over one stream, which the broker rejects",
        "libs/mqclient/src/mqclient/connection/poll_stream.py",
        "if one.poll_count < POLLS_PER_STREAM), None)",
        "), None)",
        f"{PROGRESS_TESTS}::test_more_polls_than_one_stream_takes_go_over_several",
    ),
    bug(
        "47",
        "too many finished ranges stop a group's progress",
        "a client reports as many finished ranges as it has",
        "libs/mqclient/src/mqclient/consumer/offsets.py",
        "            if len(gaps) == RANGES_MAX:\n                return tuple(gaps)\n",
        "",
        f"{PROGRESS_TESTS}::test_more_finished_ranges_than_a_broker_keeps_hold_up_nothing",
    ),
    bug(
        "52",
        "a dirty file is closed without being synced",
        "a file that has lost its descriptor is left out when it should be synced",
        "libs/osenv/src/osenv/pooled_files.py",
        "    def sync_data(self) -> None:\n        file",
        "    def sync_data(self) -> None:\n        if self.file is None:\n            return\n        file",
        f"{BROKER_TESTS}/test_broker_descriptors.py"
        "::test_queues_without_a_descriptor_are_on_disk_after_a_checkpoint_that_counts_them",
    ),
    bug(
        "50",
        "responses without a bound",
        "there is always room for one more response",
        f"{BROKER}/processor/long_polling.py",
        "        return used <= CLIENT_RESPONSE_BYTES_MAX and used <= self.memory.bytes_max - self.memory.used\n",
        "        return True\n",
        f"{BROKER_TESTS}/test_broker_response_memory.py"
        "::test_responses_that_are_not_read_wait_unbuilt_and_come_when_they_are",
    ),
    bug(
        "51",
        "fdatasync behind cold reads",
        "the sync of the log waits for a thread that cold reads use, too",
        f"{STORE}/durability.py",
        "await self._disk.offload_in(Lane.SYNC, sync_to_end)",
        "await self._disk.offload_in(Lane.READ, sync_to_end)",
        f"{BROKER_TESTS}/test_broker_read_turns.py::test_syncs_and_checkpoints_wait_for_no_reads",
    ),
    bug(
        "54",
        "a send back is answered before the in-sync replicas have it",
        "what became of the replicas' copies is thrown away",
        f"{BROKER}/processor/producing.py",
        "        await store.wait_acknowledged()\n",
        "        await store.wait_stored(store.log_end)\n",
        f"{BROKER_TESTS}/test_broker_durable_answers.py::test_a_send_back_that_the_replica_does_not_have_is_no_success",
    ),
    bug(
        "55",
        "REMOVED is answered before the in-sync replicas have the note",
        "what became of the replicas' copies is thrown away",
        f"{BROKER}/processor/recalling.py",
        "        await self.store.wait_acknowledged()\n        end",
        "        await self.store.wait_stored(self.store.log_end)\n        end",
        f"{BROKER_TESTS}/test_broker_durable_answers.py::test_a_recall_that_the_replica_does_not_have_claims_nothing",
    ),
    bug(
        "56",
        "progress overtakes the log that it depends on",
        "progress is told to a replica without the log offset that it depends on",
        f"{BROKER}/replication/node.py",
        "ProgressEntries(entries, self._store.log_end) if entries",
        "ProgressEntries(entries) if entries",
        f"{BROKER_TESTS}/test_broker_durable_answers.py"
        "::test_a_message_that_its_group_sent_back_is_not_finished_where_its_retry_is_not",
    ),
    bug(
        "61",
        "two restores of one copy give the same versions",
        "a restored store draws no versions of its own",
        f"{BROKER}/processor/broker.py",
        "        if self._is_restored:  # a replica as well",
        "        if False:  # a replica as well",
        f"{BROKER_TESTS}/test_broker_backup.py"
        "::test_what_members_finish_after_one_restore_does_not_count_after_another_one",
    ),
    bug(
        "57",
        "a planned change of masters voids what members report",
        "a new term renews the versions although nothing can be missing",
        f"{BROKER}/core/replica_state.py",
        "self.renewal_term if has_all else term",
        "term",
        f"{BROKER_TESTS}/test_broker_replication.py"
        "::test_what_members_finish_counts_across_a_planned_switch_and_no_other",
    ),
    bug(
        "72",
        "a change is answered before the in-sync replicas have its record",
        "what became of the replicas' copies of an operator's change is thrown away",
        f"{STORE}/changes.py",
        "        if await self._store.wait_stored(self._store.log_end) is Copies.FLUSH_SLAVE_TIMEOUT:\n",
        "        if self._store.log_end < 0:\n",
        f"{BROKER_TESTS}/test_broker_changes.py"
        "::TestAPair::test_what_the_replica_does_not_have_is_rejected_and_can_be_repeated",
    ),
    bug(
        "73",
        "a replica has the record of a change, and not the change",
        "copied records of changes are not applied",
        f"{BROKER}/replication/states.py",
        "        if record.topic == CHANGES_TOPIC:\n",
        "        if record.topic == CHANGES_TOPIC and record.queue_id:\n",
        f"{BROKER_TESTS}/test_broker_changes.py::TestAPair::test_what_was_answered_survives_the_loss_of_the_master",
    ),
    bug(
        "74",
        "a deleted group's retries come to the next group of its name",
        "what waits is delivered whatever has become of its group",
        f"{BROKER}/core/subscription_groups.py",
        "        return log_offset < self._begun_at.get(group, 0)\n",
        "        return False\n",
        f"{BROKER_TESTS}/test_broker_changes.py::TestRetriesOfADeletedGroup::test_go_to_no_later_group_of_its_name",
    ),
    bug(
        "58",
        "progress of a deleted topic counts for the new one",
        "a report under an earlier version counts where the group has no offset",
        f"{BROKER}/processor/consuming.py",
        "if known is None and reported.renewals < self.offsets.renewals:",
        "if False:",
        f"{BROKER_TESTS}/test_broker_offsets.py::TestReports"
        "::test_what_was_said_of_a_deleted_topic_does_not_count_for_the_new_one_after_a_power_cut",
    ),
    bug(
        "62",
        "the master's cleaning overtakes a replica that lags behind",
        "files go without regard to connected replicas",
        f"{STORE}/retention.py",
        " or not self._is_copied(used):",
        ":",
        f"{BROKER_TESTS}/test_broker_replication_cleaning.py"
        "::test_a_file_stays_until_a_replica_that_lags_behind_an_asynchronous_master_has_it_and_the_copies",
    ),
    bug(
        "69",
        "a replica that joined later does not recognise what is sent again",
        "what producers have numbered is not told to a replica",
        f"{BROKER}/replication/states.py",
        "            self._sequences.take_over(self._coming_sequences[1])\n",
        "",
        f"{BROKER_TESTS}/test_broker_replica_sequences.py"
        "::test_a_replica_that_joins_after_retention_recognises_what_is_sent_again",
    ),
    bug(
        "75",
        "a sink's producers evict live ones",
        "the producer that was silent longest is evicted, also while it is live",
        f"{BROKER}/core/producer_table.py",
        "            if self._is_live(numbers, now_ms):\n",
        "            if not self._pairs:\n",
        f"{BROKER_TESTS}/test_broker_producer_memory.py"
        "::TestOnlyLiveOnesAreLeft::test_one_that_has_to_be_recognised_is_rejected_with_a_reason",
    ),
    bug(
        "65",
        "an orderly group stands still after a planned change of masters",
        "a successor does not take over the queue locks that were handed to it",
        f"{BROKER}/replication/node.py",
        'queue_locks if epoch == seen else b""',
        'b""',
        f"{BROKER_TESTS}/test_broker_replica_locks.py::test_members_go_on_with_their_queues_at_once_after_a_switch",
    ),
    bug(
        "66",
        "queue locks of an earlier term are believed",
        "a table of locks counts as complete whatever its term is",
        f"{BROKER}/core/members.py",
        "document is None or self._term != before",
        "document is None",
        f"{BROKER_TESTS}/test_broker_replica_locks.py"
        "::test_no_two_members_listen_to_a_queue_whatever_masters_come_and_go",
    ),
    bug(
        "67",
        "a promoted replica delivers by its own wrong clock",
        "a promoted replica does not go on with its master's clocks",
        f"{BROKER}/replication/node.py",
        "state.master_time if state.role.is_master else None",
        "None",
        f"{BROKER_TESTS}/test_broker_replica_clocks.py::test_a_promoted_replica_with_a_wrong_clock_delivers_on_time",
    ),
    bug(
        "68",
        "a lost master's wrong clock counts for ever",
        "a promoted replica does not notice that its own clock was set",
        f"{BROKER}/core/broker_time.py",
        "abs(self._own_wall - before) >= STEP_MS_MIN or ",
        "",
        f"{BROKER_TESTS}/test_broker_replica_clocks.py"
        "::test_deliver_at_follows_the_clock_of_a_promoted_replica_once_that_is_set",
    ),
    bug(
        "76",
        "a restored replica that is promoted passes over new messages",
        "only a master draws its own versions of a store that was put back",
        f"{BROKER}/processor/broker.py",
        "        if self._is_restored:  # a replica as well",
        "        if self._is_restored and state.role.is_master:  # a replica as well",
        f"{BROKER_TESTS}/test_broker_restored_replicas.py"
        "::test_a_store_that_was_put_back_as_a_replica_and_is_promoted_counts_no_report_from_before",
    ),
    bug(
        "77",
        "a replica of a master that was restored twice passes over new messages",
        "a replica forgets a higher origin of versions",
        f"{BROKER}/core/replica_state.py",
        "max(self.renewal_origin, renewal_origin)",
        "renewal_origin",
        f"{BROKER_TESTS}/test_broker_restored_replicas.py::test_a_replica_keeps_the_higher_origin",
    ),
    bug(
        "78",
        "a replica that has just joined and is promoted gives numbers again",
        "the master says the next numbers of empty queues only",
        f"{BROKER}/replication/states.py",
        "            if first == end or queue.entry(first)[0] >= log_offset:\n",
        "            if first == end:\n",
        f"{BROKER_TESTS}/test_broker_replica_offsets.py"
        "::test_a_replica_that_has_just_joined_after_retention_gives_no_number_again",
    ),
    bug(
        "79",
        "new messages come in another order, and one never, after messages were lost",
        "the version of progress that a pull names is not compared",
        f"{BROKER}/processor/consuming.py",
        "known is None or known.version == version",
        "True",
        f"{PROGRESS_TESTS}::test_after_a_loss_of_power_an_orderly_group_gets_new_messages_in_their_order",
    ),
    bug(
        "80",
        "a replaced master that does not follow yet gives lost messages to members that know of the new one",
        "a replica serves whatever version a pull names",
        f"{BROKER}/processor/consuming.py",
        "known.renewals < Progress(0, version=version).renewals",
        "False",
        f"{BROKER_TESTS}/test_broker_replica_requests.py"
        "::TestPulling::test_messages_go_to_the_same_version_of_progress_and_others_hear_where_to_go_on",
    ),
    bug(
        "81",
        "members begin anew at a broker that has just started",
        "a list of members counts also where this one is missing",
        "libs/mqclient/src/mqclient/consumer/rebalance.py",
        "self._instance.client_id in response.client_ids or is_rejected",
        "True",
        "libs/mqclient/tests/test_mqclient_consumer_lifecycle.py"
        "::test_a_broker_that_does_not_know_its_members_yet_has_nothing_begun_twice",
    ),
    bug(
        "82",
        "a message that was sent back is finished where its retry is not",
        "a broker takes a report whatever the log that it depends on",
        f"{BROKER}/rpc/conversions.py",
        " if offsets.has_log_of(group, report, log_end)]",
        "]",
        f"{BROKER_TESTS}/test_broker_rpc_offsets.py"
        "::test_a_report_that_depends_on_more_of_the_log_is_left_out_until_it_is_there",
    ),
    bug(
        "83",
        "a message that is sent back to a replaced master is lost with it",
        "the version that a send back names is not compared",
        f"{BROKER}/processor/producing.py",
        "version is not None and progress is not None and not progress.has_renewals_of(version)",
        "False",
        f"{BROKER_TESTS}/test_broker_durable_answers.py"
        "::test_a_member_that_knows_of_another_log_has_nothing_sent_back_to_this_one",
    ),
    bug(
        "84",
        "a replica whose log has no epoch in common with its master's is cut where no record ends",
        "any place behind the beginning of its log counts as the end of a record",
        f"{BROKER}/replication/following.py",
        " and not set(hello.history.begins).isdisjoint(self.history.begins)",
        "",
        f"{BROKER_TESTS}/test_broker_reconciling.py::test_a_fork_that_no_common_epoch_shows_is_no_place_for_a_cut",
    ),
    bug(
        "85",
        "a former master drops its log for a broker that has never followed it",
        "epoch 1.1 at offset 0 is the same epoch, whichever broker began it",
        f"{BROKER}/replication/following.py",
        "are_strangers = self._anew_at is None and self.first_master_id",
        'are_strangers = self._anew_at is None and "" and self.first_master_id',
        f"{BROKER_TESTS}/test_broker_reconciling.py::test_two_first_masters_share_no_epoch",
    ),
    bug(
        "86",
        "a replica rejects every record of another one that was promoted without one",
        "a master without records says that it has its former master's epochs",
        f"{BROKER}/core/replica_state.py",
        "(self.history.without(log_begin) if log_begin < log_end else EpochHistory())",
        "self.history.without(log_begin)",
        f"{BROKER_TESTS}/test_broker_replication_cleaning.py"
        "::test_a_replica_without_records_follows_a_successor_that_gives_other_numbers",
    ),
    bug(
        "87",
        "a replica is promoted for records that it is about to lose",
        "a pending cut is not checked",
        f"{BROKER}/replication/node.py",
        "    if node.file.state.cut is not None:\n",
        "    if False:\n",
        f"{BROKER_TESTS}/test_broker_replication.py::test_a_replica_whose_log_is_about_to_be_cut_is_not_promoted",
    ),
    bug(
        "88",
        "a replica that was away brings back an offset in a deleted topic",
        "a master takes over what is not below the deletion, whether the topic is there or not",
        f"{BROKER}/replication/states.py",
        " or self._has_deleted(topic)",
        "",
        f"{BROKER_TESTS}/test_broker_replica_offsets.py"
        "::test_a_replica_that_was_away_brings_no_offset_back_in_a_topic_that_was_deleted",
    ),
    bug(
        "89",
        "a group's offset is on the master alone, and the group begins at the end when that is lost",
        "what both sides agree on is not told again, though one of them has still to come to a deletion",
        f"{BROKER}/replication/states.py",
        " and not is_behind:",
        ":",
        f"{BROKER_TESTS}/test_broker_replica_offsets.py"
        "::test_an_offset_that_a_replica_brings_back_in_a_topic_that_was_made_again_is_on_both_sides",
    ),
)
