/* The same cases with libFuzzer choosing: its bytes decide first, then a generator continues. */
#include "hostile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static int prepared;
    if (!prepared) {
        hostile_prepare();
        prepared = 1;
    }
    source from = {data, bytes, bytes};
    hostile_case(&from);
    return 0;
}
