/* Publish, poll and the dead holder, on weakly ordered memory (I2, I3, I4, I5).
 *
 * Forbidden: a torn or foreign frame, a gap or a duplicate, a batch in parts, the loss of a message
 * that was sent, a survivor that waits for ever.
 *
 * Steps, as in src/pagequeue/core/protocol/frames.c (pq_append) and os/writers_lock.c:
 *   P0  acquire the lock; resolve: walk over what a dead holder published but did not count
 *   P1  zero the commit word after the last frame, and the position after the last index record
 *   P2  rest of the header, payload, index record; of a batch also every length but the first
 *   P3  release-store the (first) length: publish
 *   P4  release-store the tail: position and count in one word
 *   P5  unlock: a release too; by the kernel if the holder is dead
 *   P6  wake waiters: doorbell.pml
 *   C1  acquire-load the length        C2  load the rest        C3  advance
 *   T1  acquire-load the tail word     T2  everything below it must be there
 *
 * Memory: memory.pml. A reader without acquire may load the rest before the length.
 *
 * Death: at every step a writer may die instead, any number of times; a new one starts in its place.
 * What it had stored becomes visible later, in any allowed order, and only then is its lock handed
 * on: the kernel releases a dead owner's lock after the thread has stopped, with a full barrier.
 *
 * One reader is enough: readers do not store. It may be late by any amount, so what it finds at a
 * place holds for every later load of that place. Ghost variables (log_*) are no part of the queue.
 *
 * Mutations (-D): see no_weak_publish_is_ever_read.py. Sizes: ATTEMPTS sends begun, SHORT and LONG
 * frames in cells of memory, the first of which is the commit word. INDEX adds the index records,
 * TAIL_READER a process that trusts the tail word.
 */

#ifndef ATTEMPTS
#define ATTEMPTS 3
#endif
#define WRITERS 2
#define SHORT 2
#define LONG 3
#define MORE 8 /* flag in the commit word: the next frame belongs to the same batch */
#define SIZE(word) ((word) & 7)

#define FIRST_POSITION 1 /* 0 means "no record" in the index */
#define MESSAGES (2 * ATTEMPTS)
#define CELLS (FIRST_POSITION + ATTEMPTS * (SHORT + LONG) + 1)
#define TAIL CELLS
#define RECORD_TIME(sequence) (CELLS + 1 + 2 * (sequence))
#define RECORD_POSITION(sequence) (CELLS + 2 + 2 * (sequence))
#ifdef INDEX
#define MEMORY (CELLS + 1 + 2 * (MESSAGES + 1))
#else
#define MEMORY (CELLS + 1)
#endif

/* The tail word holds position and count: count in the low three bits. */
#define TAIL_WORD(position, count) ((position) * 8 + (count))
#define TAIL_POSITION (memory[TAIL] >> 3)
#define TAIL_COUNT (memory[TAIL] & 7)

/* The core makes every store of a single word a release. Only that of the length and that of the
 * tail have to be: without INDEX the others are weak here. */
#ifdef INDEX
#define WORD_ORDER true
#else
#define WORD_ORDER false
#endif

#define FREE 255
#define BUFFER 20 /* most stores that one append makes, settling two frames included */

#ifdef WEAK_LENGTH
#define LENGTH_ORDER false
#else
#define LENGTH_ORDER true
#endif
#ifdef WEAK_TAIL
#define TAIL_ORDER false
#else
#define TAIL_ORDER true
#endif

#define PROCESSES WRITERS
#define DRAINS \
	DRAIN(0) DRAIN(1) DRAIN(2) DRAIN(3) DRAIN(4) DRAIN(5) DRAIN(6) DRAIN(7) DRAIN(8) DRAIN(9) \
	DRAIN(10) DRAIN(11) DRAIN(12) DRAIN(13) DRAIN(14) DRAIN(15) DRAIN(16) DRAIN(17) DRAIN(18) \
	DRAIN(19)
#include "memory.pml"

byte lock_owner = FREE;
byte attempts;
byte finished;

