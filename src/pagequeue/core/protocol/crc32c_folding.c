/* CRC-32C by folding: four vectors of carry-less multiplications, 128 or 256 bytes a step.
 *
 * A vector is 2 or 4 pieces of 16 bytes. A piece is moved ahead over D bits by multiplying its two
 * halves by x^(D+31) and x^(D-33) modulo the polynomial: 33 powers are in the places of the product,
 * and 64 between the halves. What is left at the end, one vector, is summed by the CRC instruction.
 */
#include "protocol/crc32c.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* By one vector, and by all four. */
static uint64_t narrow_one[2], narrow_four[2], wide_one[2], wide_four[2];
static pq_crc_path narrow_path, wide_path;
static const pq_crc_path *rest;

static void make_factors(uint64_t factors[2], uint64_t bytes) {
    factors[0] = pq_crc_power(8 * bytes + 31);
    factors[1] = pq_crc_power(8 * bytes - 33);
}

#define NARROW __attribute__((target("sse4.2,pclmul,avx2,vpclmulqdq")))
#define WIDE __attribute__((target("sse4.2,pclmul,avx2,avx512f,avx512vl,avx512bw,vpclmulqdq")))
#define INLINED static inline __attribute__((always_inline))

#define ISA NARROW
#define NAME(name) narrow_##name
#define VECTOR __m256i
#define LOAD(from) _mm256_loadu_si256((const __m256i *)(from))
#define STORE(to, value) _mm256_storeu_si256((__m256i *)(to), (value))
#define XOR(a, b) _mm256_xor_si256((a), (b))
#define MULTIPLY(a, b, halves) _mm256_clmulepi64_epi128((a), (b), (halves))
#define SPREAD(factors) \
    _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(factors)))
#define FIRST(crc) _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)(crc)))
#include "protocol/crc32c_folding.h"

#define ISA WIDE
#define NAME(name) wide_##name
#define VECTOR __m512i
#define LOAD(from) _mm512_loadu_si512(from)
#define STORE(to, value) _mm512_storeu_si512((to), (value))
#define XOR(a, b) _mm512_xor_si512((a), (b))
#define MULTIPLY(a, b, halves) _mm512_clmulepi64_epi128((a), (b), (halves))
#define SPREAD(factors) _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(factors)))
#define FIRST(crc) _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)(crc)))
#include "protocol/crc32c_folding.h"

void pq_crc_folding(const pq_crc_path *shorter, const pq_crc_path **narrow,
                    const pq_crc_path **wide) {
    rest = shorter;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq")) {
        make_factors(narrow_one, sizeof(__m256i));
        make_factors(narrow_four, 4 * sizeof(__m256i));
        narrow_path = (pq_crc_path){"folding 256", narrow_update, narrow_copy, narrow_frame,
                                    rest->lanes, rest->finish, rest->frame_sums};
        *narrow = &narrow_path;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512bw")) {
            make_factors(wide_one, sizeof(__m512i));
            make_factors(wide_four, 4 * sizeof(__m512i));
            wide_path = (pq_crc_path){"folding 512", wide_update, wide_copy, wide_frame,
                                      rest->lanes, rest->finish, rest->frame_sums};
            *wide = &wide_path;
        }
    }
}

#else

void pq_crc_folding(const pq_crc_path *rest, const pq_crc_path **narrow, const pq_crc_path **wide) {
    (void)rest, (void)narrow, (void)wide;
}

#endif
