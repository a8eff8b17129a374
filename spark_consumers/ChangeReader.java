package relay;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.io.SerializedString;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import java.util.regex.Pattern;
import org.apache.avro.LogicalType;
import org.apache.avro.LogicalTypes;
import org.apache.avro.Schema;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.expressions.UserDefinedFunction;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Decodes a Kafka value to the columns of a change, at the same cost however many schemas there are. Compiled by
 * java_classes.py with Spark's own compiler, which ignores the arguments of generic types and knows no lambdas.
 */
public class ChangeReader implements UDF1 {
    private static final long serialVersionUID = 1;
    private static final JsonFactory JSON = new JsonFactory();
    private static final Pattern PADDING = Pattern.compile("\\.0*$|(\\.\\d*[1-9])0+$");
    private static final long DAY = 86400000000L; // microseconds
    /** By the text of a schema: once for each JVM, whatever the number of tasks. */
    private static final Map LAYOUTS = new ConcurrentHashMap();

    /** Marks a schema that came later: only schemas that were known at the start have typed columns. */
    private static final int NO_LAYOUT = -1;

    private final boolean registry;
    private final Map schemas = new ConcurrentHashMap(); // by header, as ByteBuffer is not serializable: base64
    private final Map numbers = new ConcurrentHashMap();
    private final List givenUp = new ArrayList();
    private transient Map known;
    private transient Consumer learning;
    private transient boolean learnsInQueries;

    public ChangeReader(boolean registry) {
        this.registry = registry;
    }

    /** Let the reader know a schema, whose changes get ``number`` as their layout. */
    public void add(byte[] header, String schema, int number) {
        numbers.put(Base64.getEncoder().encodeToString(header), Integer.valueOf(number));
        addLater(header, schema);
    }

    /** Let the reader know a schema without a layout. */
    public void addLater(byte[] header, String schema) {
        schemas.put(Base64.getEncoder().encodeToString(header), schema);
    }

    /** Have {@code learning} add what it has learnt to this reader before tasks get copies of it. */
    public void learnBy(Consumer learning) {
        this.learning = learning;
    }

    /** Called for each copy: Spark's compiler does not make writeObject private. */
    public Object writeReplace() {
        if (learning != null) {
            // The one thread that starts the stages of all queries does not wait, if the query's own has looked before.
            boolean isOfQuery = !Thread.currentThread().getName().startsWith("dag-scheduler");
            learnsInQueries = learnsInQueries || isOfQuery;
            if (isOfQuery || !learnsInQueries) {
                learning.accept(this);
            }
        }
        return this;
    }

    /** Have values with this header reported as foreign. */
    public void giveUp(byte[] header) {
        givenUp.add(Base64.getEncoder().encodeToString(header));
    }

    /**
     * Return a function of a column that returns {@code type}. Python cannot call {@code udf} itself: a call from there
     * takes the first of its forms that fits, in an order that differs between JVMs, and one form is refused by Spark.
     */
    public UserDefinedFunction into(DataType type) {
        // Or a filter on the status would be pushed below it, with a second call for each record.
        return functions.udf((UDF1) this, type).asNondeterministic();
    }

    /** Return status, layout and the columns of a change, which are null unless the status is "change". */
    public Object call(Object given) {
        byte[] value = (byte[]) given;
        if (value == null) {
            return only("tombstone");
        }
        int length = headerLength(value);
        if (length == 0) {
            return only("framing");
        }
        Object found = known().get(ByteBuffer.wrap(value, 0, length));
        if (found == null) {
            return only("schema");
        }
        if (found instanceof String) {
            return only((String) found);
        }
        try {
            return ((Version) found).read(new Bytes(value, length));
        } catch (Damaged e) {
            return only("damaged");
        }
    }

    private int headerLength(byte[] value) {
        if (value.length >= 10 && value[0] == (byte) 0xC3 && value[1] == (byte) 0x01) {
            return 10;
        }
        return registry && value.length >= 5 && value[0] == (byte) 0 ? 5 : 0;
    }

    private static Row only(String status) {
        Object[] columns = new Object[Version.COLUMNS.length];
        columns[0] = status;
        return RowFactory.create(columns);
    }

    private Map known() {
        if (known == null) {
            Map found = new HashMap();
            for (Object name : givenUp) {
                found.put(header(name), "foreign");
            }
            for (Object name : schemas.keySet()) {
                String text = (String) schemas.get(name);
                if (!LAYOUTS.containsKey(text)) {
                    LAYOUTS.put(text, new Record(new Schema.Parser().parse(text)));
                }
                Record layout = (Record) LAYOUTS.get(text);
                // A copy is made field by field, so it may lack the number of a schema that came meanwhile.
                Integer number = (Integer) numbers.get(name);
                found.put(header(name), new Version(layout, number == null ? NO_LAYOUT : number.intValue()));
            }
            known = found;
        }
        return known;
    }

