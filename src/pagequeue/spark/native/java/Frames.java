package pagequeue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.zip.CRC32C;

/**
 * Checks frames in a copy of a part of one page, as the core does in its map.
 *
 * The checksum goes over the queue's id, payload, timestamp, sequence and length. The id has as
 * many bytes as a frame's header, so for the time of a check it stands in the header's place, and
 * the three numbers stand after the payload: one call of the checksum sees all of them.
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
    /** So many bytes after the copy are overwritten during a check. */
    static final int SLACK = 24;
    private static final int NUMBERS = 20;

    private final long idLow;
    private final long idHigh;
    private final long pageBytes;
    private final CRC32C crc = new CRC32C();
    private byte[] bytes;
    private ByteBuffer view;

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
        ByteBuffer both = ByteBuffer.wrap(id).order(ByteOrder.LITTLE_ENDIAN);
        this.idLow = both.getLong(0);
        this.idHigh = both.getLong(8);
        this.pageBytes = pageBytes;
    }

    /** Check frames of this copy from now on; SLACK of its bytes are no part of it. */
    void use(byte[] copy) {
        bytes = copy;
        view = ByteBuffer.wrap(copy).order(ByteOrder.LITTLE_ENDIAN);
    }

    static long aligned(long length) {
        return (length + 7L) & ~7L;
    }

    static boolean isLarge(int word) {
        return (word & FLAGS) == LARGE;
    }

    /** The bytes that the frame at a place of the copy needs there; as far as its length is. */
    int needed(int at, int limit) {
        return limit - at < 4 ? HEADER : Math.max(HEADER, view.getInt(at) & LENGTH_MASK);
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
        word = view.getInt(at);
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
        int stated = view.getInt(at + 4);
        timestamp = view.getLong(at + 8);
        payloadBytes = length - HEADER;
        next = position + aligned(length);
        if (sum(at, length, sequence) != stated) {
            return BAD_CHECKSUM;
        }
        return isEnd ? END : FRAME;
    }

    private int sum(int at, int length, long sequence) {
        ByteBuffer in = view;
        int end = at + length;
        long headLow = in.getLong(at);
        long tailLow = in.getLong(end);
        long tailMiddle = in.getLong(end + 8);
        int tailHigh = in.getInt(end + 16);
        in.putLong(at, idLow);
        in.putLong(at + 8, idHigh);
        in.putLong(end, timestamp);
        in.putLong(end + 8, sequence);
        in.putInt(end + 16, word);
        crc.reset();
        crc.update(bytes, at, length + NUMBERS);
        in.putLong(at, headLow);
        in.putLong(at + 8, timestamp);
        in.putLong(end, tailLow);
        in.putLong(end + 8, tailMiddle);
        in.putInt(end + 16, tailHigh);
        return (int) crc.getValue();
    }

    /** The checksum of a fragment's block: over the queue's id and the bytes. */
    int blockSum(byte[] block, int from, int size) {
        byte[] id = new byte[HEADER];
        ByteBuffer.wrap(id).order(ByteOrder.LITTLE_ENDIAN).putLong(idLow).putLong(idHigh);
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