byte published; /* ghost: messages whose publishing store was made, in the order of the lock */
byte log_word[MESSAGES];
byte log_payload[MESSAGES];

/* --- producers --------------------------------------------------------------------------------- */

/* A step of a producer: it stores, or it dies here. */
inline store(where, what, release) {
	atomic {
		if
		:: goto dead
		:: d_step { BUFFER_STORE(where, what, release) }
		fi
	}
}

inline write_rest(where, word, payload) {
	store(where + 1, payload, false);
	if
	:: SIZE(word) == LONG -> store(where + 2, payload, false)
	:: else
	fi
}

inline write_record(sequence, where, payload) {
#ifdef INDEX
	store(RECORD_TIME(sequence), payload, false);
	store(RECORD_POSITION(sequence), where, WORD_ORDER)
#else
	skip
#endif
}

inline zero_next() {
#ifndef NO_ZERO
	store(after, 0, WORD_ORDER);
#endif
#ifdef INDEX
	store(RECORD_POSITION(count + messages), 0, WORD_ORDER)
#else
	skip
#endif
}

inline advance_tail() {
#ifdef SPLIT_TAIL
	store(TAIL, TAIL_WORD(after, count), TAIL_ORDER);
#endif
	store(TAIL, TAIL_WORD(after, count + messages), TAIL_ORDER)
}

/* Ghost: the log grows when the store that publishes is made; whatever becomes of its maker, it will
 * be visible. */
inline publish() {
	d_step {
		log_word[published] = word0;
		log_payload[published] = payload0;
		published++;
		if
		:: messages == 2 ->
			log_word[published] = word1;
			log_payload[published] = payload0 + 1;
			published++
		:: else
		fi
	}
}

inline store_first_length() {
	atomic {
		if
		:: goto dead
		:: d_step { BUFFER_STORE(position, word0, LENGTH_ORDER) }
		fi;
		publish()
	}
}

#ifdef RESOLVE_BY_FRAME
#define RESOLVED(word) true
#else
#define RESOLVED(word) ((word & MORE) == 0)
#endif

/* P0. Frames that a dead holder published but did not count are counted, their index records written
 *     again; the tail moves over whole batches only, because readers trust it as an end (I5).
 *     Dies here: the next one continues from the last tail word (I3). */
inline resolve() {
	d_step { position = TAIL_POSITION; count = TAIL_COUNT }
#ifndef NO_WALK
	do
	:: d_step { position < CELLS && memory[position] != 0 -> word0 = memory[position] }
		write_record(count, position, memory[position + 1]);
		d_step { position = position + SIZE(word0); count++ }
		if
#ifndef RESOLVE_BY_FRAME
		:: (word0 & MORE) != 0
#endif
		:: RESOLVED(word0) -> store(TAIL, TAIL_WORD(position, count), TAIL_ORDER)
		fi;
		word0 = 0
	:: else -> break
	od;
#endif
	/* The next sequence is the next one: no gap, no duplicate, no published frame is overwritten. */
	assert(count == published && position < CELLS)
}

