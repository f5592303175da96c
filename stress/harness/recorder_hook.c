/* Linked into a core with kill points (`-Wl,--wrap=pq_kill_point`): the recorder takes a snapshot
 * at each one before the core perhaps dies there. It has no effect without the recorder. */

extern void pq_trace_point(int number) __attribute__((weak, visibility("default")));
extern void pq_trace_hold(int hold) __attribute__((weak, visibility("default")));
void __real_pq_kill_point(int number);
void __wrap_pq_kill_point(int number);

void __wrap_pq_kill_point(int number) {
    if (pq_trace_point) {
        pq_trace_point(number);
        pq_trace_hold(1);
    }
    __real_pq_kill_point(number);
    if (pq_trace_point) {
        pq_trace_hold(0);
    }
}
