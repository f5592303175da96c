/* The body of folding, included once for each size of vectors by crc32c_folding.c, which defines
 * what is in capitals. */

ISA INLINED VECTOR NAME(pass)(uint8_t *to, const uint8_t *data, size_t at) {
    VECTOR value = LOAD(data + at);
    if (to != NULL) {
        __asm__("" : "+x"(value)); /* loaded once: stored as it was summed */
        STORE(to + at, value);
    }
    return value;
}

ISA INLINED VECTOR NAME(folded)(VECTOR value, VECTOR factors, VECTOR next) {
    return XOR(XOR(MULTIPLY(value, factors, 0x00), MULTIPLY(value, factors, 0x11)), next);
}

#define PASS(vectors) NAME(pass)(to, data, (vectors) * sizeof(VECTOR))

/* At least four vectors. */
ISA INLINED uint32_t NAME(fold)(uint32_t crc, uint8_t *to, const uint8_t *data, size_t bytes) {
    VECTOR one = SPREAD(NAME(one)), four = SPREAD(NAME(four));
    VECTOR a = XOR(PASS(0), FIRST(crc)), b = PASS(1), c = PASS(2), d = PASS(3);
    size_t step = 4 * sizeof(VECTOR);
    for (;;) {
        data += step;
        to = to == NULL ? NULL : to + step;
        bytes -= step;
        if (bytes < step) {
            break;
        }
        a = NAME(folded)(a, four, PASS(0));
        b = NAME(folded)(b, four, PASS(1));
        c = NAME(folded)(c, four, PASS(2));
        d = NAME(folded)(d, four, PASS(3));
    }
    b = NAME(folded)(a, one, b);
    c = NAME(folded)(b, one, c);
    d = NAME(folded)(c, one, d);
    while (bytes >= sizeof(VECTOR)) {
        d = NAME(folded)(d, one, PASS(0));
        data += sizeof(VECTOR);
        to = to == NULL ? NULL : to + sizeof(VECTOR);
        bytes -= sizeof(VECTOR);
    }
    uint64_t words[sizeof(VECTOR) / 8];
    memcpy(words, &d, sizeof d);
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        sum = _mm_crc32_u64(sum, words[i]);
    }
    crc = (uint32_t)sum;
    return to == NULL ? rest->update(crc, data, bytes) : rest->copy(crc, to, data, bytes);
}

ISA static uint32_t NAME(update)(uint32_t crc, const uint8_t *data, size_t bytes) {
    return NAME(fold)(crc, NULL, data, bytes);
}

ISA static uint32_t NAME(copy)(uint32_t crc, uint8_t *to, const uint8_t *data, size_t bytes) {
    return NAME(fold)(crc, to, data, bytes);
}

ISA static uint32_t NAME(frame)(uint32_t queue_state, const uint8_t *payload, size_t bytes,
                                int64_t timestamp, uint64_t sequence, uint32_t word) {
    return rest->finish(NAME(fold)(queue_state, NULL, payload, bytes), timestamp, sequence, word);
}

#undef ISA
#undef NAME
#undef VECTOR
#undef LOAD
#undef STORE
#undef XOR
#undef MULTIPLY
#undef SPREAD
#undef FIRST
#undef PASS
