package pagequeue;

import java.io.Serializable;
import java.util.Arrays;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** What the columns of the rows are that tasks write: as the driver's Python tells. */
final class RowColumns implements Serializable {
    private static final long serialVersionUID = 1L;
    /** Place of the payload in a row; -1: the columns are the fields of records. */
    final int payload;
    /** Whether the payload is text. */
    final boolean isText;
    /** Place of the time; -1: there is none. */
    final int time;
    final int recordBytes;
    private final StructType schema;
    private final String[] words;

    /**
     * @param schema of the rows.
     * @param told places of payload and time, then bytes and fields of a record.
     */
    RowColumns(StructType schema, String told) {
        this.schema = schema;
        String[] all = told.split(" ");
        payload = Integer.parseInt(all[0]);
        time = Integer.parseInt(all[1]);
        recordBytes = Integer.parseInt(all[2]);
        words = (String[]) Arrays.copyOfRange(all, 3, all.length);
        isText = payload >= 0 && !schema.apply(payload).dataType().equals(DataTypes.BinaryType);
    }

    FieldWriter[] fields() {
        return FieldWriter.of(words, schema);
    }
}
