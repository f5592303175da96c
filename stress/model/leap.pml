/* Publishing many pages by one store, on weakly ordered memory (I1, I3, I8, I10, I19).
 *
 * Forbidden: a part of what is published as one, a page that a mark leads to and that is not there,
 * a frame with another sequence than that of its place, a message that was published and is gone, a
 * ledger's entry without its messages, a survivor that waits for ever.
 *
 * Steps, as in src/pagequeue/publication.py, publishing.py, roll.py and core/leap.c:
 *   M2  no page stands behind the active one
 *   M3  under the writers' lock: settle, then store batch_open
 *   M4  stamp the laid pages with the sequences that follow; sync
 *   M5  the record; the pages' names, the last first
 *   M6  under the writers' lock: the tail words of the last page
 *   M7  release-store the end mark, if it does not stand there: publish
 *   M8  batch_open = 0; release-store the page number
 *   M9  the record becomes the entry
 *   S   whoever needs a page looks for a record: with a mark he does M6 to M9, without one he removes
 *       pages, the last first, then the record; only then a page is made and rolled into (R1 to R4)
 *
 * M2 to M9 and S happen under the preparation lock. Names, record and both locks are the kernel's.
 * Page 2 is active and takes two messages; three pages with a message each are published as 3 to 5;
 * else page 3 is made by a producer. Anybody may die between any two steps, DEATHS times in all; the
 * kernel then gives both locks back in any order, when all that was stored is visible.
 *
 * One reader polls the frames; with TAIL_READER it goes by the tail words, as a replay does.
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
#define LAID_COUNT 3

#define ACTIVE(i) (i) /* commit words of page 2 */
#define FRAME(i) (3 + (i)) /* of the pages that are laid down: the sequence in its checksum, + 1 */
#define BEHIND 6 /* the commit word behind the last of these */
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
#define LAID 1
#define MADE 2
#define RECORD 1
#define ENTRY 2

#ifdef WEAK_PAGE
#define PAGE_ORDER false
#else
#define PAGE_ORDER true
#endif

byte writers_lock = FREE, preparation_lock = FREE;
byte file[3]; /* what stands under the names of pages 3, 4 and 5 */
byte record, stamped; /* stamped: the first sequence in the laid pages' headers */
byte attempts, deaths, finished;

byte published; /* ghost: messages whose publishing store was made */
byte laid_first = NEVER; /* ghost: the first of those that were published as one */

/* A step that stores, or the death of who would. */
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

/* What a dead holder published and did not count is counted; only page 2 is left in the middle. */
inline settle() {
	count = memory[TAIL_EVEN];
	do
	:: memory[ACTIVE(count)] == MESSAGE -> count++; store(TAIL_EVEN, count, true)
	:: memory[ACTIVE(count)] != MESSAGE -> break
	od
}

inline tail_words() {
	store(FIRST_ODD, stamped + LAID_COUNT - 1, true);
	store(TAIL_ODD, 1, true)
}

inline next_page() {
	store(OPEN, 0, true);
	store(PAGE, 5, PAGE_ORDER)
}

/* Of a page that takes no more: whoever found that out had settled it. */
inline settled() {
#ifdef NO_FREEZE
	settle()
#else
	atomic { count = memory[TAIL_EVEN]; assert(memory[ACTIVE(count)] != MESSAGE) }
#endif
}

/* By the publisher, under the writers' lock; the core also looks whether what stands in front is what
 * the headers were made for, which is left out here. */
inline leap() {
	settled();
	tail_words(); /* M6 */
#ifdef PAGE_FIRST
	next_page();
#endif
	atomic { publish(ACTIVE(count), END, LAID_COUNT); laid_first = count }; /* M7 */
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
		assert(laid_first != NEVER) /* no entry without its messages */
	}
}

/* S, under the preparation lock. */
inline settle_publishing() {
	if
	:: record != RECORD
	:: record == RECORD && memory[PAGE] != 2 -> write_entry()
	:: record == RECORD && memory[PAGE] == 2 ->
#ifdef GIVE_UP_ALWAYS
		remove_pages(); call(record, NONE)
#else
		if
		:: memory[ACTIVE(stamped)] == END ->
			atomic { writers_lock == FREE -> writers_lock = me };
			settled();
			tail_words();
			next_page(); /* the mark stands there */
			unlock();
			write_entry()
		:: memory[ACTIVE(stamped)] != END ->
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
		assert(file[0] == MADE); /* nobody rolls into pages that wait */
		settled();
		store(FIRST_ODD, count, true); /* R1, R2 */
		store(TAIL_ODD, 0, true);
		store(ACTIVE(count), END, true); /* R3 */
		store(OPEN, 0, true);
		store(PAGE, 3, PAGE_ORDER) /* R4 */
	:: memory[PAGE] != 2
	fi;
	unlock()
}

/* Page 2 takes no more, or is left: make the next page, or finish what leads there. */
inline prepare() {
	atomic { preparation_lock == FREE -> preparation_lock = me };
#ifndef NO_LOOK
	settle_publishing();
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
			settle();
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
		:: attempts < ATTEMPTS && memory[PAGE] == 5 && memory[BEHIND] == 0 ->
			attempts++;
			publish(BEHIND, MESSAGE, 1);
			store(TAIL_ODD, 2, true);
			unlock()
		:: attempts < ATTEMPTS && memory[PAGE] == 3 && memory[MADE_FRAME] != 0 -> unlock(); break
		:: attempts < ATTEMPTS && memory[PAGE] == 5 && memory[BEHIND] != 0 -> unlock(); break
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
	settle();
#ifndef NO_FREEZE
	store(OPEN, count + 1, true); /* M3 */
#endif
	unlock();
	call(stamped, count); /* M4 */
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
	call(file[2], LAID);
	call(file[1], LAID);
	call(file[0], LAID);
#endif
	atomic { writers_lock == FREE -> writers_lock = me };
	leap();
	unlock();
#ifdef NAMES_LATE
	call(file[2], LAID);
	call(file[1], LAID);
	call(file[0], LAID);
#endif
	write_entry();
	goto stop;
dead:
	EMPTY;
	/* Either lock may go first. */
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
	:: file[0] == LAID ->
		do
		:: page < LAID_COUNT ->
			assert(file[page] == LAID);
			assert(memory[FRAME(page)] == seen + 1); /* or its checksum would be wrong */
			assert(seen < published);
			seen++;
			page++
		:: page == LAID_COUNT -> break
		od;
		if
		:: memory[BEHIND] == MESSAGE -> seen++
		:: memory[BEHIND] == 0 && finished == PROCESSES
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
			assert(laid_first == NEVER || first + count <= laid_first
				|| first + count >= laid_first + LAID_COUNT)
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
