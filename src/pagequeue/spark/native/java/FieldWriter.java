package pagequeue;

import java.math.BigInteger;
import java.nio.ByteOrder;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Writes a value of a row into its place in a record, whose bytes are zeros before.
 *
 * Nulls and values that the field does not hold are refused, as the Python sink refuses them; a
 * null among times is NaT.
 */
abstract class FieldWriter {
    private static final String BETWEEN = ":";
    private static final boolean IS_BIG = ByteOrder.nativeOrder() == ByteOrder.BIG_ENDIAN;

    final int size;
    private final boolean isReversed;
    private final int offset;
    private final String name;
    private final String dtype;

    /** @param word kind, size, byte order or stride, place, name and dtype of a field. */
    FieldWriter(String[] word) {
        size = Integer.parseInt(word[1]);
        isReversed = word[2].equals(">") != IS_BIG;
        offset = Integer.parseInt(word[3]);
        name = Place.text(word[4]).replace('\n', ' ');
        dtype = Place.text(word[5]);
    }

    /**
     * What writes the fields of records.
     *
     * @param words of the fields, and after each of their parts; `record_words` makes them.
     * @param schema of the rows.
     * @return of each column of a row; null: it is none of a field.
     */
    static FieldWriter[] of(String[] words, StructType schema) {
        FieldWriter[] found = new FieldWriter[schema.size()];
        int[] next = new int[1];
        while (next[0] < words.length) {
            int place = schema.fieldIndex(Place.text(words[next[0]].split(BETWEEN)[4]));
            found[place] = of(words, next, schema.apply(place).dataType());
        }
        return found;
    }

    private static FieldWriter of(String[] words, int[] next, DataType type) {
        String[] word = words[next[0]++].split(BETWEEN);
        switch (word[0].charAt(0)) {
            case 'r':
                StructType schema = (StructType) type;
                FieldWriter[] parts = new FieldWriter[schema.size()];
                for (int i = 0; i < parts.length; i++) {
                    parts[i] = of(words, next, schema.apply(i).dataType());
                }
                return new Record(word, parts);
            case 'a':
                return new Items(word, of(words, next, ((ArrayType) type).elementType()));
            case 'f': return new Floating(word, type.equals(DataTypes.FloatType));
            case 'S': return new Bytes(word, false);
            case 'V': return new Bytes(word, true);
            case 'U': return new Text(word);
            case 'M':
            case 'm': return new Time(word);
            default: return new Whole(word, type);
        }
    }

    /** Write value `i` of a row or an array into the record, or the part of one, at `base`. */
    final void put(SpecializedGetters row, int i, byte[] to, int base) {
        if (row.isNullAt(i)) {
            missing(to, base + offset);
        } else {
            value(row, i, to, base + offset);
        }
    }

    abstract void value(SpecializedGetters row, int i, byte[] to, int at);

    void missing(byte[] to, int at) {
        throw Problem.of("NotEncodable", null, "column '" + name
            + "' has a null, which payloads cannot express", "fill or drop them").ofSpark();
    }

    final RuntimeException unfit(Object value) {
        return Problem.of("NotEncodable", null, "column '" + name + "' has a value that its field, "
            + dtype + ", does not hold (" + value + "); no row was written", "cast or filter it")
            .ofSpark();
    }

    final RuntimeException tooLong(int length, String what) {
        return Problem.of("NotEncodable", null, "column '" + name + "' has values of " + length
            + " " + what + ", its field only " + (what.equals("bytes") ? size : size / 4),
            "cut them").ofSpark();
    }

    /** Write the lowest bytes of a number. */
    final void number(long value, int bytes, byte[] to, int at) {
        long place = Platform.BYTE_ARRAY_OFFSET + at;
        switch (bytes) {
            case 1:
                to[at] = (byte) value;
                break;
            case 2:
                short two = (short) value;
                Platform.putShort(to, place, isReversed ? Short.reverseBytes(two) : two);
                break;
            case 4:
                int four = (int) value;
                Platform.putInt(to, place, isReversed ? Integer.reverseBytes(four) : four);
                break;
            default:
                Platform.putLong(to, place, isReversed ? Long.reverseBytes(value) : value);
                break;
        }
    }

    /** A bool, or an integer. */
    private static final class Whole extends FieldWriter {
        private final char kind;
        private final DataType type;

        Whole(String[] word, DataType type) {
            super(word);
            kind = word[0].charAt(0);
            this.type = type;
        }

        void value(SpecializedGetters row, int i, byte[] to, int at) {
            if (kind == 'b') {
                to[at] = (byte) (row.getBoolean(i) ? 1 : 0);
                return;
            }
            if (type instanceof DecimalType) {
                number(decimal(row, i), size, to, at);
                return;
            }
            long value = whole(row, i);
            int unused = 64 - 8 * size;
            long kept = kind == 'i' ? value << unused >> unused : value << unused >>> unused;
            if (kept != value || (kind == 'u' && value < 0)) {
                throw unfit(Long.valueOf(value));
            }
            number(value, size, to, at);
        }

