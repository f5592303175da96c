/* Group commit on weakly ordered memory (I5, I7): no waiter misses the end of a flush, no sender is
 * told that a message is durable before it is, and a leader that dies blocks no other process.
 *
 * Forbidden: a sender asleep for ever; a sender that continues while its message is not on the disk.
 *
 * Steps, as in src/pagequeue/core/protocol/flush_turn.c and store/:
 *   P   publish: the tail is one more
 *   G1  acquire-load the turn; acquire-load the mark: durable: done; else
 *       not begun: begin the turn (one atomic read-and-write)
 *       begun: sleep, only if the turn is still the same; then again
 *   G2  acquire the flush lock; load the mark again; load the tail; sync; release-store the mark
 *   G3  release the lock (a system call); end the current turn; wake all
 *
 * A waiter that got no wake-up tries the lock after 10 ms. Here it can only do that once a process
 * died, so that a wake-up lost among live processes shows as a deadlock.
 *
 * Gathering is left out: a leader that waits for others sleeps for at most 2 ms and then runs the
 * steps above; one that does not wait runs them at once.
 *
 * One sender may be killed between any two steps. The kernel releases its lock; its stores become
 * visible.
 *
 * Mutations (-D): see no_weak_publish_is_ever_read.py.
 */

#ifndef MESSAGES
#define MESSAGES 1
#endif
#define PROCESSES 3

#define MARK 0
#define MEMORY 1
#define BUFFER 1

#define DRAINS DRAIN(0)
#include "memory.pml"

byte tail, disk, turn, begun, killed; /* begun: 1 + the turn; killed: 1 + who */
bool locked[PROCESSES], asleep[PROCESSES];

#define IS_LOCKED (locked[0] || locked[1] || locked[2])

inline wake_all() {
	d_step { asleep[0] = false; asleep[1] = false; asleep[2] = false }
}

inline raise_mark() {
	d_step { BUFFER_STORE(MARK, to, true) }
}

inline end_turn() {
#ifdef OWN_TURN_ONLY
	atomic {
		if
		:: turn == mine -> turn++
		:: else
		fi
	}
#else
	turn++;
#endif
#ifndef NO_WAKE
	wake_all()
#endif
}

proctype Sender(byte me) {
	byte sent, own, mine, to;
	{
		do
		:: sent == MESSAGES -> break
		:: else ->
			atomic { tail++; own = tail } /* P */
check:
			mine = turn; /* G1 */
			if
			:: memory[MARK] >= own -> goto durable
			:: memory[MARK] < own
			fi;
			if
			:: atomic { begun != mine + 1 -> begun = mine + 1 }
			:: begun == mine + 1 ->
				if
				:: atomic { turn == mine -> asleep[me] = true }
					if
					:: !asleep[me] ->
#ifdef TRUST_TURN
						goto durable
#else
						goto check
#endif
#ifndef NO_TIME_LIMIT
					:: killed != 0 -> asleep[me] = false
#endif
					fi
				:: turn != mine -> goto check
				fi
			fi;
			if
			:: atomic { !IS_LOCKED -> locked[me] = true } /* G2 */
			:: IS_LOCKED -> goto check
			fi;
			if
			:: memory[MARK] < own ->
				to = tail;
#ifdef EARLY_MARK
				raise_mark();
				disk = to;
#else
#ifdef LATE_TAIL
				disk = to;
				to = tail;
#else
#ifdef TURN_FIRST
				end_turn();
#endif
				disk = to;
#endif
				raise_mark();
#endif
			:: memory[MARK] >= own
			fi;
			atomic { EMPTY -> locked[me] = false }; /* G3: a system call */
#ifndef TURN_FIRST
			end_turn();
#endif
			goto check;
durable:	atomic { assert(disk >= own); sent++; mine = 0; to = 0; own = 0 }
		od
	} unless {
		atomic {
			killed == me + 1 ->
			locked[me] = false;
			asleep[me] = false;
			sent = 0;
			own = 0;
			mine = 0;
			to = 0
		}
	}
}

proctype Killer() {
	if
	:: killed = 1
	:: killed = 2
	:: skip
	fi
}

init {
	atomic {
		run Sender(0); run Drain(0);
		run Sender(1); run Drain(1);
		run Sender(2); run Drain(2);
		run Killer()
	}
}
