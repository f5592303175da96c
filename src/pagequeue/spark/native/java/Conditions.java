package pagequeue;

import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Filters as text for the planner, which makes exact ranges of them.
 *
 * Words in prefix order: `and X Y`, `or X Y`, `not X`, `all`, `none`, or column, comparison, number
 * of values, values. No column has a null, and a filter with a null as its value is not taken, so
 * nothing here is unknown: `not` is the complement.
 */
final class Conditions {
    private final QueueTable table;

    Conditions(QueueTable table) {
        this.table = table;
    }

    /** Whether a column never goes back within a queue: sequences and times. */
    static boolean isOrdered(String kind) {
        return kind.equals("s") || kind.equals("t") || kind.equals("m");
    }

    /** The text of a filter; null: Spark must apply it. */
    String text(Expression filter) {
        if (!(filter instanceof Predicate)) {
            return null;
        }
        String name = ((Predicate) filter).name();
        Expression[] parts = filter.children();
        if (name.equals("ALWAYS_TRUE")) {
            return "all";
        }
        if (name.equals("ALWAYS_FALSE")) {
            return "none";
        }
        if (name.equals("AND") || name.equals("OR")) {
            String left = text(parts[0]);
            String right = text(parts[1]);
            return left == null || right == null ? null
                : name.toLowerCase(java.util.Locale.ROOT) + " " + left + " " + right;
        }
        if (name.equals("NOT")) {
            String inner = text(parts[0]);
            return inner == null ? null : "not " + inner;
        }
        if (name.equals("IS_NOT_NULL") || name.equals("IS_NULL")) {
            String kind = kind(parts[0]);
            return kind == null ? null : name.equals("IS_NULL") ? "none" : "all";
        }
        if (name.equals("IN")) {
            return compared(parts[0], "in", parts);
        }
        return comparison(name, parts);
    }

    private String comparison(String name, Expression[] parts) {
        if (parts.length != 2) {
            return null;
        }
        String word = name.equals("<=>") ? "=" : name;
        boolean isFlipped = !(parts[0] instanceof NamedReference);
        if (isFlipped) {
            parts = new Expression[] {parts[1], parts[0]};
        }
        if (word.equals("=")) {
            return compared(parts[0], "in", parts);
        }
        if (word.equals("<>")) {
            String same = compared(parts[0], "in", parts);
            return same == null ? null : "not " + same;
        }
        if (word.equals("<") || word.equals("<=") || word.equals(">") || word.equals(">=")) {
            String other = word.replace('<', '!').replace('>', '<').replace('!', '>');
            return compared(parts[0], isFlipped ? other : word, parts);
        }
        return null;
    }

    /** @param parts column, values. */
    private String compared(Expression column, String word, Expression[] parts) {
        String kind = kind(column);
        if (kind == null || kind.length() != 1 || kind.equals("p")) {
            return null;
        }
        if (kind.equals("q") && !word.equals("in")) {
            return null;
        }
        StringBuilder text = new StringBuilder();
        text.append(kind).append(' ').append(word).append(' ').append(parts.length - 1);
        for (int i = 1; i < parts.length; i++) {
            String value = value(kind, parts[i]);
            if (value == null) {
                return null;
            }
            text.append(' ').append(value);
        }
        return text.toString();
    }

    private static String value(String kind, Expression part) {
        if (!(part instanceof Literal)) {
            return null;
        }
        Literal literal = (Literal) part;
        Object value = literal.value();
        if (value instanceof UTF8String && kind.equals("q")) {
            boolean isText = literal.dataType().equals(org.apache.spark.sql.types.DataTypes.StringType);
            return isText ? "'" + URLEncoder.encode(value.toString(), StandardCharsets.UTF_8) : null;
        }
        boolean isRight = kind.equals("m") ? literal.dataType() instanceof TimestampType
            : !kind.equals("q") && literal.dataType() instanceof LongType;
        return isRight && value instanceof Long ? value.toString() : null;
    }

    private String kind(Expression column) {
        if (!(column instanceof NamedReference)) {
            return null;
        }
        String[] names = ((NamedReference) column).fieldNames();
        return names.length == 1 ? table.spec(names[0]) : null;
    }
}
