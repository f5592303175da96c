package pagequeue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.util.zip.CRC32C;

/**
 * One page, opened: its header is checked, its bytes are read by position into the caller's memory.
 *
 * It is never mapped: a map of a file that is truncated would end the JVM in the checksum.
 */
final class PageFile {
    static final String MAGIC = "pgqpage\u001a";
    static final int FORMAT = 2;
    private static final int COMMIT_CONTINUES = 1;
    private static final long UNSET = -1L;

    final Place place;
    final long number;
    final String path;
    /** The sequence of its first frame; of its header. */
    long first;
    /** The timestamp before the page: no frame of it is older. */
    long floor;
    private final FileChannel channel;
    private final Compressed compressed;

    /**
     * Open a page.
     *
     * @param place of the queue.
     * @param number of the page.
     * @param sequence that is wanted, for errors.
     */
    PageFile(Place place, long number, long sequence) {
        this.place = place;
        this.number = number;
        String name = place.pageName(number);
        path = place.path(name);
        channel = place.open(name);
        if (channel == null) {
            throw missing(place, number, sequence);
        }
        boolean done = false;
        try {
            byte[] head = new byte[Frames.PAGE_HEADER];
            long size = Place.size(channel, path);
            int got = Place.read(channel, path, head, 0, 0, head.length);
            if (Compressed.is(channel, path, head, got, size, place.pageBytes)) {
                compressed = new Compressed(channel, path, size, place.pageBytes);
            } else {
                compressed = null;
                if (size != place.pageBytes) {
                    throw Problem.page(path, size + " bytes, must be " + place.pageBytes,
                        Math.min(size, place.pageBytes), "wrong size");
                }
            }
            header(head, got);
            done = true;
        } catch (Problem error) {
            throw Gone.or(place, number, sequence, error);
        } finally {
            if (!done) {
                Place.close(channel);
            }
        }
    }

    static Problem missing(Place place, long number, long sequence) {
        Problem replaced = place.replaced();
        if (replaced != null) {
            return replaced;
        }
        if (number < place.headPage()) {
            return place.expired(sequence);
        }
        return Problem.damage("MissingPage", place.path(place.pageName(number)),
            "page " + number + " is not there", 0, "missing page");
    }

    /** What is wrong with the bytes of a page's header by themselves; null: nothing. */
    static String wrong(byte[] head, int got) {
        if (got < Frames.PAGE_HEADER) {
            return "too short";
        }
        ByteBuffer fields = ByteBuffer.wrap(head).order(ByteOrder.LITTLE_ENDIAN);
        if (!begins(head, MAGIC) && !begins(head, Compressed.MAGIC)) {
            return "wrong magic";
        }
        int format = Short.toUnsignedInt(fields.getShort(8));
        if (format < FORMAT) {
            return "no format";
        }
        if (format != FORMAT) {
            return null; // a newer one, which says more
        }
        int stated = fields.getInt(12);
        byte[] copy = new byte[Frames.PAGE_HEADER];
        System.arraycopy(head, 0, copy, 0, copy.length);
        ByteBuffer.wrap(copy).putInt(12, 0);
        CRC32C crc = new CRC32C();
        crc.update(copy, 0, copy.length);
        if ((int) crc.getValue() != stated) {
            return "wrong checksum";
        }
        long first = fields.getLong(40);
        return first < 0 && first != UNSET ? "first sequence" : null;
    }

    static void refuseNewer(byte[] head, String path) {
        ByteBuffer fields = ByteBuffer.wrap(head).order(ByteOrder.LITTLE_ENDIAN);
        int format = Short.toUnsignedInt(fields.getShort(8));
        if (format != FORMAT) {
            throw Problem.of("NewerFormat", path, "written in format " + format + ", this is "
                + FORMAT, "upgrade pagequeue").with("version", (long) format);
        }
        int flags = Short.toUnsignedInt(fields.getShort(10));
        if ((flags & ~COMMIT_CONTINUES) != 0) {
            throw Problem.of("NewerFormat", path, "has flags 0x" + Integer.toHexString(flags)
                + ", of which this version knows 0x" + Integer.toHexString(COMMIT_CONTINUES)
                + " only", "upgrade pagequeue").with("version", (long) format);
        }
    }

    static boolean begins(byte[] bytes, String magic) {
        for (int i = 0; i < magic.length(); i++) {
            if (bytes[i] != (byte) magic.charAt(i)) {
                return false;
            }
        }
        return true;
    }

    private void header(byte[] head, int got) {
        String reason = wrong(head, got);
        if (reason != null) {
            throw Problem.header(path, reason);
        }
        refuseNewer(head, path);
        ByteBuffer fields = ByteBuffer.wrap(head).order(ByteOrder.LITTLE_ENDIAN);
        boolean own = true;
        boolean staged = true; // with the inverted id of the queue
        for (int i = 0; i < place.id.length; i++) {
            own &= head[24 + i] == place.id[i];
            staged &= head[24 + i] == (byte) ~place.id[i];
        }
        if (!own) {
            throw Problem.header(path, staged ? "as it was staged" : "a page of another queue");
        }
        if (fields.getLong(16) != number) {
            throw Problem.header(path, "it is page " + Long.toUnsignedString(fields.getLong(16))
                + ", not " + number);
        }
        first = fields.getLong(40);
        floor = fields.getLong(48);
        if (first == UNSET) {
            throw Problem.header(path, "no first sequence");
        }
    }

    /**
     * Read bytes of the page, of a compressed one as it was before.
     *
     * @return how many; fewer than asked for at the end of the file, or of a block.
     */
    int read(byte[] to, int at, long position, int count) {
        int most = (int) Math.min(count, place.pageBytes - position);
        if (most <= 0) {
            return 0;
        }
        if (compressed != null) {
            return compressed.read(to, at, position, most);
        }
        return Place.read(channel, path, to, at, position, most);
    }

    /** The error for a file that ends before a frame does. */
    Problem lost(long sequence) {
        long size = Place.size(channel, path);
        String reason = "truncated while it was open";
        return Problem.page(path, reason + ", at " + size + " bytes, on reading message "
            + sequence, size, reason).with("sequence", sequence);
    }

    /** Whether its file is compressed; then it has no index. */
    boolean isCompressed() {
        return compressed != null;
    }

    /**
     * A frame from which others lead to a message: position, sequence, and a time that none of them
     * is older than.
     */
    long[] start(long sequence) {
        return compressed == null ? new long[] {Frames.PAGE_HEADER, first, floor}
            : compressed.start(sequence);
    }

    /** The error for a page with another first sequence than the page before it asks for. */
    Problem beginsWith(long wanted) {
        return Problem.page(path, "begins with message " + first + ", must be " + wanted, 0,
            "wrong first sequence");
    }

    void close() {
        Place.close(channel);
    }
}
