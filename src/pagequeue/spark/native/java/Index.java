package pagequeue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;

/** The index of one page: a hint, which frames must confirm. */
final class Index {
    private static final int RECORD = 12;
    private static final long PAGE_BYTES_PER_RECORD = 32;

    private final ByteBuffer records;
    final int count;

    private Index(byte[] bytes, int count) {
        records = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
        this.count = count;
    }

    /**
     * Read records of a page's index.
     *
     * @return null: it is not there, or cannot be one.
     */
    static Index read(Place place, long page, long first, int count) {
        long capacity = place.pageBytes / PAGE_BYTES_PER_RECORD;
        if (first < 0 || first + count > capacity) {
            return null;
        }
        String name = place.indexName(page);
        FileChannel channel;
        try {
            channel = place.open(name);
        } catch (Problem ignored) {
            return null; // a link, or another user's: as if it were not there
        }
        if (channel == null) {
            return null;
        }
        try {
            byte[] bytes = new byte[count * RECORD];
            String path = place.path(name);
            if (Place.size(channel, path) != capacity * RECORD || Place.read(channel, path, bytes,
                0, first * RECORD, bytes.length) != bytes.length) {
                return null;
            }
            return new Index(bytes, count);
        } finally {
            Place.close(channel);
        }
    }

    long timestamp(int i) {
        return records.getLong(i * RECORD);
    }

    long position(int i) {
        return Integer.toUnsignedLong(records.getInt(i * RECORD + 8));
    }
}
