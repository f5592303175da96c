package pagequeue;

import java.io.IOException;
import org.apache.spark.QueryContext;
import org.apache.spark.SparkRuntimeException;

/**
 * An error of this package, as two lines of text that Python turns into its own class again.
 *
 * The message begins with a new line, so that the line with the name of the class begins there
 * wherever Spark quotes it; the attributes follow as JSON.
 */
public final class Problem extends RuntimeException {
    static final String SALVAGE =
        "repair or salvage the queue, or restore the file from a copy";
    /** The one of Spark's conditions whose text is whatever is given. */
    private static final String CONDITION = "USER_RAISED_EXCEPTION";

    private final String line;
    private String attributes;

    private Problem(String line, String attributes) {
        this.line = line;
        this.attributes = attributes;
    }

    /** @param remedy what the caller can do; null: the text says it. */
    Problem(String kind, String path, String text, String remedy) {
        this(kind + ": " + (path == null ? "" : path + ": ") + text
            + (remedy == null ? "" : ": " + remedy), "");
        with("path", path);
        with("remedy", remedy);
    }

    /** @param told the line with class and message, and the one with the attributes. */
    static Problem ofPython(String told) {
        int end = told.indexOf('\n');
        String attributes = told.substring(end + 1).trim();
        return new Problem(told.substring(0, end),
            attributes.substring(1, attributes.length() - 1));
    }

    public String getMessage() {
        return "\npagequeue.errors." + line + "\npagequeue.attributes: {" + attributes + "}\n";
    }

    /** Add an attribute of the Python class. */
    Problem with(String name, String value) {
        return add(name, value == null ? "null" : quoted(value));
    }

    Problem with(String name, long value) {
        return add(name, Long.toString(value));
    }

    private Problem add(String name, String json) {
        attributes += (attributes.isEmpty() ? "" : ", ") + quoted(name) + ": " + json;
        return this;
    }

    private static String quoted(String text) {
        StringBuilder json = new StringBuilder("\"");
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                json.append('\\').append(c);
            } else if (c < ' ') {
                json.append(String.format("\\u%04x", new Object[] {Integer.valueOf((int) c)}));
            } else {
                json.append(c);
            }
        }
        return json.append('"').toString();
    }

    /**
     * The same as an exception of Spark's own, which PySpark knows.
     *
     * Spark raises it as it is where a task fails with it, and the driver, which may not find the
     * classes of this package, can load it.
     */
    RuntimeException ofSpark() {
        RuntimeException same = new SparkRuntimeException(CONDITION,
            new scala.collection.immutable.Map.Map1("errorMessage", getMessage()), null,
            new QueryContext[0], "");
        same.setStackTrace(getStackTrace());
        return same;
    }

    static Problem of(String kind, String path, String text, String remedy) {
        return new Problem(kind, path, text, remedy);
    }

    static Problem frame(String path, long sequence, long position, String reason) {
        String text = "message " + sequence + " at position " + position + ": " + reason;
        return damage("CorruptFrame", path, text, position, reason).with("sequence", sequence);
    }

    static Problem large(String path, long sequence, long position, String reason) {
        String text = "message " + sequence + ", a large one, at position " + position + ": "
            + reason;
        return damage("CorruptFrame", path, text, position, reason).with("sequence", sequence);
    }

    static Problem page(String path, String text, long position, String reason) {
        return damage("CorruptPage", path, text, position, reason);
    }

    static Problem header(String path, String reason) {
        return page(path, "page header: " + reason, 0, reason);
    }

    static Problem damage(String kind, String path, String text, long position, String reason) {
        return of(kind, path, text, SALVAGE).with("position", position).with("reason", reason);
    }

    static Problem system(String path, String doing, IOException error) {
        String text = error + " while " + doing;
        return of("SystemLimit", path, text.replace('\n', ' '), "see the system's log");
    }
}
