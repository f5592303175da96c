package pagequeue;

import org.apache.spark.unsafe.types.UTF8String;

/** Consecutive messages of one queue in memory, which the next batch overwrites. */
final class Rows {
    /** Rows of a batch without payloads. */
    static final int MOST = 1 << 18;

    UTF8String queue;
    long first;
    int count;
    /** Of each row, if a column needs them. */
    long[] times = new long[0];
    /** What the payloads are in, if a column needs them. */
    byte[] bytes;
    int[] begins = new int[0];
    int[] sizes = new int[0];

    void room(int rows, boolean withPayloads) {
        if (times.length < rows) {
            int most = Math.min(MOST, Math.max(rows, 2 * times.length));
            times = java.util.Arrays.copyOf(times, most);
            if (withPayloads) {
                begins = java.util.Arrays.copyOf(begins, most);
                sizes = java.util.Arrays.copyOf(sizes, most);
            }
        }
    }
}
