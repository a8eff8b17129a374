package relay;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.io.StringWriter;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Set;
import java.util.TreeSet;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.api.java.function.FlatMapFunction2;
import org.apache.spark.api.java.function.Function;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.expressions.XXH64;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.storage.StorageLevel;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Finds the newest change of each item of a batch, in one pass over each of Spark's partitions and without moving rows
 * between them. plain_items.py has the columns of the rows that it takes and returns, and says which items it leaves.
 *
 * What a task finds is kept in Java's own types, which the class loaders of all threads know.
 */
public class PlainItems {
    private static final int STATUS = 0, LAYOUT = 1, TOPIC = 2, PARTITION = 3, OFFSET = 4, KEY = 5, OF_TABLE = 6;
    private static final int PLAIN = 7, DELETED = 8, TOKEN = 9, EVENT_ID = 10, NEW = 11, AS_OF = 12;

    // What a task finds: its groups as JSON; of its items the hash; of its rows the item, -1 for none; and of the items
    // the kind, the newest row, its offset, the number of changes, of their tokens the parts, and the offset of the
    // first change.
    private static final int GROUPS = 0, HASHES = 1, ITEM_OF = 2, ROWS = 3, OFFSETS = 4, CHANGES = 5;
    private static final int STEMS = 6, FIRST = 7, LAST = 8, FIRST_OFFSETS = 9, KINDS = 10;

    private static final byte[] NUL = {'\\', 'u', '0', '0', '0', '0'}; // as JSON writes it

    // Items that SQL cannot decide, those whose newest change it can, and those that only a snapshot has read.
    private static final byte OTHER = 0, CHANGED = 1, READ = 2;

    private final JavaRDD rows, again;
    private JavaRDD found;

    /** {@code again}: the rows of {@code read}, to choose from: which may be plain is no longer asked then. */
    public PlainItems(JavaRDD read, JavaRDD again) {
        rows = read;
        this.again = again;
    }

    /**
     * Read the batch, and return its groups of records, for each task a list in JSON.
     *
     * {@code tables}: the number of the table of each layout. {@code keys}: how many columns the longest key has.
     * {@code nul}: whether texts with NUL characters are plain.
     */
    public List find(String plainToken, List tables, int keys, boolean nul) {
        List tasks = run(new Pass(plainToken, numbers(tables), keys, nul, new long[0]));
        long[] shared = shared(tasks);
        if (shared.length > 0) {
            close();
            tasks = run(new Pass(plainToken, numbers(tables), keys, nul, shared));
        }
        List groups = new ArrayList();
        for (Object task : tasks) {
            groups.add(((Object[]) task)[GROUPS]);
        }
        return groups;
    }

    private List run(Pass pass) {
        found = rows.mapPartitions(pass).persist(StorageLevel.MEMORY_AND_DISK());
        return found.map(new Summary()).collect();
    }

    /** Return the hashes of the keys that are in several of Spark's partitions, in order. */
    private static long[] shared(List tasks) {
        int size = 0;
        for (Object task : tasks) {
            size += ((long[]) ((Object[]) task)[HASHES]).length;
        }
        long[] all = new long[size];
        int at = 0;
        for (Object task : tasks) {
            long[] hashes = (long[]) ((Object[]) task)[HASHES];
            System.arraycopy(hashes, 0, all, at, hashes.length);
            at += hashes.length;
        }
        Arrays.sort(all);
        int several = 0;
        for (int n = 1; n < size; n++) {
            if (all[n] == all[n - 1]) {
                all[several++] = all[n];
            }
        }
        return Arrays.copyOf(all, several);
    }

    /**
     * Return the rows of the newest changes of some layouts that SQL can decide, or of snapshots, each the same object.
     * {@code now}: a time, in microseconds, that each has.
     */
    public JavaRDD rows(List layouts, boolean ofSnapshots, long now) {
        return again.zipPartitions(found, new Choice(numbers(layouts), ofSnapshots ? READ : CHANGED, now));
    }

    /** Return the partitions and offsets of the changes of all other items. */
    public JavaRDD others(List layouts) {
        return again.zipPartitions(found, new Choice(numbers(layouts), OTHER, 0));
    }

    /** Free what is kept. */
    public void close() {
        if (found != null) {
            found.unpersist(false);
        }
    }

