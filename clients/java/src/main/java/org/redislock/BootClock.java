package org.redislock;

import java.io.File;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.charset.StandardCharsets;

/**
 * ms since the boot. Leases run on while the host sleeps, and so does this clock on Linux. It has
 * steps of 10 ms, and reading it is slow.
 */
final class BootClock {
    /** It stays open: opening it takes longer than reading it. Null: not on Linux. */
    private static final RandomAccessFile UPTIME = opened(new File("/proc/uptime"));
    static final long STEP = UPTIME != null ? 10 : 1;
    private static final byte[] TEXT = new byte[64]; // under the monitor of the class
    private static volatile long ahead; // of System.nanoTime, in ms

    static {
        now();
    }

    private BootClock() {}

    private static RandomAccessFile opened(File file) {
        try {
            return file.canRead() ? new RandomAccessFile(file, "r") : null;
        } catch (IOException refused) {
            throw new IllegalStateException(file + " cannot be opened", refused);
        }
    }

    static long now() {
        if (UPTIME == null) {
            return System.nanoTime() / 1_000_000;
        }
        long time = (long) (Double.parseDouble(uptime()) * 1000);
        ahead = time - System.nanoTime() / 1_000_000 - 1;
        return time;
    }

    private static synchronized String uptime() {
        try {
            UPTIME.seek(0);
            var text = new String(TEXT, 0, UPTIME.read(TEXT), StandardCharsets.US_ASCII);
            return text.substring(0, text.indexOf(' '));
        } catch (IOException gone) {
            throw new IllegalStateException("/proc/uptime can no longer be read", gone);
        }
    }

    /** Fast, and never later than now(). */
    static long stamp() {
        return System.nanoTime() / 1_000_000 + ahead;
    }
}
