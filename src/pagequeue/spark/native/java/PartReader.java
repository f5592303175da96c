package pagequeue;

import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

/** Reads the lines of one partition, in their order. */
final class PartReader implements PartitionReader {
    private final String[] lines;
    private final Rows rows = new Rows();
    private final ColumnarBatch batch;
    private final int recordBytes;
    private int at;
    private Place place;
    private RowSource source;

    PartReader(String lines, StructType schema, String[] specs, int recordBytes) {
        this.lines = lines.split("\n");
        this.recordBytes = recordBytes;
        ColumnVector[] columns = new ColumnVector[specs.length];
        for (int i = 0; i < specs.length; i++) {
            columns[i] = Column.of(specs[i], schema.apply(i).dataType(), rows);
        }
        batch = new ColumnarBatch(columns);
    }

    public boolean next() {
        try {
            return step();
        } catch (Problem error) {
            throw error.ofSpark();
        }
    }

    private boolean step() {
        while (true) {
            if (source == null) {
                if (at >= lines.length) {
                    return false;
                }
                begin(lines[at++].split(" "));
            } else if (source.next(rows)) {
                checkSizes();
                batch.setNumRows(rows.count);
                return true;
            } else {
                source.close();
                source = null;
            }
        }
    }

    private void begin(String[] words) {
        switch (words[0].charAt(0)) {
            case 'Q':
                place = new Place(words);
                rows.queue = UTF8String.fromString(place.name);
                break;
            case 'N':
                source = new Numbers(number(words, 1), number(words, 2));
                break;
            case 'T':
                source = new Times(place, number(words, 1), number(words, 2), number(words, 3),
                    number(words, 4));
                break;
            case 'P':
                source = new Messages(place, number(words, 1), number(words, 2), number(words, 3),
                    number(words, 4), words[5].equals("1"));
                break;
            default: // a partition without a row
                break;
        }
    }

    private static long number(String[] words, int i) {
        return Long.parseLong(words[i]);
    }

    private void checkSizes() {
        for (int i = 0; recordBytes > 0 && i < rows.count; i++) {
            if (rows.sizes[i] != recordBytes) {
                throw Problem.of("RecordSize", null, "message " + (rows.first + i) + " has "
                    + rows.sizes[i] + " bytes, the dtype " + recordBytes,
                    "give the dtype of the sent records").with("sequence", rows.first + i)
                    .with("size_bytes", rows.sizes[i]).with("record_bytes", recordBytes);
            }
        }
    }

    public Object get() {
        return batch;
    }

    public void close() {
        if (source != null) {
            source.close();
            source = null;
        }
        batch.close();
    }
}