proctype Writer(byte me) {
	byte position, count, after, messages, word0, word1, payload0;
alive:
	atomic {
		lock_owner == FREE;
		if
		:: attempts == ATTEMPTS -> goto done
		:: else
		fi;
		lock_owner = me
	}
	resolve();
	atomic {
		attempts++;
		payload0 = 2 * attempts;
		if
		:: word0 = SHORT; messages = 1
		:: word0 = LONG; messages = 1
		:: word0 = SHORT | MORE; word1 = LONG; messages = 2
		:: word0 = LONG | MORE; word1 = SHORT; messages = 2
		fi;
		after = position + SIZE(word0) + SIZE(word1)
	}
#ifdef TAIL_FIRST
	advance_tail();
#endif
#ifndef ZERO_LATE
	zero_next(); /* P1. Dies here: the frame is invisible; the next starts at the same place (I4). */
#endif
	/* P2. Dies here: the same. */
	write_rest(position, word0, payload0);
	write_record(count, position, payload0);
#ifdef BATCH_FIRST
	store_first_length();
#endif
	if
	:: messages == 2 ->
		write_rest(position + SIZE(word0), word1, payload0 + 1);
		write_record(count + 1, position + SIZE(word0), payload0 + 1);
		store(position + SIZE(word0), word1, LENGTH_ORDER)
	:: else
	fi;
#ifndef BATCH_FIRST
	store_first_length(); /* P3. Dies here: whole and visible; counted by the next holder (I3). */
#endif
#ifdef ZERO_LATE
	zero_next();
#endif
#ifndef TAIL_FIRST
	advance_tail(); /* P4. Dies here: only the lock is left to give back. */
#endif
	/* P5. That an unlock is visible after all before it is here a wait for the empty buffer: no
	 * other process can tell the difference. */
	atomic {
		if
		:: goto dead
#ifdef WEAK_UNLOCK
		:: true
#else
		:: EMPTY
#endif
		fi;
		goto release
	}
dead:
#ifdef NOT_ROBUST
	atomic { goto reborn }
#endif
#ifndef EARLY_HANDOVER
	EMPTY;
#endif
release:
	atomic {
		lock_owner = FREE;
reborn:
		position = 0; count = 0; after = 0; messages = 0; word0 = 0; word1 = 0; payload0 = 0;
		goto alive
	}
done:	atomic { EMPTY -> finished++ }
}

/* --- readers ----------------------------------------------------------------------------------- */

inline load_length() {
	if
	:: memory[position] != 0 -> word = memory[position]
	:: memory[position] == 0 ->
		assert(!more); /* A batch is visible whole, or not at all (I5). */
		if
		:: memory[position] != 0 -> goto poll
		:: finished == WRITERS && memory[position] == 0 ->
			/* All that was published is there, though its sender may be dead. */
			assert(seen == published);
			goto done
		fi
	fi
}

inline load_rest() {
	d_step {
		first = memory[position + 1];
		if
		:: position + 2 < CELLS -> second = memory[position + 2]
		:: else
		fi
	}
}

#ifndef TAIL_READER
proctype Reader() {
	byte position = FIRST_POSITION;
	byte seen, word, first, second;
	bool more;
poll:
#ifdef WEAK_ACQUIRE
	load_rest();
	atomic { load_length() }
#else
	atomic { load_length() } /* C1 */
	load_rest();             /* C2 */
#endif
	d_step { /* C3 */
		assert(seen < published);
		assert(word == log_word[seen]);
		assert(first == log_payload[seen]);
		assert(SIZE(word) == SHORT || second == log_payload[seen]);
#ifdef INDEX
		assert(memory[RECORD_POSITION(seen)] == position);
		assert(memory[RECORD_TIME(seen)] == log_payload[seen]);
#endif
		more = (word & MORE) != 0;
		position = position + SIZE(word);
		seen++;
		word = 0; first = 0; second = 0
	}
	goto poll;
done:	skip
}
#endif

#ifdef TAIL_READER
proctype TailReader() {
	byte position, count, after, j;
	atomic { count = TAIL_COUNT; after = TAIL_POSITION } /* T1, at any time */
	d_step { /* T2, at any later one */
		position = FIRST_POSITION;
		do
		:: j < count ->
			assert(memory[position] == log_word[j]);
			assert(memory[position + 1] == log_payload[j]);
#ifdef INDEX
			assert(memory[RECORD_POSITION(j)] == position);
			assert(memory[RECORD_TIME(j)] == log_payload[j]);
#endif
			position = position + SIZE(log_word[j]);
			j++
		:: else -> break
		od;
		assert(position == after);
		assert(j == 0 || (log_word[j - 1] & MORE) == 0); /* no end inside a batch (I5) */
		position = 0; count = 0; after = 0; j = 0
	}
}
#endif

init {
	atomic {
		memory[TAIL] = TAIL_WORD(FIRST_POSITION, 0);
		run Writer(0); run Drain(0);
		run Writer(1); run Drain(1);
#ifdef TAIL_READER
		run TailReader()
#else
		run Reader()
#endif
	}
}
