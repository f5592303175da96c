/* Group commit on weakly ordered memory (I5, I7): nobody sleeps beside a flush that ended, nobody is
 * told that a message is durable before it is, and a leader that dies keeps nobody.
 *
 * Forbidden: a sender asleep for ever; a sender that goes on while its message is not on the disk.
 *
 * Steps, as in src/pagequeue/core/turn.c and flush.py:
 *   P   publish: the tail is one more
 *   G1  acquire-load the turn; acquire-load the mark: durable, go on; else
 *       begun by nobody: begin the turn (one atomic read-and-write)
 *       begun: sleep, only if the turn is still the same; then again
 *   G2  take the flush lock; look at the mark again; take the tail; sync; release-store the mark
 *   G3  give the lock back (a system call); end the turn, whichever it is by now; wake all
 *
 * A sleeper that got no wake tries the lock after 10 ms. Here it can only do that once somebody died,
 * so that a wake-up that was lost among the living shows as a deadlock.
 *
 * Gathering is left out: whoever waits for others sleeps for at most 2 ms and then does what stands
 * here, and whoever does not wait does it at once.
 *
 * One sender may be killed between any two steps. The kernel gives its lock back; what it had stored
 * becomes visible.
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
look:
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
						goto look
#endif
#ifndef NO_TIME_LIMIT
					:: killed != 0 -> asleep[me] = false
#endif
					fi
				:: turn != mine -> goto look
				fi
			fi;
			if
			:: atomic { !IS_LOCKED -> locked[me] = true } /* G2 */
			:: IS_LOCKED -> goto look
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
			goto look;
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