    private static int[] numbers(List found) {
        int[] numbers = new int[found.size()];
        for (int n = 0; n < numbers.length; n++) {
            numbers[n] = ((Number) found.get(n)).intValue();
        }
        return numbers;
    }

    /** Reads the rows of a task. */
    public static class Pass implements FlatMapFunction {
        private static final long serialVersionUID = 1;

        private final String plainToken;
        private final int[] tables;
        private final int keys;
        private final boolean nul;
        private final long[] shared; // hashes of keys whose items are not plain, in order

        Pass(String plainToken, int[] tables, int keys, boolean nul, long[] shared) {
            this.plainToken = plainToken;
            this.tables = tables;
            this.keys = keys;
            this.nul = nul;
            this.shared = shared;
        }

        public Iterator call(Object given) throws IOException {
            Iterator rows = (Iterator) given;
            PlainToken token = new PlainToken(plainToken);
            List groups = new ArrayList(), items = new ArrayList();
            Map byHash = new HashMap();
            int[] itemOf = new int[1024];
            Group group = null;
            int n = 0;
            for (; rows.hasNext(); n++) {
                SpecializedGetters row = (SpecializedGetters) rows.next();
                if (group == null || !group.has(row)) {
                    group = Group.of(groups, row, keys);
                }
                group.records++;
                if (n == itemOf.length) {
                    itemOf = Arrays.copyOf(itemOf, 2 * n);
                }
                itemOf[n] = -1;
                if (!group.isOfChanges) {
                    continue;
                }
                group.ofTable += row.getBoolean(OF_TABLE) ? 1 : 0;
                if (row.isNullAt(KEY)) {
                    continue;
                }
                ArrayData key = row.getArray(KEY);
                group.add(key);
                int table = tables[row.getInt(LAYOUT)];
                long hash = hash(table, key);
                Item item = (Item) byHash.get(Long.valueOf(hash));
                if (item == null) {
                    item = new Item(items.size(), hash, table, key);
                    item.kind = Arrays.binarySearch(shared, hash) < 0 ? CHANGED : OTHER;
                    items.add(item);
                    byHash.put(Long.valueOf(hash), item);
                } else if (!item.has(table, key)) {
                    item.kind = OTHER; // two keys with one hash
                }
                itemOf[n] = item.number;
                boolean fits = nul || !hasNul(key) && (row.isNullAt(NEW) || !hasNul(row.getUTF8String(NEW)));
                item.add(n, row, group, token, fits);
            }
            return Collections.singleton(found(groups, items, Arrays.copyOf(itemOf, n))).iterator();
        }

        private static boolean hasNul(ArrayData key) {
            for (int n = 0; n < key.numElements(); n++) {
                if (!key.isNullAt(n)) {
                    for (byte each : key.getUTF8String(n).getBytes()) {
                        if (each == 0) {
                            return true;
                        }
                    }
                }
            }
            return false;
        }

        /** Whether an image, which is JSON, has a NUL character, or seems to. */
        private static boolean hasNul(UTF8String image) {
            byte[] text = image.getBytes();
            for (int n = text.length - NUL.length; n >= 0; n--) {
                if (text[n] == '\\' && Arrays.equals(text, n, n + NUL.length, NUL, 0, NUL.length)) {
                    return true;
                }
            }
            return false;
        }

        private static long hash(int table, ArrayData key) {
            long hash = table;
            for (int n = 0; n < key.numElements(); n++) {
                hash = key.isNullAt(n) ? hash + 1 : XXH64.hashUTF8String(key.getUTF8String(n), hash);
            }
            return hash;
        }

