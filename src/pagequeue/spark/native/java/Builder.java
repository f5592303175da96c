package pagequeue;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownTopN;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/**
 * One read of the table.
 *
 * It takes the filters that become ranges, columns, limit, the first or last by sequence or time,
 * and aggregates.
 */
final class Builder implements SupportsPushDownV2Filters, SupportsPushDownRequiredColumns,
        SupportsPushDownLimit, SupportsPushDownTopN, SupportsPushDownAggregates {
    private final QueueTable table;
    private StructType schema;
    private Predicate[] pushed = new Predicate[0];
    private final List conditions = new ArrayList();
    private final List aggregates = new ArrayList();
    private int limit = -1;
    private String limited = QueueScan.ANY;

    Builder(QueueTable table, StructType schema) {
        this.table = table;
        this.schema = schema;
    }

    public Predicate[] pushPredicates(Predicate[] predicates) {
        Conditions translation = new Conditions(table);
        List taken = new ArrayList();
        List left = new ArrayList();
        for (int i = 0; i < predicates.length; i++) {
            String text = translation.text(predicates[i]);
            if (text == null) {
                left.add(predicates[i]);
            } else {
                taken.add(predicates[i]);
                conditions.add(text);
            }
        }
        pushed = (Predicate[]) taken.toArray(new Predicate[0]);
        return (Predicate[]) left.toArray(new Predicate[0]);
    }

    public Predicate[] pushedPredicates() {
        return pushed;
    }

    public void pruneColumns(StructType required) {
        schema = required;
    }

    public boolean pushLimit(int rows) {
        limit = rows;
        return true;
    }

    /**
     * Of each queue the first or the last rows are enough if the order is that of sequences, up or
     * down: times never go back within a queue. Spark sorts them.
     */
    public boolean pushTopN(SortOrder[] orders, int rows) {
        SortDirection direction = orders[0].direction();
        for (int i = 0; i < orders.length; i++) {
            String kind = spec(orders[i].expression());
            boolean isOrdered = kind != null && Conditions.isOrdered(kind)
                && orders[i].direction() == direction;
            if (!isOrdered) {
                return false;
            }
            if (kind.equals("s")) {
                break; // no two rows of a queue are equal: what comes after it decides nothing
            }
        }
        limit = rows;
        limited = direction == SortDirection.ASCENDING ? QueueScan.FIRST : QueueScan.LAST;
        return true;
    }

    public boolean isPartiallyPushed() {
        return true;
    }

    public boolean supportCompletePushDown(Aggregation aggregation) {
        return words(aggregation) != null;
    }

    public boolean pushAggregation(Aggregation aggregation) {
        String[] words = words(aggregation);
        if (words == null) {
            return false;
        }
        StructType row = new StructType();
        for (int i = 0; i < words.length; i++) {
            aggregates.add(words[i]);
            boolean isTime = words[i].endsWith("m");
            row = row.add(words[i] + "_" + i, isTime ? DataTypes.TimestampType
                : DataTypes.LongType, true);
        }
        schema = row;
        return true;
    }

    /** Each aggregate as a word: count, or min or max with the column's kind; null: another one. */
    private String[] words(Aggregation aggregation) {
        if (table.least > 0 || aggregation.groupByExpressions().length > 0) {
            return null;
        }
        AggregateFunc[] all = aggregation.aggregateExpressions();
        if (all.length == 0) {
            return null; // one row of what Spark knows itself
        }
        String[] words = new String[all.length];
        for (int i = 0; i < all.length; i++) {
            words[i] = word(all[i]);
            if (words[i] == null) {
                return null;
            }
        }
        return words;
    }

    private String word(AggregateFunc function) {
        if (function instanceof CountStar) {
            return "count";
        }
        if (function instanceof Count) {
            Count count = (Count) function;
            // No column has a null.
            return !count.isDistinct() && spec(count.column()) != null ? "count" : null;
        }
        Expression column = function instanceof Min ? ((Min) function).column()
            : function instanceof Max ? ((Max) function).column() : null;
        String spec = column == null ? null : spec(column);
        if (spec == null || !Conditions.isOrdered(spec)) {
            return null;
        }
        return (function instanceof Min ? "min_" : "max_") + spec;
    }

    private String spec(Expression column) {
        if (!(column instanceof NamedReference)) {
            return null;
        }
        String[] names = ((NamedReference) column).fieldNames();
        return names.length == 1 ? table.spec(names[0]) : null;
    }

    public Scan build() {
        return new QueueScan(table, schema, conditions, limit, limited, aggregates, pushed);
    }
}