    private static ByteBuffer header(Object name) {
        return ByteBuffer.wrap(Base64.getDecoder().decode((String) name));
    }

    /** Bytes do not match their schema. */
    static class Damaged extends RuntimeException {
        Damaged() {
            super("damaged", null, false, false);
        }
    }

    /** Reads Avro's binary form, and never beyond its end. */
    static class Bytes {
        final byte[] all;
        int at;

        Bytes(byte[] all, int at) {
            this.all = all;
            this.at = at;
        }

        int left() {
            return all.length - at;
        }

        byte next() {
            if (at >= all.length) {
                throw new Damaged();
            }
            return all[at++];
        }

        long integer() {
            long found = 0;
            for (int shift = 0; shift < 70; shift += 7) {
                byte part = next();
                found |= (long) (part & 0x7F) << shift;
                if (part >= 0) {
                    return (found >>> 1) ^ -(found & 1);
                }
            }
            throw new Damaged();
        }

        int index(int most) {
            long found = integer();
            if (found < 0 || found >= most) {
                throw new Damaged();
            }
            return (int) found;
        }

        long little(int size) {
            long found = 0;
            for (int n = 0; n < size; n++) {
                found |= (next() & 0xFFL) << (8 * n);
            }
            return found;
        }

        /** Return where ``length`` bytes begin, and pass them. */
        int pass(long length) {
            if (length < 0 || length > left()) {
                throw new Damaged();
            }
            int begin = at;
            at += (int) length;
            return begin;
        }

        byte[] bytes() {
            int length = index(left() + 1);
            byte[] found = new byte[length];
            System.arraycopy(all, pass(length), found, 0, length);
            return found;
        }

        UTF8String text() {
            int length = index(left() + 1);
            return UTF8String.fromBytes(all, pass(length), length);
        }

        /** Return the number of items in the next block of an array or map, each of at least a byte. */
        int block() {
            long count = integer();
            if (count < 0) {
                integer();
                count = -count;
            }
            if (count < 0 || count > left()) {
                throw new Damaged();
            }
            return (int) count;
        }
    }

    /** A type, without its null. */
    static class Kind {
        private static final int NULL = 0, BOOLEAN = 1, INT = 2, LONG = 3, FLOAT = 4, DOUBLE = 5, BYTES = 6, STRING = 7;
        private static final int ENUM = 8, ARRAY = 9, MAP = 10, RECORD = 11, DECIMAL = 12, TIME = 13, UNION = 14;
        private static final String[] NAMES = {
            "null", "boolean", "int", "long", "float", "double", "bytes", "string", "enum", "array", "map", "record"
        };

        final int type;
        UTF8String[] symbols;
        Kind item;
        Kind[] branches;
        Record record;
        int precision;
        int scale;

        Kind(Schema schema) {
            LogicalType logical = schema.getLogicalType();
            if (schema.isUnion()) {
                type = UNION;
                List parts = schema.getTypes();
                branches = new Kind[parts.size()];
                for (int n = 0; n < branches.length; n++) {
                    branches[n] = new Kind((Schema) parts.get(n));
                }
            } else if (logical instanceof LogicalTypes.Decimal) {
                type = DECIMAL;
                precision = ((LogicalTypes.Decimal) logical).getPrecision();
                scale = ((LogicalTypes.Decimal) logical).getScale();
            } else if (logical instanceof LogicalTypes.TimestampMicros) {
                type = TIME;
            } else {
                type = typeOf(schema.getType().getName());
                if (type == ENUM) {
                    List names = schema.getEnumSymbols();
                    symbols = new UTF8String[names.size()];
                    for (int n = 0; n < symbols.length; n++) {
                        symbols[n] = UTF8String.fromString((String) names.get(n));
                    }
                } else if (type == ARRAY) {
                    item = new Kind(schema.getElementType());
                } else if (type == MAP) {
                    item = new Kind(schema.getValueType());
                } else if (type == RECORD) {
                    record = new Record(schema);
                }
            }
        }

        private static int typeOf(String name) {
            for (int n = 0; n < NAMES.length; n++) {
                if (NAMES[n].equals(name)) {
                    return n;
                }
            }
            throw new IllegalArgumentException("no change has a value of Avro's type " + name);
        }

