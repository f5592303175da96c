package pagequeue;

import com.github.luben.zstd.Zstd;
import com.github.luben.zstd.ZstdException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.util.Arrays;
import java.util.zip.CRC32C;

/** The file of a compressed page: its front is checked in full, its blocks are inflated one by one. */
final class Compressed {
    static final String MAGIC = "pgqzpag\u001a";
    private static final int HEAD_AT = 64;
    private static final int BLOCKS_AT = 128;
    private static final int BLOCK_BYTES = 24;
    private static final int END_BYTES = 16;
    private static final int METHOD_ZSTD = 1;
    private static final long PAGE_BYTES_MAX = 1L << 30;
    private static final long PAGE_BYTES_MIN = 4096;
    private static final long INDEX_BYTES_PER_RECORD = 32;

    private final FileChannel channel;
    private final String path;
    private final long firstSequence;
    private final long pageBytes;
    private final long usedBytes;
    private final long[] offsets;
    private final int[] stored;
    private final long[] positions;
    private final long[] ordinals;
    private final int[] sums;
    private final long[] times;
    private int inflated = -1;
    private byte[] block = new byte[0];

    /** Whether a file is a compressed page: by its magic, or if that is damaged by its end. */
    static boolean is(FileChannel channel, String path, byte[] head, int got, long size,
                      long pageBytes) {
        if (got >= 8 && PageFile.begins(head, MAGIC)) {
            return true;
        }
        if (size >= pageBytes || size < END_BYTES) {
            return false;
        }
        byte[] end = new byte[END_BYTES];
        if (Place.read(channel, path, end, 0, size - END_BYTES, END_BYTES) != END_BYTES) {
            return false;
        }
        CRC32C crc = new CRC32C();
        crc.update(end, 0, 12);
        ByteBuffer fields = ByteBuffer.wrap(end).order(ByteOrder.LITTLE_ENDIAN);
        return PageFile.begins(end, MAGIC) && fields.getInt(12) == (int) crc.getValue()
            && fields.getInt(8) != 0;
    }

    Compressed(FileChannel channel, String path, long size, long pageBytes) {
        this.channel = channel;
        this.path = path;
        this.pageBytes = pageBytes;
        if (size <= BLOCKS_AT || size > pageBytes) {
            throw bad(size + " bytes in a queue of pages of " + pageBytes, size);
        }
        byte[] start = new byte[BLOCKS_AT];
        Place.read(channel, path, start, 0, 0, BLOCKS_AT);
        ByteBuffer fields = ByteBuffer.wrap(start).order(ByteOrder.LITTLE_ENDIAN);
        long count = Integer.toUnsignedLong(fields.getInt(HEAD_AT + 48));
        if (count < 1 || count > PAGE_BYTES_MAX / Frames.HEADER) {
            throw bad("invalid number of blocks: " + count);
        }
        byte[] front = new byte[(int) Math.min(BLOCKS_AT + count * BLOCK_BYTES, size)];
        int got = Place.read(channel, path, front, 0, 0, front.length);
        String reason = PageFile.wrong(front, got);
        if (reason != null) {
            throw bad(reason, 0);
        }
        PageFile.refuseNewer(front, path);
        if (!PageFile.begins(front, MAGIC)) {
            throw bad("not a compressed page", 0);
        }
        if (got < BLOCKS_AT + count * BLOCK_BYTES) {
            throw bad("cut off");
        }
        fields = ByteBuffer.wrap(front).order(ByteOrder.LITTLE_ENDIAN);
        int stated = fields.getInt(HEAD_AT + 56);
        fields.putInt(HEAD_AT + 56, 0);
        CRC32C crc = new CRC32C();
        crc.update(front, 0, front.length);
        if ((int) crc.getValue() != stated) {
            throw bad("wrong checksum");
        }
        int method = fields.getInt(HEAD_AT + 52);
        if (method != METHOD_ZSTD) {
            throw Problem.of("NewerFormat", path, "compressed by method "
                + Integer.toUnsignedString(method) + ", this version knows " + METHOD_ZSTD,
                "upgrade pagequeue").with("version", PageFile.FORMAT);
        }
        firstSequence = fields.getLong(40);
        usedBytes = fields.getLong(HEAD_AT + 8);
        int n = (int) count;
        offsets = new long[n];
        stored = new int[n];
        positions = new long[n];
        ordinals = new long[n];
        sums = new int[n];
        times = new long[n];
        long offset = front.length;
        for (int i = 0; i < n; i++) {
            int at = BLOCKS_AT + i * BLOCK_BYTES;
            offsets[i] = offset;
            long bytes = Integer.toUnsignedLong(fields.getInt(at));
            stored[i] = (int) Math.min(bytes, Integer.MAX_VALUE);
            positions[i] = Integer.toUnsignedLong(fields.getInt(at + 4));
            ordinals[i] = Integer.toUnsignedLong(fields.getInt(at + 8));
            sums[i] = fields.getInt(at + 12);
            times[i] = fields.getLong(at + 16);
            offset += bytes;
        }
        checkFields(fields.getLong(HEAD_AT), fields.getLong(HEAD_AT + 16),
            fields.getLong(HEAD_AT + 24), fields.getLong(HEAD_AT + 32),
            fields.getLong(HEAD_AT + 40));
        long needed = offset + front.length + END_BYTES;
        if (needed != fields.getLong(HEAD_AT + 16)) {
            throw bad("its blocks need " + needed + " bytes, not "
                + Long.toUnsignedString(fields.getLong(HEAD_AT + 16)));
        }
        if (needed != size) {
            throw bad("the file has " + size + " bytes, its head states " + needed,
                Math.min(size, needed));
        }
        if (fields.getLong(HEAD_AT) != pageBytes) {
            throw bad("of a page of " + fields.getLong(HEAD_AT) + " bytes, not " + pageBytes);
        }
    }

