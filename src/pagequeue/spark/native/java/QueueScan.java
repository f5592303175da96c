package pagequeue;

import java.util.ArrayList;
import java.util.List;
import java.util.OptionalLong;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/** One read: it is planned by the driver's Python when it is needed first. */
final class QueueScan implements Scan, Batch, SupportsReportStatistics {
    static final String BETWEEN = "\n-\n";
    /** Which rows a limit leaves: any of all, or the first or the last of each queue. */
    static final String ANY = "any";
    static final String FIRST = "first";
    static final String LAST = "last";

    private final QueueTable table;
    private final StructType schema;
    private final List conditions;
    private final int limit;
    private final String limited;
    private final List aggregates;
    private final Predicate[] pushed;
    private String[] plan;

    QueueScan(QueueTable table, StructType schema, List conditions, int limit, String limited,
              List aggregates, Predicate[] pushed) {
        this.table = table;
        this.schema = schema;
        this.conditions = conditions;
        this.limit = limit;
        this.limited = limited;
        this.aggregates = aggregates;
        this.pushed = pushed;
    }

    /** What was retained, rows and bytes, and then the partitions. */
    private synchronized String[] plan() {
        if (plan == null) {
            StringBuilder request = new StringBuilder();
            request.append(table.given).append('\n').append(table.snapshot()).append('\n');
            int need = aggregates.isEmpty() ? table.needed(schema) : 0;
            request.append(need).append(' ').append(limit).append(' ').append(limited).append('\n');
            request.append(join(aggregates)).append('\n');
            for (int i = 0; i < conditions.size(); i++) {
                request.append(conditions.get(i)).append('\n');
            }
            String[] answer = Planner.ask(request.toString()).split(BETWEEN);
            table.keep(answer[0]);
            plan = answer;
        }
        return plan;
    }

    private static String join(List words) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < words.size(); i++) {
            text.append(i == 0 ? "" : " ").append(words.get(i));
        }
        return text.toString();
    }

    public InputPartition[] planInputPartitions() {
        String[] parts;
        try {
            parts = plan();
        } catch (Problem error) {
            throw error.ofSpark();
        }
        List found = new ArrayList();
        for (int i = 2; i < parts.length; i++) {
            found.add(new Part(parts[i]));
        }
        return (InputPartition[]) found.toArray(new InputPartition[0]);
    }

    public PartitionReaderFactory createReaderFactory() {
        return aggregates.isEmpty() ? table.factory(schema)
            : new Factory(schema, new String[0], 0, true);
    }

    public Statistics estimateStatistics() {
        try {
            String[] sizes = plan()[1].split(" ");
            return new Size(Long.parseLong(sizes[0]), Long.parseLong(sizes[1]));
        } catch (Problem error) {
            return new Size(-1, -1); // raised again when the partitions are asked for
        }
    }

    public StructType readSchema() {
        return schema;
    }

    public Batch toBatch() {
        return this;
    }

    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        if (!conditions.isEmpty() || limit >= 0 || !aggregates.isEmpty()) {
            throw new IllegalStateException("filters were pushed down to a stream");
        }
        return new QueueStream(table, schema);
    }

    public Scan.ColumnarSupportMode columnarSupportMode() {
        return aggregates.isEmpty() ? Scan.ColumnarSupportMode.SUPPORTED
            : Scan.ColumnarSupportMode.UNSUPPORTED;
    }

    public String description() {
        StringBuilder text = new StringBuilder(QueueTable.NAME);
        text.append(" PushedFilters: [");
        for (int i = 0; i < pushed.length; i++) {
            text.append(i == 0 ? "" : ", ").append(pushed[i]);
        }
        text.append("], PushedLimit: ").append(limit < 0 ? "none" : String.valueOf(limit));
        text.append(limited.equals(ANY) ? "" : " " + limited + " of each queue");
        text.append(", PushedAggregates: [").append(join(aggregates)).append("]");
        return text.append(", Checked: ").append(table.check).toString();
    }

    private static final class Size implements Statistics {
        private final long rows;
        private final long bytes;

        Size(long rows, long bytes) {
            this.rows = rows;
            this.bytes = bytes;
        }

        public OptionalLong sizeInBytes() {
            return bytes < 0 ? OptionalLong.empty() : OptionalLong.of(bytes);
        }

        public OptionalLong numRows() {
            return rows < 0 ? OptionalLong.empty() : OptionalLong.of(rows);
        }
    }
}