        /** Return the next value: a record's values, a Map for a map, a decimal's number, a Long for a time. */
        Object read(Bytes bytes) {
            switch (type) {
                case NULL:
                    return null;
                case BOOLEAN:
                    byte flag = bytes.next();
                    if (flag != 0 && flag != 1) {
                        throw new Damaged();
                    }
                    return Boolean.valueOf(flag == 1);
                case INT:
                    long number = bytes.integer();
                    if (number != (int) number) {
                        throw new Damaged();
                    }
                    return Integer.valueOf((int) number);
                case LONG:
                case TIME:
                    return Long.valueOf(bytes.integer());
                case FLOAT:
                    return Float.valueOf(Float.intBitsToFloat((int) bytes.little(4)));
                case DOUBLE:
                    return Double.valueOf(Double.longBitsToDouble(bytes.little(8)));
                case BYTES:
                    return bytes.bytes();
                case STRING:
                    return bytes.text();
                case ENUM:
                    return symbols[bytes.index(symbols.length)];
                case DECIMAL:
                    return decimal(bytes.bytes());
                case UNION:
                    return branches[bytes.index(branches.length)].read(bytes);
                case RECORD:
                    return record.read(bytes);
                case ARRAY:
                    List items = new ArrayList();
                    for (int count = bytes.block(); count != 0; count = bytes.block()) {
                        for (int n = 0; n < count; n++) {
                            items.add(item.read(bytes));
                        }
                    }
                    return items;
                default:
                    Map entries = new HashMap();
                    for (int count = bytes.block(); count != 0; count = bytes.block()) {
                        for (int n = 0; n < count; n++) {
                            UTF8String name = bytes.text();
                            entries.put(name, item.read(bytes));
                        }
                    }
                    return entries;
            }
        }

        private BigDecimal decimal(byte[] unscaled) {
            if (unscaled.length == 0) {
                throw new Damaged();
            }
            BigDecimal found = new BigDecimal(new BigInteger(unscaled), scale);
            if (found.precision() > precision) {
                throw new Damaged();
            }
            return found;
        }

        /** Return the type of the values that are not null. */
        Kind bare() {
            for (int n = 0; type == UNION && n < branches.length; n++) {
                if (branches[n].type != NULL) {
                    return branches[n];
                }
            }
            return this;
        }

        /** Return the text that a value has in a key, null for null. */
        Object text(Object value) {
            if (value == null) {
                return null;
            }
            switch (bare().type) {
                case BYTES:
                    return Base64.getEncoder().encodeToString((byte[]) value);
                case DECIMAL:
                    return ((BigDecimal) value).toPlainString();
                case TIME:
                    return iso(((Long) value).longValue());
                case STRING:
                    return value;
                default:
                    return value.toString();
            }
        }

        /** Write a value in a form that JSON holds exactly: bytes as base64, decimals and times as text. */
        void write(JsonGenerator json, Object value) throws IOException {
            if (value == null) {
                json.writeNull();
                return;
            }
            Kind kind = bare();
            switch (kind.type) {
                case BOOLEAN:
                    json.writeBoolean(((Boolean) value).booleanValue());
                    break;
                case INT:
                    json.writeNumber(((Integer) value).intValue());
                    break;
                case LONG:
                    json.writeNumber(((Long) value).longValue());
                    break;
                case FLOAT:
                    json.writeNumber(((Float) value).floatValue());
                    break;
                case DOUBLE:
                    json.writeNumber(((Double) value).doubleValue());
                    break;
                case ARRAY:
                    json.writeStartArray();
                    for (Object each : (List) value) {
                        kind.item.write(json, each);
                    }
                    json.writeEndArray();
                    break;
                case RECORD:
                    kind.record.write(json, (Object[]) value, null);
                    break;
                default:
                    writeText(json, text(value));
            }
        }

        /** Write a text as it is: Jackson would write half of a surrogate pair at a time, as an escape. */
        static void writeText(JsonGenerator json, Object text) throws IOException {
            UTF8String found = text instanceof UTF8String ? (UTF8String) text : UTF8String.fromString(text.toString());
            byte[] bytes = (found.isValid() ? found : UTF8String.fromString(found.toString())).getBytes();
            json.writeUTF8String(bytes, 0, bytes.length);
        }
    }

    static String iso(long micros) {
        long day = Math.floorDiv(micros, DAY), rest = Math.floorMod(micros, DAY), seconds = rest / 1000000;
        StringBuilder text = new StringBuilder(LocalDate.ofEpochDay(day).toString());
        text.append('T');
        digits(text, seconds / 3600, 2).append(':');
        digits(text, seconds / 60 % 60, 2).append(':');
        digits(text, seconds % 60, 2).append('.');
        return digits(text, rest % 1000000, 6).append('Z').toString();
    }

    private static StringBuilder digits(StringBuilder text, long number, int length) {
        String found = Long.toString(number);
        for (int n = found.length(); n < length; n++) {
            text.append('0');
        }
        return text.append(found);
    }

    static class Record {
        final String[] avro; // names
        final SerializedString[] names; // at the source
        final Kind[] kinds;
        final boolean[] padded; // equal values may have zeros at the end of their text