        private static Object[] found(List groups, List items, int[] itemOf) throws IOException {
            int size = items.size();
            long[] hashes = new long[size];
            int[] newest = new int[size], changes = new int[size];
            byte[] kinds = new byte[size];
            long[] offsets = new long[size], firstOffsets = new long[size];
            byte[][] stems = new byte[size][], first = new byte[size][], last = new byte[size][];
            for (int n = 0; n < size; n++) {
                Item item = (Item) items.get(n);
                hashes[n] = item.hash;
                kinds[n] = item.kind;
                if (item.kind != OTHER) {
                    if (item.kind == READ) {
                        item.group.reads++;
                    } else {
                        item.group.plain += item.changes;
                        item.group.items++;
                    }
                    item.group.bytes += item.bytes;
                    newest[n] = item.row;
                    offsets[n] = item.offset;
                    firstOffsets[n] = item.firstOffset;
                    changes[n] = item.changes;
                    stems[n] = item.stem;
                    first[n] = item.first;
                    last[n] = item.last;
                }
            }
            StringWriter text = new StringWriter();
            JsonGenerator json = new JsonFactory().createGenerator(text);
            json.writeStartArray();
            for (Object group : groups) {
                ((Group) group).write(json);
            }
            json.writeEndArray();
            json.close();
            return new Object[] {
                text.toString(), hashes, itemOf, newest, offsets, changes, stems, first, last, firstOffsets, kinds
            };
        }
    }

    /** What the driver needs to know about what a task found. */
    public static class Summary implements Function {
        private static final long serialVersionUID = 1;

        public Object call(Object found) {
            return new Object[] {((Object[]) found)[GROUPS], ((Object[]) found)[HASHES]};
        }
    }

    /** The records of a task that have one status, layout and topic. */
    static class Group {
        final UTF8String status, topic;
        final int layout; // -1 for none
        final boolean isOfChanges;
        final UTF8String[] least, greatest;
        final long[] lowest, highest;
        final boolean[] isNumber;
        final Set snapshots = new TreeSet();
        long records, ofTable, plain, items, reads, bytes;
        private long asOf = Long.MIN_VALUE;
        private int partition;

        private Group(SpecializedGetters row, int keys) {
            status = row.getUTF8String(STATUS).clone();
            layout = row.isNullAt(LAYOUT) ? -1 : row.getInt(LAYOUT);
            topic = row.getUTF8String(TOPIC).clone();
            isOfChanges = status.toString().equals("change");
            least = new UTF8String[keys];
            greatest = new UTF8String[keys];
            lowest = new long[keys];
            highest = new long[keys];
            isNumber = new boolean[keys];
            Arrays.fill(lowest, Long.MAX_VALUE);
            Arrays.fill(highest, Long.MIN_VALUE);
            Arrays.fill(isNumber, true);
        }

        static Group of(List groups, SpecializedGetters row, int keys) {
            for (Object group : groups) {
                if (((Group) group).has(row)) {
                    return (Group) group;
                }
            }
            Group group = new Group(row, keys);
            groups.add(group);
            return group;
        }

        boolean has(SpecializedGetters row) {
            return layout == (row.isNullAt(LAYOUT) ? -1 : row.getInt(LAYOUT))
                && status.equals(row.getUTF8String(STATUS))
                && topic.equals(row.getUTF8String(TOPIC));
        }

        void add(ArrayData key) {
            for (int n = 0; n < least.length; n++) {
                if (n >= key.numElements() || key.isNullAt(n)) {
                    isNumber[n] = false;
                    continue;
                }
                UTF8String text = key.getUTF8String(n);
                if (least[n] == null || text.compareTo(least[n]) < 0) {
                    least[n] = text.clone();
                }
                if (greatest[n] == null || text.compareTo(greatest[n]) > 0) {
                    greatest[n] = text.clone();
                }
                if (isNumber[n]) {
                    UTF8String.LongWrapper number = new UTF8String.LongWrapper();
                    isNumber[n] = isWhole(text) && text.toLong(number);
                    lowest[n] = Math.min(lowest[n], number.value);
                    highest[n] = Math.max(highest[n], number.value);
                }
            }
        }

        /** Note the partition and the time of the snapshot that has read a row. */
        void addRead(int ofPartition, long readAsOf) {
            if (asOf != readAsOf || partition != ofPartition) {
                asOf = readAsOf;
                partition = ofPartition;
                snapshots.add("[" + partition + "," + asOf + "]");
            }
        }

        /** Whether a text has only digits behind a sign. Spark also reads numbers with a fraction, or between spaces. */
        private static boolean isWhole(UTF8String text) {
            for (int n = 0; n < text.numBytes(); n++) {
                byte each = text.getByte(n);
                if ((each < '0' || each > '9') && (each != '-' || n > 0)) {
                    return false;
                }
            }
            return true;
        }

