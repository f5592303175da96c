package pagequeue;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** One column of the rows that are in memory; it never has a null. */
abstract class Column extends ColumnVector {
    final Rows rows;

    Column(DataType type, Rows rows) {
        super(type);
        this.rows = rows;
    }

    /** @param spec of the column, as the plan has it: what it is, and a field's place. */
    static Column of(String spec, DataType type, Rows rows) {
        char kind = spec.charAt(0);
        switch (kind) {
            case 'q': return new Queue(type, rows);
            case 's': return new Sequence(type, rows);
            case 'm': return new Micros(type, rows);
            case 't': return new Nanos(type, rows);
            case 'p': return new Payload(type, rows);
            default: return new Field(spec, type, rows);
        }
    }

    /** How much must be read for a column: 0 nothing, 1 times, 2 payloads. */
    /** The need of payloads. */
    static final int PAYLOADS = 2;

    static int need(String spec) {
        char kind = spec.charAt(0);
        return kind == 'q' || kind == 's' ? 0 : kind == 'm' || kind == 't' ? 1 : PAYLOADS;
    }

    public void close() {
    }

    public boolean hasNull() {
        return false;
    }

    public int numNulls() {
        return 0;
    }

    public boolean isNullAt(int i) {
        return false;
    }

    public boolean getBoolean(int i) {
        throw new UnsupportedOperationException();
    }

    public byte getByte(int i) {
        throw new UnsupportedOperationException();
    }

    public short getShort(int i) {
        throw new UnsupportedOperationException();
    }

    public int getInt(int i) {
        throw new UnsupportedOperationException();
    }

    public long getLong(int i) {
        throw new UnsupportedOperationException();
    }

    public float getFloat(int i) {
        throw new UnsupportedOperationException();
    }

    public double getDouble(int i) {
        throw new UnsupportedOperationException();
    }

    public ColumnarArray getArray(int i) {
        throw new UnsupportedOperationException();
    }

    public ColumnarMap getMap(int i) {
        throw new UnsupportedOperationException();
    }

    public Decimal getDecimal(int i, int precision, int scale) {
        throw new UnsupportedOperationException();
    }

    public UTF8String getUTF8String(int i) {
        throw new UnsupportedOperationException();
    }

    public byte[] getBinary(int i) {
        throw new UnsupportedOperationException();
    }

    public ColumnVector getChild(int i) {
        throw new UnsupportedOperationException();
    }

    /** The queue's name. */
    static final class Queue extends Column {
        Queue(DataType type, Rows rows) {
            super(type, rows);
        }

        public UTF8String getUTF8String(int i) {
            return rows.queue;
        }
    }

    /** The sequence. */
    static final class Sequence extends Column {
        Sequence(DataType type, Rows rows) {
            super(type, rows);
        }

        public long getLong(int i) {
            return rows.first + i;
        }
    }

    /** The time in microseconds, rounded down. */
    static final class Micros extends Column {
        Micros(DataType type, Rows rows) {
            super(type, rows);
        }

        public long getLong(int i) {
            return Math.floorDiv(rows.times[i], 1000L);
        }
    }

    /** The time in nanoseconds. */
    static final class Nanos extends Column {
        Nanos(DataType type, Rows rows) {
            super(type, rows);
        }

        public long getLong(int i) {
            return rows.times[i];
        }
    }

    /** The payload, copied when it is asked for. */
    static final class Payload extends Column {
        Payload(DataType type, Rows rows) {
            super(type, rows);
        }

        public byte[] getBinary(int i) {
            int begin = rows.begins[i];
            return Arrays.copyOfRange(rows.bytes, begin, begin + rows.sizes[i]);
        }
    }

    /** A number in a record. */
    static final class Field extends Column {
        private final char kind;
        private final int size;
        private final boolean isBig;
        private final int offset;
        private byte[] viewed;
        private ByteBuffer view;

        /** @param spec kind, size, byte order and place in the record, as `i8<16`. */
        Field(String spec, DataType type, Rows rows) {
            super(type, rows);
            kind = spec.charAt(0);
            size = spec.charAt(1) - '0';
            isBig = spec.charAt(2) == '>';
            offset = Integer.parseInt(spec.substring(3));
        }

        private int at(int i) {
            if (viewed != rows.bytes) {
                viewed = rows.bytes;
                view = ByteBuffer.wrap(viewed)
                    .order(isBig ? ByteOrder.BIG_ENDIAN : ByteOrder.LITTLE_ENDIAN);
            }
            return rows.begins[i] + offset;
        }

        private long whole(int i) {
            int at = at(i);
            boolean isSigned = kind == 'i';
            if (size == 8) {
                return view.getLong(at);
            }
            if (size == 4) {
                long four = view.getInt(at);
                return isSigned ? four : four & 0xffffffffL;
            }
            if (size == 2) {
                long two = view.getShort(at);
                return isSigned ? two : two & 0xffffL;
            }
            long one = view.get(at);
            return isSigned ? one : one & 0xffL;
        }

        public boolean getBoolean(int i) {
            return whole(i) != 0;
        }

        public byte getByte(int i) {
            return (byte) whole(i);
        }

        public short getShort(int i) {
            return (short) whole(i);
        }

        public int getInt(int i) {
            return (int) whole(i);
        }

        public long getLong(int i) {
            return whole(i);
        }

        public float getFloat(int i) {
            int at = at(i);
            return view.getFloat(at);
        }

        public double getDouble(int i) {
            int at = at(i);
            return view.getDouble(at);
        }
    }
}