        Record(Schema schema) {
            List fields = schema.getFields();
            avro = new String[fields.size()];
            names = new SerializedString[avro.length];
            kinds = new Kind[avro.length];
            padded = new boolean[avro.length];
            for (int n = 0; n < avro.length; n++) {
                Schema.Field field = (Schema.Field) fields.get(n);
                String type = field.getProp("relay.type");
                avro[n] = field.name();
                String name = field.getProp("source.name");
                names[n] = new SerializedString(name == null ? avro[n] : name);
                kinds[n] = new Kind(field.schema());
                padded[n] = Boolean.TRUE.equals(field.getObjectProp("decimals")) || type != null && type.startsWith("decimal");
            }
        }

        Object[] read(Bytes bytes) {
            Object[] found = new Object[kinds.length];
            for (int n = 0; n < found.length; n++) {
                found[n] = kinds[n].read(bytes);
            }
            return found;
        }

        int place(String name) {
            for (int n = 0; n < avro.length; n++) {
                if (avro[n].equals(name)) {
                    return n;
                }
            }
            return -1;
        }

        /** Return the texts of a key: the same for the same row, also when a column of it gets more decimals. */
        Object[] texts(Object[] values) {
            Object[] found = new Object[values.length];
            for (int n = 0; n < found.length; n++) {
                Object text = kinds[n].text(values[n]);
                found[n] = padded[n] && text != null ? PADDING.matcher(text.toString()).replaceFirst("$1") : text;
            }
            return found;
        }

        /** Write an object with the source's names. ``texts``: of a key, whose numbers may be padded. */
        void write(JsonGenerator json, Object[] values, Object[] texts) throws IOException {
            json.writeStartObject();
            for (int n = 0; n < values.length; n++) {
                json.writeFieldName(names[n]);
                if (texts != null && padded[n] && texts[n] != null) {
                    Kind.writeText(json, texts[n]);
                } else {
                    kinds[n].write(json, values[n]);
                }
            }
            json.writeEndObject();
        }

        UTF8String json(Object[] values, Object[] texts) {
            ByteArrayOutputStream text = new ByteArrayOutputStream(64 * (values.length + 1));
            try {
                JsonGenerator json = JSON.createGenerator(text);
                write(json, values, texts);
                json.close();
            } catch (IOException e) {
                throw new IllegalStateException(e);
            }
            return UTF8String.fromBytes(text.toByteArray());
        }
    }

    /** The changes of one schema. */
    static class Version {
        static final String[] COLUMNS = {
            "status", "layout", "event_id", "operation", "source", "table", "key", "key_texts", "old", "new", "images",
            "token", "token_timestamp", "token_shard", "token_position", "snapshot_id", "snapshot_as_of",
            "transaction_id", "transaction_order", "transaction_last", "keyspace_id", "resume_timestamp",
            "committed_at", "relayed_at", "attributes"
        };
        // Where they are in the record, and columns that are fields of records in it.
        private final Record change;
        private final Integer number;
        private final int[] places = new int[COLUMNS.length];
        private final int[] parts = new int[COLUMNS.length];

        Version(Record change, int number) {
            this.change = change;
            this.number = Integer.valueOf(number);
            for (int n = 0; n < COLUMNS.length; n++) {
                String name = COLUMNS[n];
                int cut = name.indexOf('_');
                places[n] = change.place(name);
                parts[n] = -1;
                if (places[n] < 0 && cut > 0) {
                    places[n] = change.place(name.substring(0, cut));
                    if (places[n] >= 0 && change.kinds[places[n]].bare().record != null) {
                        parts[n] = change.kinds[places[n]].bare().record.place(name.substring(cut + 1));
                    }
                }
            }
        }

        Row read(Bytes bytes) {
            Object[] values = change.read(bytes);
            if (bytes.left() > 0) {
                throw new Damaged();
            }
            Object[] columns = new Object[COLUMNS.length];
            for (int n = 2; n < columns.length; n++) {
                Object value = places[n] < 0 ? null : values[places[n]];
                columns[n] = parts[n] < 0 || value == null ? value : ((Object[]) value)[parts[n]];
            }
            columns[0] = "change";
            columns[1] = number;
            if (((UTF8String) columns[2]).numBytes() == 0) {
                throw new Damaged();
            }
            Object[] key = (Object[]) columns[6];
            if (key != null) {
                Record record = change.kinds[places[6]].bare().record;
                Object[] texts = record.texts(key);
                columns[6] = record.json(key, texts);
                columns[7] = texts;
            }
            json(columns, 8);
            json(columns, 9);
            json(columns, 11);
            return RowFactory.create(columns);
        }

        private void json(Object[] columns, int n) {
            if (columns[n] instanceof Object[]) {
                columns[n] = change.kinds[places[n]].bare().record.json((Object[]) columns[n], null);
            }
        }
    }
}
