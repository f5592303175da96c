package pagequeue;

import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage;

/**
 * What a task tells the driver of the file that it has written: a line for the driver's Python.
 *
 * It travels in a class of Spark's, because the driver of a cluster finds no class of this package
 * when it takes a task's result.
 */
final class StagedFile {
    private StagedFile() {
    }

    /**
     * @param name of the file below the staging directory; empty: the task had no rows.
     * @param count of its rows.
     * @param frameBytes that they take in pages.
     * @param size of the file.
     * @param checksum of the file.
     */
    static WriterCommitMessage message(String name, long count, long frameBytes, long size,
            long checksum) {
        String line = count + " " + frameBytes + " " + size + " " + checksum + " " + name;
        return new PythonWriterCommitMessage(line.getBytes(StandardCharsets.UTF_8));
    }

    static String line(WriterCommitMessage message) {
        return new String(((PythonWriterCommitMessage) message).pickledMessage(),
            StandardCharsets.UTF_8);
    }
}
