import com.fasterxml.jackson.databind.ObjectMapper;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.avro.Conversions;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
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
 * <p>java -cp 'libraries/*' OwnClient.java BROKERS TOPIC SCHEMAS GROUP [REGISTRY_URL [COUNT]]
 *
 * <p>SCHEMAS is the topic {@code <name>.schemas}; REGISTRY_URL is the {@code url} of {@code schema_registry:}, if the
 * config has one. TOPIC may be in Debezium's envelope. The program ends once it has printed COUNT changes.
 */
public class OwnClient {
    private static final long PATIENCE = 60_000; // ms for a schema, which is on its topic before the first change
    private static final GenericData DATA = new GenericData();

    public static void main(String[] args) throws Exception {
        DATA.addLogicalTypeConversion(new Conversions.DecimalConversion()); // without it, a DECIMAL is bytes
        long left = args.length > 5 ? Long.parseLong(args[5]) : Long.MAX_VALUE;
        SchemaReader schemas = new SchemaReader(args[0], args[2], args.length > 4 ? args[4] : "");
        Map<String, Object> settings = settings(args[0]);
        settings.put("group.id", args[3]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", "read_committed"); // not Java's default: aborted changes would come, too
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(settings)) {
            consumer.subscribe(List.of(args[1]));
            while (left > 0) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofSeconds(1))) {
                    if (each.value() != null) { // null: for log compaction, and for Debezium's sinks
                        System.out.println(DATA.toString(read(each, schemas)));
                        left--;
                    }
                }
                consumer.commitSync(); // if the program dies before this, it gets these changes again
            }
        }
    }

    /** Returns operation, key and new row. In Debezium's envelope, the key is in the record's key. */
    private static List<Object> read(ConsumerRecord<byte[], byte[]> each, SchemaReader schemas) throws Exception {
        GenericRecord change = schemas.decode(each.value());
        if (!change.hasField("op")) {
            return Arrays.asList(change.get("operation"), change.get("key"), change.get("new"));
        }
        Object key = each.key() == null ? null : schemas.decode(each.key()); // null: a truncation
        return Arrays.asList(change.get("op"), key, change.get("after"));
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
        private final String registry;

        SchemaReader(String brokers, String topic, String registry) {
            this.registry = registry;
            consumer = consumer(settings(brokers));
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
        }

        /** Decodes a value. Without its schema, Avro would return a row of wrong values and no error. */
        GenericRecord decode(byte[] value) throws Exception {
            int length = value[0] == 0 ? 5 : 10; // 00 and a registry's id, or C3 01 and a fingerprint
            String header = HexFormat.of().formatHex(Arrays.copyOf(value, length));
            if (value[0] == 0 && !registry.isEmpty() && !known.containsKey(header)) {
                known.put(header, registered(ByteBuffer.wrap(value).getInt(1)));
            }
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
            Schema schema = known.get(header);
            GenericDatumReader<GenericRecord> reader = new GenericDatumReader<>(schema, schema, DATA);
            return reader.read(null, DecoderFactory.get().binaryDecoder(value, length, value.length - length, null));
        }

        private Schema registered(int id) throws Exception {
            HttpRequest request = HttpRequest.newBuilder(URI.create(registry + "/schemas/ids/" + id)).build();
            HttpResponse<String> answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
            if (answer.statusCode() != 200) {
                throw new IllegalStateException("no schema " + id + " at " + registry + ": " + answer.body());
            }
            return new Schema.Parser().parse(new ObjectMapper().readTree(answer.body()).get("schema").asText());
        }
    }
}
