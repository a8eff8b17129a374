package relay;

import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.unsafe.types.UTF8String;

/** Takes plain tokens apart, one after another: plain_tokens.py says which these are, and what their parts are for. */
public class PlainToken {
    private static final byte[] BEGIN = bytes("{\"timestamp\":"), END = bytes("\",\"origin\":null}");

    private final Pattern pattern;
    /** Of the last token that was plain. Most have the same one, and then it is the same array. */
    public byte[] stem;
    /** Where stem and number begin in it, and where the number ends. */
    public int stemAt, numberAt, end;

    /** {@code plainToken}: a regular expression, whose groups are stem and number. */
    public PlainToken(String plainToken) {
        pattern = Pattern.compile(plainToken);
    }

    /** Whether a token is plain: then set its parts. Says the same as the pattern, mostly without searching. */
    public boolean read(byte[] token) {
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
        end = token.length - END.length;
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
        end = last;
        return true;
    }

    /** Whether the bytes at a place equal {@code part}. */
    public static boolean at(byte[] all, int place, byte[] part) {
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

    private static byte[] bytes(String text) {
        return UTF8String.fromString(text).getBytes();
    }
}
