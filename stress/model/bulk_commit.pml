/* Publishing many pages by one store, on weakly ordered memory (I1, I3, I8, I10, I19).
 *
 * Forbidden: a part of a bulk commit, a missing page that a marker links to, a frame with another
 * sequence than that of its place, the loss of a published message, a ledger entry without its
 * messages, a survivor that waits for ever.
 *
 * Steps, as in src/pagequeue/bulk/publisher.py, store/pending_commit.py, store/roll.py and
 * core/protocol/bulk_commit.c:
 *   M2  no page exists after the active one
 *   M3  under the writers' lock: resolve, then store batch_open
 *   M4  assign the next sequences to the staged pages; sync
 *   M5  the record; the pages' names, the last first
 *   M6  under the writers' lock: the tail fields of the last page
 *   M7  release-store the end-of-page marker, unless it is there: publish
 *   M8  batch_open = 0; release-store the page number
 *   M9  the record becomes the entry
 *   S   a process that needs a page first checks for a record: with a marker it runs M6 to M9,
 *       without one it removes the pages, the last first, then the record; only then does it
 *       create a page and roll into it (R1 to R4)
 *
 * M2 to M9 and S happen under the preparation lock. Names, record and both locks are the kernel's.
 * Page 2 is active and takes two messages; three pages with a message each are published as 3 to 5;
 * else page 3 is created by a producer. Any process may die between any two steps, DEATHS times in
 * all; the kernel then releases both locks in any order, when all that was stored is visible.
 *
 * One reader polls the frames; with TAIL_READER it follows the tail fields, as a replay does.
 *
 * Memory: memory.pml. Mutations (-D): see no_weak_publish_is_ever_read.py.
 */

#ifndef ATTEMPTS
#define ATTEMPTS 3 /* messages that producers begin to send */
#endif
#ifndef DEATHS
#define DEATHS 2
#endif
#define PRODUCERS 2
#define PUBLISHER 2
#define PROCESSES 3
#define STAGED_COUNT 3

#define ACTIVE(i) (i) /* commit words of page 2 */
#define FRAME(i) (3 + (i)) /* of the staged pages: the sequence in its checksum, + 1 */
#define AFTER 6 /* the commit word after the last of these */
#define MADE_FRAME 7 /* of the page that a producer made */
#define TAIL_EVEN 8 /* messages in page 2 */
#define TAIL_ODD 9 /* in page 3 or 5 */
#define FIRST_ODD 10
#define PAGE 11
#define OPEN 12
#define MEMORY 13
#define BUFFER 6

#define DRAINS DRAIN(0) DRAIN(1) DRAIN(2) DRAIN(3) DRAIN(4) DRAIN(5)
#include "memory.pml"

#define MESSAGE 1
#define END 2
#define CAPACITY 2
#define FREE 255
#define NEVER 255
#define NONE 0
#define STAGED 1
#define MADE 2
#define RECORD 1
#define ENTRY 2

#ifdef WEAK_PAGE
#define PAGE_ORDER false
#else
#define PAGE_ORDER true
#endif

byte writers_lock = FREE, preparation_lock = FREE;
byte file[3]; /* the files named as pages 3, 4 and 5 */
byte record, assigned; /* assigned: the first sequence in the staged pages' headers */
byte attempts, deaths, finished;

byte published; /* ghost: messages whose publishing store was made */
byte staged_first = NEVER; /* ghost: the first message of the bulk commit */

/* A step that stores, or the death of the process that would store. */
inline store(where, what, release) {
	atomic {
		if
		:: deaths < DEATHS -> deaths++; goto dead
		:: d_step { BUFFER_STORE(where, what, release) }
		fi
	}
}

/* A store that publishes, seen or not yet. */
inline publish(where, what, messages) {
	atomic {
		if
		:: deaths < DEATHS -> deaths++; goto dead
		:: d_step { BUFFER_STORE(where, what, true); published = published + messages }
		fi
	}
}

/* A system call; all that was stored before it is visible by then. */
inline call(what, becomes) {
	atomic {
		if
		:: deaths < DEATHS -> deaths++; goto dead
		:: EMPTY -> what = becomes
		fi
	}
}

inline unlock() {
	atomic { EMPTY -> writers_lock = FREE }
}

/* Count what a dead holder published and did not count; only page 2 can be left in the middle. */
inline resolve() {
	count = memory[TAIL_EVEN];
	do
	:: memory[ACTIVE(count)] == MESSAGE -> count++; store(TAIL_EVEN, count, true)
	:: memory[ACTIVE(count)] != MESSAGE -> break
	od
}

