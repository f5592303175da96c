package pagequeue;

import java.io.IOException;

/**
 * An error of this package, as a line of text that Python turns into its own class again.
 *
 * The message begins with a new line, so that the line with the name of the class begins there
 * wherever Spark quotes it.
 */
public final class Problem extends RuntimeException {
    static final String SALVAGE =
        "repair or salvage the queue, or restore the file from a copy";

    /** @param line the name of the class, a colon and the message. */
    Problem(String line) {
        super("\npagequeue.errors." + line);
    }

    /** The same for the way from a task to the driver, which may not find this class. */
    RuntimeException plain() {
        RuntimeException same = new RuntimeException(getMessage());
        same.setStackTrace(getStackTrace());
        return same;
    }

    static Problem of(String kind, String path, String text, String remedy) {
        return new Problem(kind + ": " + path + ": " + text + ": " + remedy);
    }

    static Problem frame(String path, long sequence, long position, String reason) {
        String text = "message " + sequence + " at position " + position + ": " + reason;
        return of("CorruptFrame", path, text, SALVAGE);
    }

    static Problem large(String path, long sequence, long position, String reason) {
        String text = "message " + sequence + ", a large one, at position " + position + ": "
            + reason;
        return of("CorruptFrame", path, text, SALVAGE);
    }

    static Problem page(String path, String text) {
        return of("CorruptPage", path, text, SALVAGE);
    }

    static Problem header(String path, String reason) {
        return page(path, "page header: " + reason);
    }

    static Problem system(String path, String doing, IOException error) {
        String text = error + " while " + doing;
        return of("SystemLimit", path, text.replace('\n', ' '), "see the system's log");
    }
}
