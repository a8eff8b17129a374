package relay;

import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
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
    private static final byte[] BEGIN = bytes("{\"timestamp\":"), END = bytes("\",\"origin\":null}");
    private static final byte[] NULL = bytes("\\N"), NUL = bytes("\\u0000");

    private final String plainToken;
    private final int keys;

    /** {@code plainToken}: a regular expression, whose groups are stem and number. */
    public PlainLines(String plainToken, int keys) {
        this.plainToken = plainToken;
        this.keys = keys;
    }

    public Iterator call(Object rows) {
        return new Texts((Iterator) rows, Pattern.compile(plainToken), keys);
    }

    private static byte[] bytes(String text) {
        return UTF8String.fromString(text).getBytes();
    }

    static class Texts implements Iterator {
        private final Iterator rows;
        private final Pattern pattern;
        private final int keys;
        private byte[] text = new byte[AT_MOST + (AT_MOST >> 2)];
        private int at;
        private byte[] stem; // of the last plain token; most tokens have the same one
        private int stemAt; // where it begins in the token at hand, and where the number does
        private int numberAt;

        Texts(Iterator rows, Pattern pattern, int keys) {
            this.rows = rows;
            this.pattern = pattern;
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
            if (row.getBoolean(9) || token == null || !isPlain(token)) {
                leave(before);
                return;
            }
            boolean isDeleted = row.getUTF8String(2).toString().equals("DELETE");
            put('t');
            put('\t');
            put(token, stemAt, numberAt, true);
            put('\t');
            put(token, numberAt, token.length - END.length, true);
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

        /** Whether a token is plain: then set stem and number. Says the same as the pattern, without searching. */
        private boolean isPlain(byte[] token) {
            if (stem != null && isLike(token)) {
                return true;
            }
            String text = UTF8String.fromBytes(token).toString();
            Matcher found = pattern.matcher(text);
            if (!found.matches()) {
                return false;
            }
            stem = bytes(found.group(1));
            stemAt = bytes(text.substring(0, found.start(1))).length;
            numberAt = stemAt + stem.length;
            return true;
        }

        /** Whether a token differs from the last plain one in its numbers alone. */
        private boolean isLike(byte[] token) {
            int comma = BEGIN.length;
            if (!at(token, 0, BEGIN)) {
                return false;
            }
            while (comma < token.length && token[comma] >= '0' && token[comma] <= '9') {
                comma++;
            }
            int first = comma + 1 + stem.length;
            int last = token.length - END.length;
            int most = stem[stem.length - 1] == '-' ? 18 : 100; // digits of a GTID's number, or of DynamoDB's
            if (comma == BEGIN.length || token[BEGIN.length] == '0' || last <= first || last - first > most) {
                return false;
            }
            if (token[comma] != ',' || token[first] == '0' || !at(token, comma + 1, stem) || !at(token, last, END)) {
                return false;
            }
            for (int n = first; n < last; n++) {
                if (token[n] < '0' || token[n] > '9') {
                    return false;
                }
            }
            stemAt = comma + 1;
            numberAt = first;
            return true;
        }

        private static boolean at(byte[] all, int place, byte[] part) {
            if (place < 0 || place + part.length > all.length) {
                return false;
            }
            for (int n = 0; n < part.length; n++) {
                if (all[place + n] != part[n]) {
                    return false;
                }
            }
            return true;
        }

        private static boolean contains(byte[] all, byte[] part) {
            for (int n = 0; n <= all.length - part.length; n++) {
                if (all[n] == part[0] && at(all, n, part)) {
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