        void write(JsonGenerator json) throws IOException {
            json.writeStartObject();
            json.writeStringField("status", status.toString());
            json.writeNumberField("layout", layout);
            json.writeStringField("topic", topic.toString());
            json.writeNumberField("records", records);
            json.writeNumberField("of_table", ofTable);
            json.writeNumberField("plain", plain);
            json.writeNumberField("items", items);
            json.writeNumberField("reads", reads);
            json.writeNumberField("bytes", bytes);
            json.writeArrayFieldStart("snapshots");
            for (Object snapshot : snapshots) {
                json.writeRawValue((String) snapshot);
            }
            json.writeEndArray();
            json.writeArrayFieldStart("bounds");
            for (int n = 0; n < least.length; n++) {
                json.writeStartObject();
                json.writeStringField("least", least[n] == null ? null : least[n].toString());
                json.writeStringField("greatest", greatest[n] == null ? null : greatest[n].toString());
                json.writeNumberField("lowest", lowest[n]);
                json.writeNumberField("highest", highest[n]);
                json.writeBooleanField("is_number", isNumber[n]);
                json.writeEndObject();
            }
            json.writeEndArray();
            json.writeEndObject();
        }
    }

    /** An item, and what is known about its changes in a task. */
    static class Item {
        final int number;
        final long hash;
        private final int table;
        private final UTF8String[] key;
        byte kind; // of what was added so far; OTHER stays
        int changes;
        int row; // of the last change
        Group group;
        byte[] stem, first, last;
        long offset;
        long firstOffset; // -1 if the changes are in several partitions of the topic
        long bytes; // of the image of the last change
        private int partition;

        Item(int number, long hash, int table, ArrayData key) {
            this.number = number;
            this.hash = hash;
            this.table = table;
            this.key = new UTF8String[key.numElements()];
            for (int n = 0; n < this.key.length; n++) {
                this.key[n] = key.isNullAt(n) ? null : key.getUTF8String(n).clone();
            }
        }

        boolean has(int otherTable, ArrayData other) {
            boolean same = table == otherTable && key.length == other.numElements();
            for (int n = 0; same && n < key.length; n++) {
                same = key[n] == null ? other.isNullAt(n) : !other.isNullAt(n) && key[n].equals(other.getUTF8String(n));
            }
            return same;
        }

        /** {@code fits}: whether the target can store the texts of the change. */
        void add(int n, SpecializedGetters change, Group ofChange, PlainToken token, boolean fits) {
            changes++;
            int placed = change.getInt(PARTITION);
            long at = change.getLong(OFFSET);
            boolean isRead = fits && !change.isNullAt(AS_OF);
            if (isRead) {
                ofChange.addRead(placed, change.getLong(AS_OF));
            }
            if (kind == OTHER || kind == READ || isRead && changes > 1) {
                kind = OTHER; // a row that was read, and another change
                return;
            }
            if (isRead) {
                kind = READ;
                row = n;
                group = ofChange;
                offset = firstOffset = at;
                bytes = change.getUTF8String(NEW).numBytes();
                return;
            }
            byte[] text = fits && change.getBoolean(PLAIN) ? change.getUTF8String(TOKEN).getBytes() : null;
            if (text == null || !token.read(text)) {
                kind = OTHER;
                return;
            }
            byte[] found = Arrays.copyOfRange(text, token.numberAt, token.end);
            if (changes == 1) {
                stem = token.stem;
                first = found;
                firstOffset = at;
            } else if (partition > placed || partition == placed && offset >= at) {
                kind = OTHER; // the rows are not in the order of the topic
                return;
            } else if (!Arrays.equals(stem, token.stem) || !isLess(last, found)) {
                // Two changes of one transaction have one token, and so has a change that is on the topic twice.
                kind = OTHER;
                return;
            }
            if (changes > 1 && partition != placed) {
                firstOffset = -1;
            }
            row = n;
            group = ofChange;
            last = found;
            partition = placed;
            offset = at;
            bytes = change.getBoolean(DELETED) || change.isNullAt(NEW) ? 0 : change.getUTF8String(NEW).numBytes();
        }

        /** Compare two numbers without leading zeros. */
        private static boolean isLess(byte[] number, byte[] other) {
            if (number.length != other.length) {
                return number.length < other.length;
            }
            return Arrays.compare(number, other) < 0;
        }
    }

