package pagequeue;

import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;

/** Makes what reads a partition, in the task. */
final class Factory implements PartitionReaderFactory {
    private static final long serialVersionUID = 1L;
    private final StructType schema;
    private final String[] specs;
    private final int recordBytes;
    private final boolean isAggregate;

    /**
     * @param schema of the rows.
     * @param specs of its columns.
     * @param recordBytes that each payload must have; 0: any.
     * @param isAggregate whether the plan has the row itself.
     */
    Factory(StructType schema, String[] specs, int recordBytes, boolean isAggregate) {
        this.schema = schema;
        this.specs = specs;
        this.recordBytes = recordBytes;
        this.isAggregate = isAggregate;
    }

    public boolean supportColumnarReads(InputPartition partition) {
        return !isAggregate;
    }

    public PartitionReader createColumnarReader(InputPartition partition) {
        return new PartReader(((Part) partition).lines, schema, specs, recordBytes);
    }

    public PartitionReader createReader(InputPartition partition) {
        return new OneRow(((Part) partition).lines);
    }

    /** The one row of an aggregate that was pushed down. */
    private static final class OneRow implements PartitionReader {
        private final GenericInternalRow row;
        private boolean isGiven;

        OneRow(String line) {
            String[] words = line.trim().split(" ");
            Object[] values = new Object[words.length];
            for (int i = 0; i < words.length; i++) {
                values[i] = words[i].equals("null") ? null : (Object) Long.valueOf(words[i]);
            }
            row = new GenericInternalRow(values);
        }

        public boolean next() {
            boolean isFirst = !isGiven;
            isGiven = true;
            return isFirst;
        }

        public Object get() {
            return row;
        }

        public void close() {
        }
    }
}