    private Problem bad(String reason) {
        return bad(reason, HEAD_AT);
    }

    private Problem bad(String reason, long position) {
        String text = "compressed head: " + reason;
        return Problem.page(path, text, position, text);
    }

    /** Raise if the fields contradict each other. */
    private void checkFields(long whole, long fileBytes, long endSequence, long firstTime,
                             long lastTime) {
        if (firstSequence == -1L) {
            throw bad("no messages and no end");
        }
        int last = positions.length - 1;
        long count = endSequence - firstSequence;
        boolean good = whole >= PAGE_BYTES_MIN && whole <= PAGE_BYTES_MAX
            && whole % PAGE_BYTES_MIN == 0
            && usedBytes >= 0 && usedBytes <= whole && fileBytes >= 0 && fileBytes <= whole
            && endSequence >= 0 && count >= 0 && count <= whole / INDEX_BYTES_PER_RECORD
            && positions[0] == Frames.PAGE_HEADER && ordinals[0] == 0
            && usedBytes - positions[last] >= Frames.HEADER && usedBytes % 8 == 0
            && ordinals[last] <= Math.max(count - 1, 0)
            && times[0] == (count > 0 ? firstTime : 0)
            && times[last] <= (count > 0 ? lastTime : 0);
        for (int i = 0; good && i <= last; i++) {
            good = positions[i] % 8 == 0 && (i == 0
                || (positions[i] - positions[i - 1] >= Frames.HEADER
                    && ordinals[i] - ordinals[i - 1] >= 1 && times[i] >= times[i - 1]));
        }
        if (!good) {
            throw bad("its blocks are invalid");
        }
    }

    private Problem damage(int number, String reason) {
        long sequence = firstSequence + ordinals[number];
        String text = "compressed block: " + reason;
        return Problem.damage("CorruptFrame", path, "message " + sequence
            + " and those after it, in the bytes from " + offsets[number] + " on: " + text,
            offsets[number], text).with("sequence", sequence);
    }

    /** The first frame of the block that has a frame: position, sequence, timestamp. */
    long[] start(long sequence) {
        int number = Arrays.binarySearch(ordinals, sequence - firstSequence);
        if (number < 0) {
            number = Math.max(-number - 2, 0);
        }
        return new long[] {positions[number], firstSequence + ordinals[number], times[number]};
    }

    /** Read bytes of the page as it was, at most to the end of a block; zeros after the last. */
    int read(byte[] to, int at, long position, int count) {
        if (position >= usedBytes || position < Frames.PAGE_HEADER) {
            Arrays.fill(to, at, at + count, (byte) 0);
            return count;
        }
        int number = Arrays.binarySearch(positions, position);
        if (number < 0) {
            number = -number - 2;
        }
        inflate(number);
        int from = (int) (position - positions[number]);
        int got = Math.min(count, block.length - from);
        System.arraycopy(block, from, to, at, got);
        return got;
    }

    private void inflate(int number) {
        if (number == inflated) {
            return;
        }
        inflated = -1;
        byte[] bytes = new byte[stored[number]];
        if (Place.read(channel, path, bytes, 0, offsets[number], bytes.length) != bytes.length) {
            throw damage(number, "the file ends before it does");
        }
        CRC32C crc = new CRC32C();
        crc.update(bytes, 0, bytes.length);
        if ((int) crc.getValue() != sums[number]) {
            throw damage(number, "wrong checksum");
        }
        long end = number + 1 < positions.length ? positions[number + 1] : usedBytes;
        int size = (int) (end - positions[number]);
        // Its declared size is compared before memory is taken for it.
        long declared = Zstd.getFrameContentSize(bytes);
        if (declared != size || Zstd.findFrameCompressedSize(bytes) != bytes.length) {
            throw damage(number, "it states " + declared + " bytes, expected " + size);
        }
        block = new byte[size];
        try {
            if (Zstd.decompressByteArray(block, 0, size, bytes, 0, bytes.length) != size) {
                throw damage(number, "it inflates to another size");
            }
        } catch (ZstdException error) {
            throw damage(number, error.getMessage());
        }
        inflated = number;
    }
}