        private long whole(SpecializedGetters row, int i) {
            if (type.equals(DataTypes.LongType)) {
                return row.getLong(i);
            }
            if (type.equals(DataTypes.IntegerType)) {
                return row.getInt(i);
            }
            return type.equals(DataTypes.ShortType) ? (long) row.getShort(i) : (long) row.getByte(i);
        }

        private long decimal(SpecializedGetters row, int i) {
            int precision = ((DecimalType) type).precision();
            BigInteger value = row.getDecimal(i, precision, 0).toJavaBigDecimal().toBigInteger();
            if (value.signum() < 0 || value.bitLength() > 8 * size) {
                throw unfit(value);
            }
            return value.longValue();
        }
    }

    /** A float or a double. */
    private static final class Floating extends FieldWriter {
        private final boolean isFloat;

        Floating(String[] word, boolean isFloat) {
            super(word);
            this.isFloat = isFloat;
        }

        void value(SpecializedGetters row, int i, byte[] to, int at) {
            if (size == 4) {
                float value = isFloat ? row.getFloat(i) : (float) row.getDouble(i);
                number(Float.floatToRawIntBits(value), 4, to, at);
            } else {
                double value = isFloat ? (double) row.getFloat(i) : row.getDouble(i);
                number(Double.doubleToRawLongBits(value), 8, to, at);
            }
        }
    }

    /** Bytes of at most a size, or of exactly one. */
    private static final class Bytes extends FieldWriter {
        private final boolean isExact;

        Bytes(String[] word, boolean isExact) {
            super(word);
            this.isExact = isExact;
        }

        void value(SpecializedGetters row, int i, byte[] to, int at) {
            byte[] bytes = row.getBinary(i);
            if (isExact && bytes.length != size) {
                throw unfit(bytes.length + " bytes");
            }
            if (bytes.length > size) {
                throw tooLong(bytes.length, "bytes");
            }
            System.arraycopy(bytes, 0, to, at, bytes.length);
        }
    }

    /** Text, in four bytes for each character. */
    private static final class Text extends FieldWriter {
        Text(String[] word) {
            super(word);
        }

        void value(SpecializedGetters row, int i, byte[] to, int at) {
            UTF8String given = row.getUTF8String(i);
            if (!given.isValid()) {
                throw unfit("invalid UTF-8");
            }
            String text = given.toString();
            int count = text.codePointCount(0, text.length());
            if (4 * (long) count > size) {
                throw tooLong(count, "characters");
            }
            int place = at;
            for (int from = 0; from < text.length(); place += 4) {
                int one = text.codePointAt(from);
                number(one, 4, to, place);
                from += Character.charCount(one);
            }
        }
    }

    /** A time, a day or a duration, which Spark has in microseconds or days. */
    private static final class Time extends FieldWriter {
        private final boolean isDay;
        /** Microseconds of a unit; 0: it is a nanosecond. */
        private final long micros;

        Time(String[] word) {
            super(word);
            String unit = word[0].substring(1);
            isDay = unit.equals("D");
            micros = unit.equals("s") ? 1_000_000L : unit.equals("ms") ? 1000L
                : unit.equals("us") ? 1L : 0L;
        }

        void value(SpecializedGetters row, int i, byte[] to, int at) {
            if (isDay) {
                number(row.getInt(i), 8, to, at);
                return;
            }
            long given = row.getLong(i);
            long value = micros == 0 ? given * 1000L : given / micros;
            long back = micros == 0 ? value / 1000L : value * micros;
            if (back != given) {
                throw unfit(given + " microseconds");
            }
            number(value, 8, to, at);
        }

        void missing(byte[] to, int at) {
            number(Long.MIN_VALUE, 8, to, at);
        }
    }

    /** A record in a record. */
    private static final class Record extends FieldWriter {
        private final FieldWriter[] parts;

        Record(String[] word, FieldWriter[] parts) {
            super(word);
            this.parts = parts;
        }

        void value(SpecializedGetters row, int i, byte[] to, int at) {
            SpecializedGetters values = row.getStruct(i, parts.length);
            for (int part = 0; part < parts.length; part++) {
                parts[part].put(values, part, to, at);
            }
        }
    }

    /** An array, whose size each value must have. */
    private static final class Items extends FieldWriter {
        private final int stride;
        private final FieldWriter item;

        Items(String[] word, FieldWriter item) {
            super(word);
            stride = Integer.parseInt(word[2]);
            this.item = item;
        }

        void value(SpecializedGetters row, int i, byte[] to, int at) {
            ArrayData values = row.getArray(i);
            if (values.numElements() != size) {
                throw unfit(values.numElements() + " elements");
            }
            for (int one = 0; one < size; one++) {
                item.put(values, one, to, at + one * stride);
            }
        }
    }
}
