import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.DecoderFactory;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Prints each change on a topic with org.apache.kafka:kafka-clients and org.apache.avro:avro, and none of our code.
 *
 * <p>java -cp 'libraries/*' OwnClient.java BROKERS TOPIC SCHEMAS GROUP [COUNT]
 *
 * <p>SCHEMAS is the topic {@code <name>.schemas}: the config has no {@code schema_registry:}. With COUNT it ends once it
 * has printed so many changes.
 */
public class OwnClient {
    private static final long PATIENCE = 60_000; // ms for a schema, which is on its topic before the first change

    public static void main(String[] args) throws Exception {
        long left = args.length > 4 ? Long.parseLong(args[4]) : Long.MAX_VALUE;
        SchemaReader schemas = new SchemaReader(args[0], args[2]);
        Map<String, Object> settings = settings(args[0]);
        settings.put("group.id", args[3]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", "read_committed"); // not Java's default: aborted changes would come, too
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
            consumer.subscribe(List.of(args[1]));
            while (left > 0) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofSeconds(1))) {
                    if (each.value() != null) { // null: for log compaction, with `tombstones: true`
                        GenericRecord change = schemas.decode(each.value());
                        System.out.println(change.get("operation") + " " + change.get("key") + " " + change.get("new"));
                        left--;
                    }
                }
                consumer.commitSync(); // if the program dies before this, it gets these changes again
            }
        }
    }

    private static Map<String, Object> settings(String brokers) {
        return new HashMap<>(Map.of("bootstrap.servers", brokers, "enable.auto.commit", false));
    }

    private static KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> settings) {
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** The schemas by the header of the values that they wrote. */
    private static class SchemaReader {
        private final Map<String, Schema> known = new HashMap<>();
        private final KafkaConsumer<byte[], byte[]> consumer;

        SchemaReader(String brokers, String topic) {
            consumer = consumer(settings(brokers));
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
        }

        /** Decodes a value. Without its schema, Avro would return a row of wrong values and no error. */
        GenericRecord decode(byte[] value) throws Exception {
            String header = HexFormat.of().formatHex(Arrays.copyOf(value, 10));
            long deadline = System.currentTimeMillis() + PATIENCE;
            while (!known.containsKey(header)) {
                if (!header.startsWith("c301") || System.currentTimeMillis() > deadline) {
                    throw new IllegalStateException("no schema of a value that begins with " + header);
                }
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofSeconds(1))) {
                    String json = new String(each.value(), StandardCharsets.UTF_8);
                    // A parser of its own for each: two schemas may have a type of the same name.
                    known.put("c301" + new String(each.key(), StandardCharsets.UTF_8), new Schema.Parser().parse(json));
                }
            }
            GenericDatumReader<GenericRecord> reader = new GenericDatumReader<>(known.get(header));
            return reader.read(null, DecoderFactory.get().binaryDecoder(value, 10, value.length - 10, null));
        }
    }
}
