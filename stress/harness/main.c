/* hostile SEED CASES: run so many cases, each from a separate seed; print which one failed. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "protocol/protocol.h"
#include "hostile.h"

#define CASE_SECONDS_MAX 20

static uint64_t seed, current;

static void say(int number) {
    char text[128];
    int bytes = snprintf(text, sizeof text, "signal %d in case %" PRIu64 " of seed %" PRIu64 "\n",
                         number, current, seed);
    if (write(2, text, (size_t)bytes) < 0) {
        _exit(3);
    }
}

static struct sigaction before[65];

static void failed(int number) {
    say(number);
    if (number == SIGALRM) {
        _exit(4); /* it hangs */
    }
    sigaction(number, &before[number], NULL); /* then repeat it, for the sanitizer to explain */
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: hostile SEED CASES\n");
        return 2;
    }
    seed = strtoull(argv[1], NULL, 10);
    uint64_t cases = strtoull(argv[2], NULL, 10);
    struct sigaction action = {.sa_handler = failed};
    const int numbers[] = {SIGSEGV, SIGBUS, SIGABRT, SIGALRM};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        sigaction(numbers[i], &action, &before[numbers[i]]);
    }
    hostile_prepare();
    source general = {NULL, 0, seed};
    hostile_checksums(&general);
    hostile_lock();
    for (current = 0; current < cases; current++) {
        if (current % 64 == 0) {
            alarm(CASE_SECONDS_MAX);
        }
        source from = {NULL, 0, seed * 0x9e3779b97f4a7c15u ^ (current << 20)};
        hostile_case(&from);
    }
    printf("%" PRIu64 " cases, checksum by %s, lock %s\n", cases, pq_crc_name(),
           pq_lock_needs_fd() ? "flock" : "robust");
    return 0;
}
