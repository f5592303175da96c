package pagequeue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.FileAttribute;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.zip.CRC32C;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Writes a task's rows to a file of its own, which the driver's Python publishes.
 *
 * The file is a run of blocks: three numbers (rows, bytes of payloads, whether there are times),
 * where each payload begins and the last one ends (4 bytes each), payloads, times (8 bytes each);
 * little-endian, each of these four filled up with zeros to 8 bytes.
 */
final class RowFile implements DataWriter {
    private static final int BLOCK_BYTES = 1 << 20;
    private static final int BLOCK_ROWS = 1 << 16;
    private static final int HEAD = 24;
    private static final int ALIGN = 8;

    private final Path directory;
    private final Path path;
    private final String name;
    private final boolean makesDirectory;
    private final int payload;
    private final boolean isText;
    private final int time;
    private final int recordBytes;
    private final FieldWriter[] fields;
    private final CRC32C crc = new CRC32C();
    private FileChannel channel;
    private byte[] data = new byte[BLOCK_BYTES + ALIGN];
    private final int[] begins = new int[BLOCK_ROWS + 1];
    private final long[] times;
    private int rows;
    private long count;
    private long frameBytes;
    private long size;

    /**
     * @param base directory of staged rows.
     * @param job name of the directory in it.
     * @param makesDirectory whether tasks make it.
     * @param columns what the columns of a row are.
     */
    RowFile(String base, String job, boolean makesDirectory, RowColumns columns) {
        directory = Paths.get(base, new String[] {job});
        String file = UUID.randomUUID().toString().replace("-", "") + ".rows";
        path = directory.resolve(file);
        name = job + "/" + file;
        this.makesDirectory = makesDirectory;
        payload = columns.payload;
        isText = columns.isText;
        time = columns.time;
        recordBytes = columns.recordBytes;
        fields = columns.fields();
        times = time < 0 ? null : new long[BLOCK_ROWS];
        open();
    }

    public void write(Object record) {
        InternalRow row = (InternalRow) record;
        if (payload < 0) {
            fields(row);
        } else if (row.isNullAt(payload)) {
            throw missing("payload");
        } else if (isText) {
            UTF8String text = row.getUTF8String(payload);
            int begin = room(text.numBytes());
            text.writeToMemory(data, Platform.BYTE_ARRAY_OFFSET + begin);
        } else {
            byte[] bytes = row.getBinary(payload);
            int begin = room(bytes.length);
            System.arraycopy(bytes, 0, data, begin, bytes.length);
        }
        if (time >= 0) {
            if (row.isNullAt(time)) {
                throw missing("timestamp_ns");
            }
            times[rows - 1] = row.getLong(time);
        }
    }

    private void fields(InternalRow row) {
        int begin = room(recordBytes);
        Arrays.fill(data, begin, begin + recordBytes, (byte) 0);
        for (int i = 0; i < fields.length; i++) {
            if (fields[i] != null) {
                fields[i].put(row, i, data, begin);
            }
        }
    }

    private static RuntimeException missing(String column) {
        return Problem.of("InvalidOption", null, "column " + column + " has a null",
            "fill it, or filter such rows out before writing").ofSpark();
    }

    /** Make room for one more payload; return where it begins. */
    private int room(int bytes) {
        if (rows == BLOCK_ROWS || (rows > 0 && bytes > BLOCK_BYTES - begins[rows])) {
            flush();
        }
        int begin = begins[rows];
        if (bytes > data.length - ALIGN - begin) { // the only one of its block
            data = new byte[bytes + ALIGN];
        }
        rows++;
        begins[rows] = begin + bytes;
        frameBytes += padded((long) bytes + Frames.HEADER);
        return begin;
    }

    private static long padded(long bytes) {
        return (bytes + ALIGN - 1) / ALIGN * ALIGN;
    }

