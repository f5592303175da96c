/* Sleeping and waking on weakly ordered memory (I7): no waiter misses a published message.
 *
 * Forbidden: a consumer that sleeps for ever with a published message that it has not read.
 *
 * Steps, as in src/pagequeue/core/protocol/frames.c (pq_append) and os/futex.c:
 *   P3  release-store the length: publish        P5  unlock: a release store
 *   P6  full fence; load the waiters word; if it is not 0: exchange it with 0, then move the
 *       doorbell, then wake all that sleep
 *   C1  acquire-load the length
 *   D1  acquire-load the doorbell                D2  store waiters = 1
 *   D3  full fence                               D4  load the length again
 *   D5  futex wait: sleep only if the doorbell is still what D1 saw
 *
 * Memory: memory.pml. A fence waits until the buffer is empty. An atomic read-and-write acts on
 * memory at once; the kernel's wait and wake are atomic. P5 stays in the buffer, so an unlock does
 * not order any load after it: that is the fence's duty. D1 is an acquire, so that it cannot move
 * after D2: LATE_BELL shows what happens if it does.
 *
 * No process dies here: a producer that dies between P3 and the end of P6 wakes no waiter; bounded
 * sleeps cover that case (no sleep is longer than 100 ms).
 *
 * Mutations (-D): see no_weak_publish_is_ever_read.py. Forbidden is an invalid end state: a
 * consumer that never gets to its end.
 */

#ifndef MESSAGES
#define MESSAGES 3
#endif
#define PRODUCERS 2
#define CONSUMERS 2
#define PROCESSES (PRODUCERS + CONSUMERS)

#define LENGTH(sequence) (sequence)
#define WAITERS MESSAGES
#define LOCK (MESSAGES + 1)
#define MEMORY (MESSAGES + 2)
#define BUFFER 4

#define DRAINS DRAIN(0) DRAIN(1) DRAIN(2) DRAIN(3)
#include "memory.pml"

byte doorbell;
bool asleep[PROCESSES];
byte tail; /* under the lock */

inline store(where, what, release) {
	d_step { BUFFER_STORE(where, what, release) }
}

inline wake() {
	d_step {
		j = PRODUCERS;
		do
		:: j < PROCESSES -> asleep[j] = false; j++
		:: else -> break
		od;
		j = 0
	}
}

proctype Producer(byte me) {
	byte j;
	do
	:: atomic { memory[LOCK] == 0 -> memory[LOCK] = 1 }
		if
		:: tail == MESSAGES -> store(LOCK, 0, true); break
		:: else
		fi;
		store(LENGTH(tail), 1, true); /* P3 */
		tail++;
		store(LOCK, 0, true); /* P5 */
#ifndef NO_PRODUCER_FENCE
		EMPTY; /* P6, the fence */
#endif
		if
		:: memory[WAITERS] != 0 ->
#ifdef BELL_FIRST
			doorbell++;
#endif
			memory[WAITERS] = 0;
#ifdef NO_BELL
			skip;
#else
#ifndef BELL_FIRST
			doorbell++;
#endif
#endif
			wake()
		:: else
		fi
	od
}

proctype Consumer(byte me) {
	byte seen, bell;
	do
	:: seen == MESSAGES -> break
	:: seen < MESSAGES && memory[LENGTH(seen)] != 0 -> seen++ /* C1 */
	:: seen < MESSAGES && memory[LENGTH(seen)] == 0 ->
#ifndef LATE_BELL
		bell = doorbell; /* D1 */
#endif
		store(WAITERS, 1, true); /* D2 */
#ifdef LATE_BELL
		bell = doorbell;
#endif
#ifndef NO_CONSUMER_FENCE
		EMPTY; /* D3 */
#endif
#ifndef NO_SECOND_LOOK
		if
		:: memory[LENGTH(seen)] != 0 -> goto awake /* D4 */
		:: memory[LENGTH(seen)] == 0
		fi;
#endif
		if
		:: atomic { doorbell == bell -> asleep[me] = true } /* D5 */
			!asleep[me]
		:: doorbell != bell
		fi;
awake:		bell = 0
	od
}

init {
	atomic {
		run Producer(0); run Drain(0);
		run Producer(1); run Drain(1);
		run Consumer(2); run Drain(2);
		run Consumer(3); run Drain(3)
	}
}
