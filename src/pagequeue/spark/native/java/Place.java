package pagequeue;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URLDecoder;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.FileSystemLoopException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

/** Where a queue is, and whether this process may trust what is there: as opening it does. */
final class Place {
    private static final LinkOption[] NO_LINKS = new LinkOption[] {LinkOption.NOFOLLOW_LINKS};
    private static final Set SHARED = new HashSet(Arrays.asList(new String[] {
        "smb", "smb2", "smb3", "cifs", "ncpfs", "nfs", "nfs4", "ceph", "9p", "gfs2", "lustre",
        "wekafs", "beegfs", "pvfs2", "gpfs", "afs", "coda", "ocfs2", "vboxsf", "panfs", "vmhgfs",
        "virtiofs", "fuse", "fuseblk",
    }));
    private static final int WORLD_WRITABLE = 2;
    private static final int STICKY = 01000;
    private static final int TYPE = 0170000;
    private static final int REGULAR = 0100000;
    private static final int META_BYTES = 512;
    private static final String META_MAGIC = "pgqall\u0000\u001a";

    final String directory;
    final String prefix;
    final String name;
    final byte[] id;
    final long pageBytes;
    private final String trust;
    private final int directoryOwner;
    private final int user;

    /** @param parts of a line of the plan that names a queue. */
    Place(String[] parts) {
        directory = text(parts[1]);
        prefix = text(parts[2]);
        name = text(parts[3]);
        id = new byte[Frames.HEADER];
        for (int i = 0; i < id.length; i++) {
            id[i] = (byte) Integer.parseInt(parts[4].substring(2 * i, 2 * i + 2), 16);
        }
        pageBytes = Long.parseLong(parts[5]);
        trust = parts.length > 6 ? parts[6] : "";
        try {
            user = ((Integer) Files.getAttribute(Paths.get("/proc/self"), "unix:uid")).intValue();
        } catch (IOException error) {
            throw Problem.system("/proc/self", "asking which user this is", error);
        }
        directoryOwner = checkDirectory();
    }

    static String text(String quoted) {
        try {
            return URLDecoder.decode(quoted, "UTF-8");
        } catch (java.io.UnsupportedEncodingException error) {
            throw new UncheckedIOException(error);
        }
    }

    String path(String file) {
        return directory.endsWith("/") ? directory + file : directory + "/" + file;
    }

    String pageName(long number) {
        return numbered(number) + ".page";
    }

    String indexName(long number) {
        return numbered(number) + ".idx";
    }

    private String numbered(long number) {
        Object[] words = new Object[] {prefix, Long.valueOf(number)};
        return String.format(Locale.ROOT, "%s-%010d", words);
    }

    private boolean accepts(String circumstance) {
        return Arrays.asList(trust.split(",")).contains(circumstance);
    }

    private Map attributes(Path path) throws IOException {
        return Files.readAttributes(path, "unix:uid,mode,ino,dev,size", NO_LINKS);
    }

    private static int number(Map attributes, String which) {
        return ((Number) attributes.get(which)).intValue();
    }

    private int checkDirectory() {
        Path path = Paths.get(directory);
        try {
            Map found = attributes(path);
            if (!Files.isDirectory(path, NO_LINKS)) {
                throw Problem.of("UnsafePath", directory, "not a directory any more",
                    "give the directory itself");
            }
            int owner = number(found, "uid");
            int mode = number(found, "mode");
            if (owner != user && owner != 0 && user != 0 && !accepts("other_owner")) {
                throw Problem.of("UnsafePath", directory, "the directory belongs to uid " + owner
                    + ", this is uid " + user + "; its owner can exchange the files at any time",
                    "use a directory of your own, or accept that with trust=(\"other_owner\",)")
                    .with("trust", "other_owner");
            }
            boolean isOpen = (mode & WORLD_WRITABLE) != 0 && (mode & STICKY) == 0;
            if (isOpen && !accepts("world_writable")) {
                throw Problem.of("UnsafePath", directory, "everybody may write to the directory "
                    + "and exchange the files", "run chmod o-w on it, or set its sticky bit, or "
                    + "accept that with trust=(\"world_writable\",)")
                    .with("trust", "world_writable");
            }
            String type = Files.getFileStore(path).type();
            boolean isShared = SHARED.contains(type) || type.startsWith("fuse.");
            if (isShared && !accepts("network_file_system")) {
                throw Problem.of("UnsafePath", directory, "the file system is " + type,
                    "use a local directory, or, if only one host ever uses the queue, accept it "
                    + "with trust=(\"network_file_system\",)")
                    .with("trust", "network_file_system");
            }
            return owner;
        } catch (NoSuchFileException error) {
            throw Problem.of("QueueNotFound", directory, "no queue here",
                "check the path, or create the queue by opening it for writing");
        } catch (IOException error) {
            throw Problem.system(directory, "opening the directory", error);
        }
    }

