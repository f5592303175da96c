package pagequeue;

import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.types.StructType;

/**
 * One write of a table, or the writes of a stream: tasks write rows to files, the driver's Python
 * publishes them, with the ledger of the Python source.
 */
final class QueueWrite implements WriteBuilder, SupportsTruncate, Write, BatchWrite,
        StreamingWrite {
    static final String NAME = "pagequeue (native sink)";

    private final StructType schema;
    private final String given;
    private final String query;
    private final String told;
    private boolean isTruncated;
    private String job = "";
    private String directory = "";
    /** The queue that was prepared: its directory and its id. */
    private String target = "";

    /**
     * @param schema of the rows.
     * @param given the options, in two lines.
     * @param query of a stream.
     * @param told what the columns are.
     */
    QueueWrite(StructType schema, String given, String query, String told) {
        this.schema = schema;
        this.given = given;
        this.query = query;
        this.told = told;
    }

    static String ask(String verb, String given, String rest) {
        try {
            return Planner.ask("sink\n" + verb + "\n" + given + "\n" + rest);
        } catch (Problem error) {
            throw error.ofSpark();
        }
    }

    private String rest() {
        return schema.json() + "\n" + isTruncated + "\n" + told;
    }

    public WriteBuilder truncate() {
        isTruncated = true;
        return this;
    }

    public Write build() {
        return this;
    }

    public BatchWrite toBatch() {
        prepare("table");
        return this;
    }

    public StreamingWrite toStreaming() {
        prepare("stream");
        job = query;
        return this;
    }

    private void prepare(String verb) {
        String[] told = ask(verb, given, rest()).split("\n");
        target = told[0];
        directory = told[1];
        job = told[2];
    }

    public String description() {
        return NAME;
    }

    public String toString() {
        return NAME;
    }

    public boolean useCommitCoordinator() {
        return true;
    }

    private RowFileFactory factory() {
        return new RowFileFactory(directory, "rows-" + job, new RowColumns(schema, told));
    }

    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
        return factory();
    }

    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
        return factory();
    }

    private static String lines(WriterCommitMessage[] messages) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < messages.length; i++) {
            if (messages[i] != null) {
                text.append('\n').append(StagedFile.line(messages[i]));
            }
        }
        return text.toString();
    }

    public void commit(WriterCommitMessage[] messages) {
        ask("commit table", given, target + "\n" + job + lines(messages));
    }

    public void abort(WriterCommitMessage[] messages) {
        ask("abort table", given, target + "\n" + job);
    }

    public void commit(long batch, WriterCommitMessage[] messages) {
        ofStream("commit batch", query + " " + batch + lines(messages));
    }

    public void abort(long batch, WriterCommitMessage[] messages) {
        ofStream("abort batch", query + " " + batch);
    }

    /** Nothing tells when the stream ends, so each time could be the last one of its thread. */
    private void ofStream(String verb, String rest) {
        try {
            ask(verb, given, target + "\n" + rest);
        } finally {
            Planner.leave();
        }
    }
}