    /** Chooses rows of a task, as another pass has found. */
    public static class Choice implements FlatMapFunction2 {
        private static final long serialVersionUID = 1;

        private final int[] layouts;
        private final byte kind;
        private final long now;

        Choice(int[] layouts, byte kind, long now) {
            this.layouts = layouts;
            this.kind = kind;
            this.now = now;
        }

        public Iterator call(Object rows, Object found) {
            return new Chosen((Iterator) rows, (Object[]) ((Iterator) found).next(), layouts, kind, now);
        }
    }

    /** The rows that are chosen. Each is the same object, since Spark takes its values at once. */
    static class Chosen implements Iterator {
        private final Iterator rows;
        private final int[] layouts;
        private final byte kind;
        private final byte[] kinds;
        private final int[] itemOf, newest, changes;
        private final long[] offsets, firstOffsets;
        private final byte[][] stems, first, last;
        private final Object[] values;
        private final GenericInternalRow made;
        private int n; // rows that were read
        private boolean isRead; // whether the next one is in `made`

        Chosen(Iterator rows, Object[] found, int[] layouts, byte kind, long now) {
            this.rows = rows;
            this.layouts = layouts;
            this.kind = kind;
            kinds = (byte[]) found[KINDS];
            itemOf = (int[]) found[ITEM_OF];
            newest = (int[]) found[ROWS];
            offsets = (long[]) found[OFFSETS];
            changes = (int[]) found[CHANGES];
            stems = (byte[][]) found[STEMS];
            first = (byte[][]) found[FIRST];
            last = (byte[][]) found[LAST];
            firstOffsets = (long[]) found[FIRST_OFFSETS];
            values = new Object[kind == OTHER ? 2 : 17];
            made = new GenericInternalRow(values);
            if (kind != OTHER) {
                values[15] = Long.valueOf(now);
            }
        }

        public boolean hasNext() {
            while (!isRead && rows.hasNext()) {
                SpecializedGetters row = (SpecializedGetters) rows.next();
                int item = n < itemOf.length ? itemOf[n] : -1;
                boolean isNewest = item >= 0 && kinds[item] != OTHER && newest[item] == n;
                if (n >= itemOf.length || isNewest && offsets[item] != row.getLong(OFFSET)) {
                    throw new IllegalStateException("a batch has other records than it had before"); // I9
                }
                boolean isChosen = item >= 0 && kinds[item] == kind && (kind == OTHER || isNewest);
                n++;
                if (isChosen && Arrays.binarySearch(layouts, row.getInt(LAYOUT)) >= 0) {
                    make(row, item);
                    isRead = true;
                }
            }
            if (!isRead && n < itemOf.length) {
                throw new IllegalStateException("a batch has other records than it had before"); // I9
            }
            return isRead;
        }

        public Object next() {
            if (!hasNext()) {
                throw new NoSuchElementException();
            }
            isRead = false;
            return made;
        }

        private void make(SpecializedGetters row, int item) {
            values[0] = Integer.valueOf(row.getInt(PARTITION));
            values[1] = Long.valueOf(row.getLong(OFFSET));
            if (kind == OTHER) {
                return;
            }
            boolean isDeleted = row.getBoolean(DELETED);
            values[2] = row.getUTF8String(TOPIC);
            values[3] = kind == READ ? null : row.getUTF8String(TOKEN);
            values[4] = Boolean.valueOf(isDeleted);
            values[5] = row.getUTF8String(EVENT_ID);
            values[6] = Boolean.FALSE; // incomplete
            values[7] = row.getArray(KEY);
            values[8] = Integer.valueOf(row.getInt(LAYOUT));
            // The image of a deletion, if it has one, is not the row.
            values[9] = isDeleted || row.isNullAt(NEW) ? null : row.getUTF8String(NEW);
            if (kind == READ) {
                values[16] = Long.valueOf(row.getLong(AS_OF));
            } else {
                values[10] = UTF8String.fromBytes(stems[item]);
                values[11] = UTF8String.fromBytes(first[item]);
                values[12] = UTF8String.fromBytes(last[item]);
            }
            values[13] = Integer.valueOf(changes[item]);
            values[14] = Long.valueOf(firstOffsets[item]);
        }
    }
}