    /**
     * Open a file to read: a regular one of a trusted owner, never through a link.
     *
     * @return null: it is not there.
     */
    FileChannel open(String file) {
        String full = path(file);
        Path path = Paths.get(full);
        try {
            Map before = attributes(path);
            if ((number(before, "mode") & TYPE) != REGULAR) {
                throw Problem.of("UnsafePath", full, "not a regular file",
                    "put the real file there");
            }
            int owner = number(before, "uid");
            boolean isTrusted = owner == user || owner == 0 || owner == directoryOwner;
            if (!isTrusted && !accepts("other_owner")) {
                throw Problem.of("UnsafePath", full, "the file belongs to uid " + owner
                    + ", neither to this user (uid " + user + ") nor to root nor to the "
                    + "directory's owner", "put a file of your own there, or accept it with "
                    + "trust=(\"other_owner\",)").with("trust", "other_owner");
            }
            Set how = new HashSet();
            how.add(StandardOpenOption.READ);
            how.add(LinkOption.NOFOLLOW_LINKS);
            FileChannel channel = FileChannel.open(path, how);
            if (!before.get("ino").equals(attributes(path).get("ino"))) {
                close(channel); // exchanged in between: it may be another user's now
                return open(file);
            }
            return channel;
        } catch (NoSuchFileException error) {
            return null;
        } catch (FileSystemLoopException error) {
            throw Problem.of("UnsafePath", full, "not a regular file", "put the real file there");
        } catch (IOException error) {
            throw Problem.system(full, "opening the file", error);
        }
    }

    /** Read bytes of a file; returns how many there were. */
    static int read(FileChannel channel, String path, byte[] to, int at, long from, int count) {
        ByteBuffer room = ByteBuffer.wrap(to, at, count);
        try {
            while (room.hasRemaining()) {
                int got = channel.read(room, from + (room.position() - at));
                if (got <= 0) {
                    break;
                }
            }
        } catch (IOException error) {
            throw Problem.system(path, "reading the file", error);
        }
        return room.position() - at;
    }

    static long size(FileChannel channel, String path) {
        try {
            return channel.size();
        } catch (IOException error) {
            throw Problem.system(path, "reading the file's status", error);
        }
    }

    static void close(FileChannel channel) {
        try {
            channel.close();
        } catch (IOException ignored) {
            // it was only read
        }
    }

    /** The beginning of a meta file; zeros where it has none. */
    private byte[] beginning(String file) {
        byte[] bytes = new byte[META_BYTES];
        FileChannel channel = open(file);
        if (channel != null) {
            read(channel, path(file), bytes, 0, 0, bytes.length);
            close(channel);
        }
        return bytes;
    }

    private static String hexadecimal(byte[] bytes, int at) {
        StringBuilder text = new StringBuilder();
        for (int i = at; i < at + Frames.HEADER; i++) {
            text.append(String.format("%02x", new Object[] {Integer.valueOf(bytes[i] & 0xff)}));
        }
        return text.toString();
    }

    /** The error for another queue in this place; null: it is the same one, or not known. */
    Problem replaced() {
        byte[] bytes = beginning(prefix + "-allMeta");
        String found = hexadecimal(bytes, 16);
        String wanted = hexadecimal(id, 0);
        if (found.equals(wanted) || !PageFile.begins(bytes, META_MAGIC)) {
            return null;
        }
        return Problem.of("QueueReplaced", directory, "what was planned is of queue " + wanted
            + ", and this path leads to queue " + found + " now",
            "read again; a stream needs a new checkpoint").with("queue_id", wanted)
            .with("found_id", found);
    }

    private ByteBuffer meta(String file) {
        byte[] bytes = beginning(file);
        for (int i = 0; i < id.length; i++) {
            if (bytes[16 + i] != id[i]) {
                bytes = new byte[META_BYTES]; // damaged, or another queue's: nothing is known
            }
        }
        return ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
    }

    /** The number of the first page that is retained; 0: unknown. */
    long headPage() {
        return meta(prefix + "-readMeta").getLong(32);
    }

    /** The sequence of the first message that is retained; 0: unknown. */
    long headSequence() {
        ByteBuffer words = meta(prefix + "-readMeta");
        return words.getLong((words.getLong(32) & 1) == 0 ? 48 : 40);
    }

    /** One past the last message that was published; -1: unknown. */
    long tail() {
        ByteBuffer words = meta(prefix + "-writeMeta");
        long number = words.getLong(192);
        int pair = (number & 1) == 0 ? 200 : 216;
        return number == 0 ? -1 : words.getLong(pair + 8) + (words.getLong(pair) & 0xffffffffL);
    }

    /** The error for a page that cannot be read from a message on, if retention took it. */
    Problem expired(long sequence) {
        return Problem.of("Expired", directory, "retention passed this place",
            "retention removed messages from " + sequence + " on since the read was planned: "
            + "read again, give a stream the option consumer, or onExpired=skip")
            .with("head_sequence", headSequence()).with("seek_sequence", (String) null);
    }
}
