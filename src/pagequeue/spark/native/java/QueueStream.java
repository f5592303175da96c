package pagequeue;

import java.util.UUID;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadAllAvailable;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;

/**
 * The stream of one query.
 *
 * The driver's Python has the offsets, limits and consumers: those of the Python source, so that
 * a checkpoint of one reader is one of the other. Spark's thread of the query calls it from here
 * as it calls a function of `foreachBatch`.
 */
final class QueueStream implements MicroBatchStream, SupportsTriggerAvailableNow {
    /** All but this is asked by the thread of the query, which calls `stop` last. */
    private static final String PARTITIONS = "parts";

    private final String id = UUID.randomUUID().toString();
    private final QueueTable table;
    private final StructType schema;

    QueueStream(QueueTable table, StructType schema) {
        this.table = table;
        this.schema = schema;
    }

    private String ask(String verb, String first, String second) {
        String request = "stream\n" + id + "\n" + verb + "\n" + table.given + "\n" + first + "\n"
            + second;
        try {
            return verb.equals(PARTITIONS) ? Planner.ask(request) : Planner.askAndStay(request);
        } catch (Problem error) {
            throw error.ofSpark();
        }
    }

    public Offset initialOffset() {
        return new JsonOffset(ask("initial", "", ""));
    }

    public Offset deserializeOffset(String json) {
        return new JsonOffset(json);
    }

    public ReadLimit getDefaultReadLimit() {
        String[] words = ask("limit", "", "").split(" ");
        if (words[0].equals("rows")) {
            return ReadLimit.maxRows(Long.parseLong(words[1]));
        }
        return words[0].equals("bytes") ? ReadLimit.maxBytes(Long.parseLong(words[1]))
            : ReadLimit.allAvailable();
    }

    public void prepareForTriggerAvailableNow() {
        ask("prepare", "", "");
    }

    public Offset latestOffset() {
        throw new UnsupportedOperationException("a stream with limits is asked with one");
    }

    public Offset latestOffset(Offset start, ReadLimit limit) {
        String which = limit instanceof ReadAllAvailable ? "all" : "limited";
        return new JsonOffset(ask("latest", start.json(), which));
    }

    public Offset reportLatestOffset() {
        return new JsonOffset(ask("report", "", ""));
    }

    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        String answer = ask(PARTITIONS, start.json(), end.json());
        String[] parts = answer.isEmpty() ? new String[0] : answer.split(QueueScan.BETWEEN);
        InputPartition[] found = new InputPartition[parts.length];
        for (int i = 0; i < parts.length; i++) {
            found[i] = new Part(parts[i]);
        }
        return found;
    }

    public PartitionReaderFactory createReaderFactory() {
        return table.factory(schema);
    }

    public void commit(Offset end) {
        ask("commit", end.json(), "");
    }

    public void stop() {
        try {
            ask("stop", "", "");
        } finally {
            Planner.leave();
        }
    }

    public String toString() {
        return QueueTable.NAME;
    }
}
