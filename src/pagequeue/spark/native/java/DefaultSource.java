package pagequeue;

import java.util.HashMap;
import java.util.Iterator;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What `format("pagequeue")` is where the calling thread finds these classes.
 *
 * Spark looks for the class of this name in the package that a format is called like, and only
 * then for a Python source of that name.
 */
public final class DefaultSource implements TableProvider {
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        try {
            return (StructType) DataType.fromJson(Planner.ask("schema\n"
                + SourceTable.words(options.asCaseSensitiveMap())));
        } catch (Problem error) {
            throw error.ofSpark();
        }
    }

    public boolean supportsExternalMetadata() {
        return true;
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return new SourceTable(schema, read(properties));
    }

    /** The options among the properties that a table of the catalog has; its location is a path. */
    private static Map read(Map properties) {
        Map options = new HashMap();
        Iterator all = properties.entrySet().iterator();
        while (all.hasNext()) {
            Map.Entry one = (Map.Entry) all.next();
            String name = ((String) one.getKey()).toLowerCase(Locale.ROOT);
            if (name.equals(TableCatalog.PROP_LOCATION)) {
                options.putIfAbsent("path", one.getValue());
            } else if (name.equals("path")) {
                options.put(name, one.getValue());
            } else if (!CatalogV2Util.TABLE_RESERVED_PROPERTIES().contains(name)
                    && !name.startsWith(TableCatalog.OPTION_PREFIX)) {
                options.put(one.getKey(), one.getValue());
            }
        }
        return options;
    }
}
