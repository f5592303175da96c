package pagequeue;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What Spark makes of the name of this class as a format. Python gives schema and options. */
public final class Source implements TableProvider {
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        throw Problem.of("InvalidOption", null, "no schema", "read with pagequeue.spark.read")
            .ofSpark();
    }

    public boolean supportsExternalMetadata() {
        return true;
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return new QueueTable(schema, new CaseInsensitiveStringMap(properties));
    }
}
