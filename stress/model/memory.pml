/* Weakly ordered memory, for the models in this directory.
 *
 * Each process has a store buffer. Its stores become visible one at a time in any order, but a
 * release store only after everything stored before it; later stores may pass it. Loads read
 * memory. That is ARM's model for these programs (all other processes agree on one order of
 * memory, and none of them loads a word that it has stored and not yet drained), and weaker than
 * x86. A load moved before an earlier one is written out where it matters.
 *
 * The model that includes this defines before how many words of MEMORY there are, how many PROCESSES
 * store, how many stores a BUFFER takes, and lists as DRAINS its places: DRAIN(0) DRAIN(1) ...
 */

typedef Buffer {
	byte count;
	byte address[BUFFER];
	byte value[BUFFER];
	bool held[BUFFER] /* not before all that was stored before it */
};

byte memory[MEMORY];
Buffer buffer[PROCESSES];

#define EMPTY (buffer[me].count == 0)

#define BUFFER_STORE(where, what, release) \
	assert(buffer[me].count < BUFFER && (where) < MEMORY); \
	buffer[me].address[buffer[me].count] = where; \
	buffer[me].value[buffer[me].count] = what; \
	buffer[me].held[buffer[me].count] = release; \
	buffer[me].count++

#define DRAIN(i) \
	:: d_step { buffer[me].count > i && (i == 0 || !buffer[me].held[i]) -> \
		memory[buffer[me].address[i]] = buffer[me].value[i]; \
		buffer[me].count--; \
		j = i; \
		do \
		:: j < buffer[me].count -> \
			buffer[me].address[j] = buffer[me].address[j + 1]; \
			buffer[me].value[j] = buffer[me].value[j + 1]; \
			buffer[me].held[j] = buffer[me].held[j + 1]; \
			j++ \
		:: else -> break \
		od; \
		buffer[me].address[j] = 0; \
		buffer[me].value[j] = 0; \
		buffer[me].held[j] = 0; \
		j = 0 }

proctype Drain(byte me) {
	byte j;
end:	do
	DRAINS
	od
}