    /** Write a block. */
    private void flush() {
        int used = begins[rows];
        int end = (int) padded(used);
        Arrays.fill(data, used, end, (byte) 0);
        ByteBuffer head = buffer(HEAD + (int) padded(4L * (rows + 1)));
        head.putLong(rows).putLong(used).putLong(times == null ? 0 : 1);
        for (int i = 0; i <= rows; i++) {
            head.putInt(begins[i]);
        }
        try {
            append(head.array(), head.capacity());
            append(data, end);
            if (times != null) {
                ByteBuffer all = buffer(8 * rows);
                all.asLongBuffer().put(times, 0, rows);
                append(all.array(), all.capacity());
            }
        } catch (IOException error) {
            throw problem(error);
        }
        count += rows;
        rows = 0;
    }

    private static ByteBuffer buffer(int bytes) {
        return ByteBuffer.allocate(bytes).order(ByteOrder.LITTLE_ENDIAN);
    }

    private void append(byte[] bytes, int length) throws IOException {
        crc.update(bytes, 0, length);
        size += length;
        ByteBuffer rest = ByteBuffer.wrap(bytes, 0, length);
        while (rest.hasRemaining()) {
            channel.write(rest);
        }
    }

    /** Make the file before there is a row: a job that has ended is told at once. */
    private void open() {
        try {
            if (makesDirectory) {
                make();
            }
            create();
        } catch (IOException error) {
            throw problem(error);
        }
    }

    private void make() throws IOException {
        try {
            Files.createDirectory(directory, attributes("rwx------"));
            give(directory);
        } catch (FileAlreadyExistsException other) {
            // another task of the batch was first
        }
    }

    private void create() throws IOException {
        if (Files.isSymbolicLink(directory)) {
            throw Problem.of("UnsafePath", directory.toString(), "it is a symbolic link",
                "remove it").ofSpark();
        }
        Set options = new HashSet();
        options.add(StandardOpenOption.WRITE);
        options.add(StandardOpenOption.CREATE_NEW);
        options.add(LinkOption.NOFOLLOW_LINKS);
        channel = FileChannel.open(path, options, attributes("rw-------"));
        give(path);
    }

    /** What root makes belongs to the queue's owner, as the directory does that it is in. */
    private static void give(Path made) throws IOException {
        LinkOption[] asItIs = new LinkOption[] {LinkOption.NOFOLLOW_LINKS};
        if (((Integer) Files.getAttribute(made, "unix:uid", asItIs)).intValue() == 0) {
            Map of = Files.readAttributes(made.getParent(), "unix:uid,gid", asItIs);
            if (((Integer) of.get("uid")).intValue() != 0) {
                Files.setAttribute(made, "unix:gid", of.get("gid"), asItIs);
                Files.setAttribute(made, "unix:uid", of.get("uid"), asItIs);
            }
        }
    }

    private static FileAttribute[] attributes(String mode) {
        return new FileAttribute[] {
            PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString(mode))};
    }

    private RuntimeException problem(IOException error) {
        if (error instanceof NoSuchFileException
                && !Files.isDirectory(directory, new LinkOption[0])) {
            return Problem.of("AccessError", directory.toString(),
                "the job of these rows has ended, or its directory was removed",
                "run the job again").ofSpark();
        }
        String text = String.valueOf(error.getMessage());
        if (text.contains("No space left") || text.contains("quota exceeded")) {
            return Problem.of("DiskFull", path.toString(), "no room while writing rows (" + text
                + ")", "make room, then call again").ofSpark();
        }
        return Problem.system(path.toString(), "writing rows", error).ofSpark();
    }

    public WriterCommitMessage commit() {
        if (rows > 0) {
            flush();
        }
        try {
            if (count == 0) {
                abort();
                return StagedFile.message("", 0, 0, 0, 0);
            }
            channel.force(true);
            close();
            FileChannel entries = FileChannel.open(directory,
                new OpenOption[] {StandardOpenOption.READ});
            try {
                entries.force(true);
            } finally {
                entries.close();
            }
        } catch (IOException error) {
            throw problem(error);
        }
        return StagedFile.message(name, count, frameBytes, size, crc.getValue());
    }

    public void abort() throws IOException {
        close();
        Files.deleteIfExists(path);
    }

    public void close() throws IOException {
        channel.close();
    }
}
