package relay;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Iterator;
import java.util.NoSuchElementException;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Turns the rows that PlainItems finds into rows of PostgreSQL's COPY, in its binary format, thousands at a time.
 * plain_items.py has the columns that it takes, and sinks/postgres_upsert.py those that it returns.
 */
public class CopiedRows implements FlatMapFunction {
    private static final long serialVersionUID = 1;
    private static final int AT_MOST = 1 << 18; // bytes of rows that are made at once, but for the last row
    private static final int BEHIND_KEY = 14; // columns

    private final int keys;

    /** {@code keys}: how many parts a key has. */
    public CopiedRows(int keys) {
        this.keys = keys;
    }

    public Iterator call(Object rows) {
        return new Several((Iterator) rows, keys);
    }

    static class Several implements Iterator {
        private final Iterator rows;
        private final int keys;
        private ByteBuffer made = ByteBuffer.allocate(AT_MOST + (AT_MOST >> 2));

        Several(Iterator rows, int keys) {
            this.rows = rows;
            this.keys = keys;
        }

        public boolean hasNext() {
            return rows.hasNext();
        }

        public Object next() {
            if (!rows.hasNext()) {
                throw new NoSuchElementException();
            }
            made.clear();
            while (rows.hasNext() && made.position() < AT_MOST) {
                add((SpecializedGetters) rows.next());
            }
            return Arrays.copyOf(made.array(), made.position());
        }

        public void remove() {
            throw new UnsupportedOperationException();
        }

        private void add(SpecializedGetters row) {
            reserve(2);
            made.putShort((short) (keys + BEHIND_KEY));
            ArrayData key = row.getArray(7);
            for (int n = 0; n < keys; n++) {
                text(n < key.numElements() && !key.isNullAt(n) ? key.getUTF8String(n) : null);
            }
            integer(row.getInt(0));
            bigint(row.getLong(1));
            text(row, 2);
            text(row, 3);
            reserve(5);
            made.putInt(1).put((byte) (row.getBoolean(4) ? 1 : 0));
            text(row, 5);
            integer(row.getInt(8));
            text(row, 9);
            text(row, 10);
            text(row, 11);
            text(row, 12);
            integer(row.getInt(13));
            bigint(row.getLong(14));
            if (row.isNullAt(16)) {
                text(null);
            } else {
                bigint(row.getLong(16));
            }
        }

        private void text(SpecializedGetters row, int column) {
            text(row.isNullAt(column) ? null : row.getUTF8String(column));
        }

        /** Add a text, or NULL. */
        private void text(UTF8String found) {
            int size = found == null ? 0 : found.numBytes();
            reserve(4 + size);
            made.putInt(found == null ? -1 : size);
            if (found != null) {
                found.writeTo(made);
            }
        }

        private void integer(int number) {
            reserve(8);
            made.putInt(4).putInt(number);
        }

        private void bigint(long number) {
            reserve(12);
            made.putInt(8).putLong(number);
        }

        private void reserve(int more) {
            if (made.remaining() < more) {
                int size = Math.max(2 * made.capacity(), made.position() + more);
                made = ByteBuffer.allocate(size).put(made.array(), 0, made.position());
            }
        }
    }
}