inline tail_words() {
	store(FIRST_ODD, assigned + STAGED_COUNT - 1, true);
	store(TAIL_ODD, 1, true)
}

inline next_page() {
	store(OPEN, 0, true);
	store(PAGE, 5, PAGE_ORDER)
}

/* For a frozen page: the process that found it frozen has resolved it. */
inline resolved() {
#ifdef NO_FREEZE
	resolve()
#else
	atomic { count = memory[TAIL_EVEN]; assert(memory[ACTIVE(count)] != MESSAGE) }
#endif
}

/* By the publisher, under the writers' lock; the core also checks that the active page's tail is the
 * one that the headers were written for, which is left out here. */
inline bulk_commit() {
	resolved();
	tail_words(); /* M6 */
#ifdef PAGE_FIRST
	next_page();
#endif
	atomic { publish(ACTIVE(count), END, STAGED_COUNT); staged_first = count }; /* M7 */
#ifndef PAGE_FIRST
	next_page() /* M8 */
#endif
}

inline remove_pages() {
	call(file[2], NONE);
	call(file[1], NONE);
	call(file[0], NONE)
}

inline write_entry() {
	atomic {
		call(record, ENTRY); /* M9 */
		assert(staged_first != NEVER) /* no entry without its messages */
	}
}

/* S, under the preparation lock. */
inline resolve_bulk_commit() {
	if
	:: record != RECORD
	:: record == RECORD && memory[PAGE] != 2 -> write_entry()
	:: record == RECORD && memory[PAGE] == 2 ->
#ifdef ROLL_BACK_ALWAYS
		remove_pages(); call(record, NONE)
#else
		if
		:: memory[ACTIVE(assigned)] == END ->
			atomic { writers_lock == FREE -> writers_lock = me };
			resolved();
			tail_words();
			next_page(); /* the marker is there */
			unlock();
			write_entry()
		:: memory[ACTIVE(assigned)] != END ->
#ifdef RECORD_FIRST
			call(record, NONE); remove_pages()
#else
			remove_pages(); call(record, NONE)
#endif
		fi
#endif
	fi
}

inline roll() {
	atomic { writers_lock == FREE -> writers_lock = me };
	if
	:: memory[PAGE] == 2 ->
		assert(file[0] == MADE); /* no producer rolls into pending pages */
		resolved();
		store(FIRST_ODD, count, true); /* R1, R2 */
		store(TAIL_ODD, 0, true);
		store(ACTIVE(count), END, true); /* R3 */
		store(OPEN, 0, true);
		store(PAGE, 3, PAGE_ORDER) /* R4 */
	:: memory[PAGE] != 2
	fi;
	unlock()
}

/* Page 2 takes no more, or is left: make the next page, or finish a pending commit. */
inline prepare() {
	atomic { preparation_lock == FREE -> preparation_lock = me };
#ifndef NO_CHECK
	resolve_bulk_commit();
#endif
	if
	:: memory[PAGE] == 2 && file[0] == NONE -> call(file[0], MADE)
	:: !(memory[PAGE] == 2 && file[0] == NONE)
	fi;
	preparation_lock = FREE;
	roll()
}

proctype Producer(byte me) {
	byte j, count;
alive:
	do
	:: atomic { writers_lock == FREE -> writers_lock = me };
		if
		:: attempts == ATTEMPTS -> unlock(); break
		:: attempts < ATTEMPTS && memory[PAGE] == 2 ->
			resolve();
			if
			:: count == CAPACITY || memory[ACTIVE(count)] == END || memory[OPEN] > count ->
				unlock();
				prepare()
			:: !(count == CAPACITY || memory[ACTIVE(count)] == END || memory[OPEN] > count) ->
				attempts++;
				store(ACTIVE(count + 1), 0, true); /* P1 */
				publish(ACTIVE(count), MESSAGE, 1); /* P3 */
				store(TAIL_EVEN, count + 1, true); /* P4 */
				unlock()
			fi
		:: attempts < ATTEMPTS && memory[PAGE] == 3 && memory[MADE_FRAME] == 0 ->
			attempts++;
			publish(MADE_FRAME, MESSAGE, 1);
			store(TAIL_ODD, 1, true);
			unlock()
		:: attempts < ATTEMPTS && memory[PAGE] == 5 && memory[AFTER] == 0 ->
			attempts++;
			publish(AFTER, MESSAGE, 1);
			store(TAIL_ODD, 2, true);
			unlock()
		:: attempts < ATTEMPTS && memory[PAGE] == 3 && memory[MADE_FRAME] != 0 -> unlock(); break
		:: attempts < ATTEMPTS && memory[PAGE] == 5 && memory[AFTER] != 0 -> unlock(); break
		fi;
		count = 0
	od;
	goto done;
dead:
	EMPTY;
	if
	:: atomic { writers_lock == me -> writers_lock = FREE }
	:: writers_lock != me
	fi;
	if
	:: atomic { preparation_lock == me -> preparation_lock = FREE }
	:: preparation_lock != me
	fi;
	atomic { count = 0; goto alive };
done:	atomic { EMPTY -> finished++ }
}

