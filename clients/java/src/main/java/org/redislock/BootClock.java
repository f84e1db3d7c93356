package org.redislock;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** ms on a clock that goes on while the host sleeps, as leases on the server do. */
final class BootClock {
    private static final Path UPTIME = Path.of("/proc/uptime");
    private static final boolean HAS_UPTIME = Files.isReadable(UPTIME);
    /** How coarse it is. */
    static final long STEP = HAS_UPTIME ? 10 : 1;

    private BootClock() {}

    static long now() {
        if (HAS_UPTIME) {
            try {
                String text = Files.readString(UPTIME);
                return (long) (Double.parseDouble(text.substring(0, text.indexOf(' '))) * 1000);
            } catch (IOException gone) {
                throw new IllegalStateException("/proc/uptime cannot be read any longer", gone);
            }
        }
        return System.nanoTime() / 1_000_000;
    }
}
