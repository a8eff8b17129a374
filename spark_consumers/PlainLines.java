package relay;

import java.util.Iterator;
import java.util.NoSuchElementException;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Makes lines of PostgreSQL's COPY of the rows that PlainItems finds, several thousand at a time. plain_items.py has the
 * columns that it takes, and sinks/copied_lines.py those that it makes.
 */
public class PlainLines implements FlatMapFunction {
    private static final long serialVersionUID = 1;
    private static final int AT_MOST = 1 << 18; // bytes of a text, but for the last line
    private static final byte[] NULL = bytes("\\N");

    private final int keys;

    /** {@code keys}: how many parts a key has. */
    public PlainLines(int keys) {
        this.keys = keys;
    }

    public Iterator call(Object rows) {
        return new Texts((Iterator) rows, keys);
    }

    private static byte[] bytes(String text) {
        return UTF8String.fromString(text).getBytes();
    }

    static class Texts implements Iterator {
        private final Iterator rows;
        private final int keys;
        private byte[] text = new byte[AT_MOST + (AT_MOST >> 2)];
        private int at;

        Texts(Iterator rows, int keys) {
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
            at = 0;
            while (rows.hasNext() && at < AT_MOST) {
                add((SpecializedGetters) rows.next());
            }
            byte[] found = new byte[at];
            System.arraycopy(text, 0, found, 0, at);
            return found;
        }

        public void remove() {
            throw new UnsupportedOperationException();
        }

        private void add(SpecializedGetters row) {
            ArrayData key = row.getArray(7);
            for (int n = 0; n < keys; n++) {
                if (n >= key.numElements() || key.isNullAt(n)) {
                    put(NULL);
                } else {
                    escape(key.getUTF8String(n));
                }
                put('\t');
            }
            number(row.getInt(0));
            put('\t');
            number(row.getLong(1));
            put('\t');
            text(row, 2);
            text(row, 3);
            put(row.getBoolean(4) ? 't' : 'f');
            put('\t');
            text(row, 5);
            number(row.getInt(8));
            put('\t');
            text(row, 9);
            text(row, 10);
            text(row, 11);
            text(row, 12);
            number(row.getInt(13));
            put('\t');
            number(row.getLong(14));
            put('\t');
            if (row.isNullAt(16)) {
                put(NULL);
            } else {
                number(row.getLong(16));
            }
            put('\n');
        }

        private void text(SpecializedGetters row, int column) {
            if (row.isNullAt(column)) {
                put(NULL);
            } else {
                escape(row.getUTF8String(column));
            }
            put('\t');
        }

        private void number(long number) {
            put(bytes(Long.toString(number)));
        }

        private void escape(UTF8String found) {
            byte[] from = found.getBytes();
            reserve(2 * from.length);
            byte[] into = text;
            int place = at;
            for (int n = 0; n < from.length; n++) {
                byte each = from[n];
                if (each == '\\' || each <= '\r' && (each == '\t' || each == '\n' || each == '\r')) {
                    into[place++] = '\\';
                    each = each == '\\' ? each : each == '\t' ? (byte) 't' : each == '\n' ? (byte) 'n' : (byte) 'r';
                }
                into[place++] = each;
            }
            at = place;
        }

        private void put(byte[] found) {
            reserve(found.length);
            System.arraycopy(found, 0, text, at, found.length);
            at += found.length;
        }

        private void put(int one) {
            reserve(1);
            text[at++] = (byte) one;
        }

        private void reserve(int more) {
            if (text.length - at < more) {
                byte[] larger = new byte[Math.max(2 * text.length, at + more)];
                System.arraycopy(text, 0, larger, 0, at);
                text = larger;
            }
        }
    }
}
