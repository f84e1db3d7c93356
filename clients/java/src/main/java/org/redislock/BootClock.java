package org.redislock;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * ms since the boot. Leases run on while the host sleeps, and so does this clock on Linux. It has
 * steps of 10 ms, and reading it is slow.
 */
final class BootClock {
    private static final Path UPTIME = Path.of("/proc/uptime");
    private static final boolean HAS_UPTIME = Files.isReadable(UPTIME);
    static final long STEP = HAS_UPTIME ? 10 : 1;
    private static volatile long ahead; // of System.nanoTime, in ms

    static {
        now();
    }

    private BootClock() {}

    static long now() {
        if (HAS_UPTIME) {
            try {
                String text = Files.readString(UPTIME);
                long time = (long) (Double.parseDouble(text.substring(0, text.indexOf(' '))) * 1000);
                ahead = time - System.nanoTime() / 1_000_000 - 1;
                return time;
            } catch (IOException gone) {
                throw new IllegalStateException("/proc/uptime can no longer be read", gone);
            }
        }
        return System.nanoTime() / 1_000_000;
    }

    /** Fast, and never later than now(). */
    static long stamp() {
        return System.nanoTime() / 1_000_000 + ahead;
    }
}