proctype Publisher() {
	byte me = PUBLISHER, j, count;
	atomic { preparation_lock == FREE -> preparation_lock = me };
	atomic { writers_lock == FREE -> writers_lock = me };
	if
	:: memory[PAGE] != 2 || file[0] != NONE -> unlock(); goto stop /* M2: it would take others */
	:: memory[PAGE] == 2 && file[0] == NONE
	fi;
	resolve();
#ifndef NO_FREEZE
	store(OPEN, count + 1, true); /* M3 */
#endif
	unlock();
	call(assigned, count); /* M4 */
	store(FRAME(0), count + 1, false);
	store(FRAME(1), count + 2, false);
	store(FRAME(2), count + 3, false);
#ifndef RECORD_LATE
	call(record, RECORD); /* M5 */
#endif
#ifdef ENTRY_EARLY
	write_entry();
#endif
#ifndef NAMES_LATE
	call(file[2], STAGED);
	call(file[1], STAGED);
	call(file[0], STAGED);
#endif
	atomic { writers_lock == FREE -> writers_lock = me };
	bulk_commit();
	unlock();
#ifdef NAMES_LATE
	call(file[2], STAGED);
	call(file[1], STAGED);
	call(file[0], STAGED);
#endif
	write_entry();
	goto stop;
dead:
	EMPTY;
	/* Either lock may be released first. */
	if
	:: atomic { writers_lock == me -> writers_lock = FREE }
	:: preparation_lock = FREE;
		if
		:: atomic { writers_lock == me -> writers_lock = FREE }
		:: writers_lock != me
		fi
	fi;
stop:
	atomic {
		EMPTY;
		if
		:: preparation_lock == me -> preparation_lock = FREE
		:: preparation_lock != me
		fi;
		finished++
	}
}

#ifndef TAIL_READER
proctype Reader() {
	byte seen, page;
	do
	:: memory[ACTIVE(seen)] == MESSAGE -> assert(seen < published); seen++
	:: memory[ACTIVE(seen)] == END -> break
	:: memory[ACTIVE(seen)] == 0 && finished == PROCESSES -> goto all
	od;
	assert(file[0] != NONE); /* I10 */
	if
	:: file[0] == STAGED ->
		do
		:: page < STAGED_COUNT ->
			assert(file[page] == STAGED);
			assert(memory[FRAME(page)] == seen + 1); /* or its checksum would be wrong */
			assert(seen < published);
			seen++;
			page++
		:: page == STAGED_COUNT -> break
		od;
		if
		:: memory[AFTER] == MESSAGE -> seen++
		:: memory[AFTER] == 0 && finished == PROCESSES
		fi
	:: file[0] == MADE ->
		if
		:: memory[MADE_FRAME] == MESSAGE -> seen++
		:: memory[MADE_FRAME] == 0 && finished == PROCESSES
		fi
	fi;
all:
	finished == PROCESSES;
	assert(seen == published)
}
#else
proctype Reader() {
	byte page, count, first;
	do
	:: finished == PROCESSES -> break
	:: finished < PROCESSES ->
		page = memory[PAGE];
		if
		:: page == 2 -> count = memory[TAIL_EVEN]
		:: page != 2 -> count = memory[TAIL_ODD]; first = memory[FIRST_ODD]
		fi;
		if
		:: memory[PAGE] != page
		:: memory[PAGE] == page ->
			assert(first + count <= published);
			assert(staged_first == NEVER || first + count <= staged_first
				|| first + count >= staged_first + STAGED_COUNT)
		fi;
		page = 0; count = 0; first = 0
	od
}
#endif

init {
	atomic {
		memory[PAGE] = 2;
		run Producer(0); run Drain(0);
		run Producer(1); run Drain(1);
		run Publisher(); run Drain(2);
		run Reader()
	}
}
