package relay;

import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.catalyst.expressions.AttributeMap$;
import org.apache.spark.sql.catalyst.plans.logical.Statistics;
import org.apache.spark.sql.catalyst.plans.physical.UnknownPartitioning;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.types.StructType;

/** The part of spark_internals.py that Python cannot call, since it gets the integers of Scala as its own. */
public class SparkInternals {
    /** Return a frame of rows as Spark has them. {@code bytes}: the size that Spark assumes. */
    public Dataset frame(SparkSession session, JavaRDD rows, StructType type, long bytes) {
        Statistics size =
            new Statistics(scala.math.BigInt.apply(bytes), scala.Option.empty(), AttributeMap$.MODULE$.empty(), false);
        LogicalRDD plan = new LogicalRDD(
            (scala.collection.immutable.Seq) DataTypeUtils.toAttributes(type),
            rows.rdd(),
            new UnknownPartitioning(0),
            scala.collection.immutable.Nil$.MODULE$,
            false,
            scala.Option.empty(),
            session,
            scala.Option.apply(size),
            scala.Option.empty()
        );
        return org.apache.spark.sql.classic.Dataset.ofRows(session, plan);
    }
}
