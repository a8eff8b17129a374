package relay;

import java.util.Iterator;
import java.util.NoSuchElementException;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Makes lines of PostgreSQL's COPY of the changes of a batch, several thousand at a time, in one pass and without moving
 * them between tasks. sinks/copied_lines.py has the columns that it takes and those that it makes.
 */
public class PlainLines implements FlatMapFunction {
    private static final long serialVersionUID = 1;
    private static final int AT_MOST = 1 << 18; // bytes of a text, but for the last line
    private static final byte[] NULL = bytes("\\N"), NUL = bytes("\\u0000");

    private final String plainToken;
    private final int keys;

    /** {@code plainToken}: a regular expression, whose groups are stem and number. */
    public PlainLines(String plainToken, int keys) {
        this.plainToken = plainToken;
        this.keys = keys;
    }

    public Iterator call(Object rows) {
        return new Texts((Iterator) rows, new PlainToken(plainToken), keys);
    }

    private static byte[] bytes(String text) {
        return UTF8String.fromString(text).getBytes();
    }

    static class Texts implements Iterator {
        private final Iterator rows;
        private final PlainToken plain;
        private final int keys;
        private byte[] text = new byte[AT_MOST + (AT_MOST >> 2)];
        private int at;

        Texts(Iterator rows, PlainToken plain, int keys) {
            this.rows = rows;
            this.plain = plain;
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
            ArrayData key = row.getArray(0);
            for (int n = 0; n < keys; n++) {
                if (n >= key.numElements() || key.isNullAt(n)) {
                    put(NULL);
                } else {
                    escape(key.getUTF8String(n).getBytes());
                }
                put('\t');
            }
            number(row.getInt(7));
            number(row.getLong(8));
            int before = at;
            byte[] token = row.isNullAt(4) ? null : row.getUTF8String(4).getBytes();
            if (row.getBoolean(9) || token == null || !plain.read(token)) {
                leave(before);
                return;
            }
            boolean isDeleted = row.getUTF8String(2).toString().equals("DELETE");
            put('t');
            put('\t');
            put(token, plain.stemAt, plain.numberAt, true);
            put('\t');
            put(token, plain.numberAt, plain.end, true);
            put('\t');
            number(row.getInt(1));
            if (isDeleted) {
                put(NULL); // the image of a deletion, if it has one, is not the row
            } else if (row.isNullAt(3)) {
                leave(before);
                return;
            } else {
                byte[] image = row.getUTF8String(3).getBytes();
                if (contains(image, NUL)) {
                    leave(before); // I8: PostgreSQL cannot store it in a text
                    return;
                }
                escape(image);
            }
            put('\t');
            escape(token);
            put('\t');
            put(isDeleted ? 't' : 'f');
            put('\t');
            escape(row.getUTF8String(5).getBytes());
            put('\t');
            escape(row.getUTF8String(6).getBytes());
            put('\n');
        }

        /** Only say that there is a change which SQL cannot decide. */
        private void leave(int before) {
            at = before;
            put('f');
            for (int n = 0; n < 8; n++) {
                put('\t');
                put(NULL);
            }
            put('\n');
        }

        private static boolean contains(byte[] all, byte[] part) {
            for (int n = 0; n <= all.length - part.length; n++) {
                if (all[n] == part[0] && PlainToken.at(all, n, part)) {
                    return true;
                }
            }
            return false;
        }

        private void number(long number) {
            put(bytes(Long.toString(number)));
            put('\t');
        }

        private void escape(byte[] found) {
            put(found, 0, found.length, true);
        }

        private void put(byte[] found) {
            put(found, 0, found.length, false);
        }

        private void put(int one) {
            reserve(1);
            text[at++] = (byte) one;
        }

        private void put(byte[] found, int begin, int end, boolean escaped) {
            reserve(2 * (end - begin));
            if (!escaped) {
                System.arraycopy(found, begin, text, at, end - begin);
                at += end - begin;
                return;
            }
            byte[] into = text;
            int place = at;
            for (int n = begin; n < end; n++) {
                byte each = found[n];
                if (each > 0x0D && each != '\\' || each < 0) {
                    into[place++] = each;
                    continue;
                }
                byte shown = each == '\\' ? each : each == '\t' ? (byte) 't' : each == '\n' ? (byte) 'n' : (byte) 'r';
                if (each == '\\' || each == '\t' || each == '\n' || each == '\r') {
                    into[place++] = '\\';
                    into[place++] = shown;
                } else {
                    into[place++] = each;
                }
            }
            at = place;
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
