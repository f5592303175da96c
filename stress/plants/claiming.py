"""Planted bugs of groups: claims, leases, owners, snapshots."""

from __future__ import annotations

from stress.plants.plant import CLAIM, COMBINED, FAULT, in_c, in_python, switched

CLAIMING = (
    switched(
        "no_rebuild",
        "the state that a dead lock holder left is not repaired",
        "I14, I15",
        {CLAIM: 30.0},
    ),
    switched(
        "late_ack",
        "a claim can be acknowledged when its lease is over",
        "I15",
        {CLAIM: 15.0},
    ),
    in_c(
        "closing_is_damage",
        "a message counts as damaged when its worker could not map its page",
        "I15, it comes back a second later",
        {FAULT: 120.0},
        {
            "python/group_deliver.c": [
                ("if (pq_group_is_of_message(self)) {", "if (pq_group_is_of_message(self) || 1) {"),
            ]
        },
    ),
    in_c(
        "passed_before_claimed",
        "a group advances to the next message before the claim is stored",
        "I14, a kill in between loses it",
        {CLAIM: 30.0},
        {
            "protocol/group_claims.c": [
                (
                    (
                        "    set_word(record, id, PQ_RECORD_CLAIMED);\n    PQ_KILL_POINT(20);\n"
                        "    pq_table_advance(table, sequence + 1, next_place);\n"
                    ),
                    (
                        "    pq_table_advance(table, sequence + 1, next_place);\n"
                        "    PQ_KILL_POINT(20);\n"
                        ""
                        "    set_word(record, id, PQ_RECORD_CLAIMED);\n"
                    ),
                )
            ]
        },
    ),
    in_c(
        "half_claim_kept",
        "a claim whose claimer died before it had it stays",
        "I15",
        {CLAIM: 40.0},
        {
            "protocol/group_table.c": [
                (
                    (
                        "        if (get_u64(OF(record, SEQUENCE)) >= next || "
                        "state_of(record) == PQ_RECORD_FREE) {"
                    ),
                    (
                        "        if ((get_u64(OF(record, SEQUENCE)) >= next && 0) || "
                        "state_of(record) == PQ_RECORD_FREE) {"
                    ),
                )
            ]
        },
    ),
    in_c(
        "lease_not_waited_for",
        "a claimed message is claimed again at half its lease",
        "I15",
        {CLAIM: 20.0},
        {
            "protocol/group_claims.c": [
                (
                    "        if (when <= by->now || steps > table->capacity) {",
                    (
                        "        if (when <= by->now + (by->lease_end - by->now) / 2 || "
                        "steps > table->capacity) {"
                    ),
                )
            ]
        },
    ),
    in_c(
        "dead_claim_revived",
        "a lease that ended is extended by a claimer that dies",
        "I15",
        {CLAIM: 60.0},
        {
            "protocol/group_claims.c": [
                (
                    (
                        "    set_word(record, get_u64(OF(record, WORD)) >> 2, PQ_RECORD_WAITS);\n"
                        "    PQ_KILL_POINT(27);\n"
                    ),
                    (
                        "    put_u64(OF(record, LEASE_END), (uint64_t)by->lease_end);\n"
                        "    PQ_KILL_POINT(27);\n"
                        "    set_word(record, get_u64(OF(record, WORD)) >> 2, PQ_RECORD_WAITS);\n"
                    ),
                )
            ]
        },
    ),
    in_c(
        "ended_lease_does_not_wait",
        "a message whose lease ended is claimed at once, and again at once",
        "a message that hangs its workers keeps all others waiting",
        {CLAIM: 20.0},
        {
            "protocol/group_claims.c": [
                (
                    "get_u64(OF(record, LEASE_END)) + (uint64_t)delay);",
                    "get_u64(OF(record, LEASE_END)) + (uint64_t)delay * 0);",
                )
            ]
        },
    ),
    in_c(
        "dead_worker_does_not_wait",
        "a message whose worker died is claimed at once, and again at once",
        "a message that kills its workers keeps all others waiting",
        {CLAIM: 20.0},
        {
            "protocol/group_claims.c": [
                (
                    "let_wait(table, link - 1, record, now, now + delay,",
                    "let_wait(table, link - 1, record, now, now + delay * 0,",
                )
            ]
        },
    ),
    in_c(
        "delivered_once_too_often",
        "a message is delivered more often than `max_deliveries`",
        "what always fails is delivered for ever",
        {CLAIM: 20.0},
        {
            "protocol/group_claims.c": [
                (
                    "retry->deliveries_max != 0 && deliveries >= retry->deliveries_max;",
                    "retry->deliveries_max != 0 && deliveries > retry->deliveries_max;",
                )
            ]
        },
    ),
    in_c(
        "batch_counts_a_death",
        "a message that killed its worker is claimed together with others",
        "others count its deaths as their deliveries",
        {CLAIM: 20.0},
        {
            "protocol/group_claims.c": [
                (
                    "return cause == PQ_CAUSE_DEATH || cause == PQ_CAUSE_LEASE;",
                    "return cause == PQ_CAUSE_DEATH && cause == PQ_CAUSE_LEASE;",
                )
            ]
        },
    ),
    in_c(
        "old_table_believed",
        "a handle does not see that the table was made larger",
        "I14, I15, records that another handle made are passed over",
        {CLAIM: 60.0},
        {
            "protocol/group_table.c": [
                (
                    "    table->capacity = table->first << grown;\n",
                    "    table->capacity += table->capacity == 0 ? table->first << grown : 0;\n",
                )
            ]
        },
    ),
    in_c(
        "floor_too_high",
        "the floor passes what waits for redelivery",
        "I14, retention takes it",
        {CLAIM: 30.0},
        {
            "protocol/group_table.c": [
                (
                    (
                        "        first != NULL ? get_u64(OF(first, SEQUENCE)) : "
                        "pq_table_next(table, "
                        "&place);"
                    ),
                    (
                        "        first != NULL && state_of(first) == PQ_RECORD_CLAIMED\n"
                        "            ? get_u64(OF(first, SEQUENCE)) : pq_table_next(table, &place);"
                    ),
                )
            ]
        },
    ),
    in_python(
        "living_owners_robbed",
        "claims of owners that live are given to others",
        "I15",
        {CLAIM: 20.0},
    ),
    in_python(
        "table_of_another_boot_believed",
        "a group's table is trusted after a power cut",
        "I14",
        {CLAIM: 30.0},
    ),
    in_python(
        "only_snapshot_overwritten",
        "a snapshot is written over the one on stable storage",
        "I14",
        {CLAIM: 60.0},
    ),
    in_python(
        "dead_letter_forgotten",
        "a spent message is acknowledged and not kept",
        "I14",
        {CLAIM: 40.0},
    ),
    in_python(
        "rejected_again",
        "a rejected message is delivered again when its lease ends",
        "I14",
        {CLAIM: 20.0, COMBINED: 60.0},
    ),
    in_python(
        "rejected_and_gone",
        "a rejected message is acknowledged and not kept",
        "I14",
        {CLAIM: 20.0, COMBINED: 60.0},
    ),
    in_python(
        "rejected_twice",
        "a rejected message is two dead letters",
        "accounting",
        {CLAIM: 20.0},
    ),
)
