package pagequeue;

import java.nio.ByteOrder;
import java.util.zip.CRC32C;
import org.apache.spark.unsafe.Platform;

/**
 * Checks frames in a copy of a part of one page, as the core does in its map.
 *
 * The checksum goes over the queue's id, payload, timestamp, sequence and length. The JVM has an
 * instruction for the payload, but each call costs as much as some 30 bytes, and begins with
 * a state of its own; so one call sums the payload alone, and the rest is added to it: a CRC is
 * linear. What other bytes before the payload would change depends on its length only, and what
 * the numbers after it add is in tables.
 */
final class Frames {
    static final int FRAME = 0;
    static final int END = 1;
    static final int NOTHING = 2;
    static final int BAD_LENGTH = 3;
    static final int BAD_CHECKSUM = 4;
    /** The copy ends before the frame does. */
    static final int CUT = 5;
    static final int HEADER = 16;
    static final int PAGE_HEADER = 64;
    static final int LENGTH_MASK = 0x3fffffff;
    static final int FLAGS = 0xc0000000;
    static final int END_OF_PAGE = 0x80000000;
    static final int LARGE = 0xc0000000;
    /** Payloads from this size on are summed after the id, by two calls. */
    private static final int LONG = 1 << 12;
    private static final boolean IS_BIG = ByteOrder.nativeOrder() == ByteOrder.BIG_ENDIAN;
    private static final byte[] ZEROS = new byte[LONG];
    private static final int POLYNOMIAL = 0x82f63b78;
    private static final int NUMBERS = 20;
    /** Of each byte of the numbers, from the last one on, what it adds to the checksum. */
    private static final int[] ADDED = new int[NUMBERS << 8];

    static {
        for (int value = 0; value < 256; value++) {
            int sum = value;
            for (int bit = 0; bit < 8; bit++) {
                sum = (sum >>> 1) ^ ((sum & 1) == 0 ? 0 : POLYNOMIAL);
            }
            ADDED[value] = sum;
        }
        for (int i = 256; i < ADDED.length; i++) {
            int before = ADDED[i - 256];
            ADDED[i] = (before >>> 8) ^ ADDED[before & 255];
        }
    }

    private final byte[] id;
    private final long pageBytes;
    private final CRC32C crc = new CRC32C();
    /** For each length, what the id changes in the sum of a payload; 0: not yet known. */
    private final int[] changes = new int[LONG];
    private byte[] bytes;
    /** What the last numbers added, as far as the next ones are likely to have the same bytes. */
    private int lastWord;
    private int lastTime;
    private long lastSequence;
    private int ofWord;
    private int ofTime;
    private int ofSequence;

    /** Of the frame that was checked last. */
    int word;
    int payloadBytes;
    long timestamp;
    long next;

    /**
     * @param id of the queue, 16 bytes.
     * @param pageBytes of its pages.
     */
    Frames(byte[] id, long pageBytes) {
        this.id = id;
        this.pageBytes = pageBytes;
    }

    /** Check frames of this copy from now on. */
    void use(byte[] copy) {
        bytes = copy;
    }

    private static int intAt(byte[] bytes, int at) {
        int value = Platform.getInt(bytes, Platform.BYTE_ARRAY_OFFSET + at);
        return IS_BIG ? Integer.reverseBytes(value) : value;
    }

    private static long longAt(byte[] bytes, int at) {
        long value = Platform.getLong(bytes, Platform.BYTE_ARRAY_OFFSET + at);
        return IS_BIG ? Long.reverseBytes(value) : value;
    }

    static long aligned(long length) {
        return (length + 7L) & ~7L;
    }

    static boolean isLarge(int word) {
        return (word & FLAGS) == LARGE;
    }

    /** The bytes that the frame at a place of the copy needs there; as far as its length is. */
    int needed(int at, int limit) {
        return limit - at < 4 ? HEADER : Math.max(HEADER, intAt(bytes, at) & LENGTH_MASK);
    }

    /**
     * Check the frame at a place.
     *
     * @param at in the copy, where the frame begins.
     * @param limit end of the copy.
     * @param position of the frame in the page.
     * @param sequence that it must have.
     */
    int check(int at, int limit, long position, long sequence) {
        if (position < PAGE_HEADER || (position & 7L) != 0 || position > pageBytes - HEADER) {
            return BAD_LENGTH;
        }
        if (limit - at < 4) {
            return CUT;
        }
        word = intAt(bytes, at);
        if (word == 0) {
            return NOTHING;
        }
        int length = word & LENGTH_MASK;
        long room = pageBytes - position - aligned(length);
        boolean isEnd = (word & FLAGS) == END_OF_PAGE;
        if (length < HEADER || room < (isEnd ? 0 : HEADER)) {
            return BAD_LENGTH;
        }
        if (limit - at < length) {
            return CUT;
        }
        int stated = intAt(bytes, at + 4);
        timestamp = longAt(bytes, at + 8);
        payloadBytes = length - HEADER;
        next = position + aligned(length);
        if (sum(at + HEADER, sequence) != stated) {
            return BAD_CHECKSUM;
        }
        return isEnd ? END : FRAME;
    }

    /** The checksum of the frame that is being checked, whose payload begins there. */
    private int sum(int from, long sequence) {
        int size = payloadBytes;
        crc.reset();
        int state;
        if (size < LONG) {
            crc.update(bytes, from, size);
            int change = changes[size];
            state = ~(int) crc.getValue() ^ (change != 0 ? change : change(size));
        } else {
            crc.update(id, 0, HEADER);
            crc.update(bytes, from, size);
            state = ~(int) crc.getValue();
        }
        return ~numbers(state, sequence);
    }

    /** The sum of `size` zeros after the id, and of them alone: what any payload differs by. */
    private int change(int size) {
        CRC32C other = new CRC32C();
        other.update(ZEROS, 0, size);
        int alone = (int) other.getValue();
        other.reset();
        other.update(id, 0, HEADER);
        other.update(ZEROS, 0, size);
        changes[size] = alone ^ (int) other.getValue();
        return changes[size];
    }

    /** The state after timestamp, sequence and length. */
    private int numbers(int state, long sequence) {
        int high = (int) (timestamp >>> 32);
        if (high != lastTime) {
            lastTime = high;
            ofTime = added(high, 12);
        }
        long above = sequence >>> 8;
        if (above != lastSequence) {
            lastSequence = above;
            ofSequence = added((int) (sequence & ~255L), 8) ^ added((int) (sequence >>> 32), 4);
        }
        if (word != lastWord) {
            lastWord = word;
            ofWord = added(word, 0);
        }
        return added(state ^ (int) timestamp, 16) ^ ofTime ^ ofWord ^ ofSequence
            ^ ADDED[11 << 8 | (int) sequence & 255];
    }

    /** What four bytes add that are followed by `after` bytes of the numbers. */
    private static int added(int four, int after) {
        int[] table = ADDED;
        int at = after << 8;
        return table[at + 768 + (four & 255)] ^ table[at + 512 + (four >>> 8 & 255)]
            ^ table[at + 256 + (four >>> 16 & 255)] ^ table[at + (four >>> 24)];
    }

    /** The checksum of a fragment's block: over the queue's id and the bytes. */
    int blockSum(byte[] block, int from, int size) {
        crc.reset();
        crc.update(id, 0, HEADER);
        crc.update(block, from, size);
        return (int) crc.getValue();
    }

    static String reason(int found) {
        switch (found) {
            case NOTHING: return "no frame there";
            case END: return "the page ends there";
            case BAD_LENGTH: return "its length is invalid";
            default: return "its checksum is wrong";
        }
    }
}
