package org.redislock;

import java.time.Duration;
import org.redislock.LockException.InvalidRequest;

/** Options of a lock. Each method returns a changed copy. */
public record LockOptions(
        Duration ttl, Duration waitLimit, boolean isShared, Integer limit, Owner owner,
        boolean renews, Duration renewEvery, String label) {

    private static final Duration SHORTEST = Duration.ofMillis(10);
    private static final Duration LONGEST = Duration.ofDays(7);
    private static final Duration LONGEST_WAIT = Duration.ofDays(10_000);

    /** The lease. It is renewed while the lock is held. Waits until the lock is free. */
    public static LockOptions ttl(Duration ttl) {
        return new LockOptions(ttl, null, false, null, null, true, null, null);
    }

    /** Waits so long at most; zero tries once. */
    public LockOptions waitAtMost(Duration most) {
        return new LockOptions(ttl, most, isShared, limit, owner, renews, renewEvery, label);
    }

    /** Together with other shared holders. */
    public LockOptions shared() {
        return new LockOptions(ttl, waitLimit, true, limit, owner, renews, renewEvery, label);
    }

    /** A semaphore: together with other shared holders, at most so many. */
    public LockOptions shared(int most) {
        return new LockOptions(ttl, waitLimit, true, most, owner, renews, renewEvery, label);
    }

    /** Enters again what this owner holds. */
    public LockOptions owner(Owner who) {
        return new LockOptions(ttl, waitLimit, isShared, limit, who, renews, renewEvery, label);
    }

    /** The lease ends after the ttl, whatever happens. */
    public LockOptions withoutRenewal() {
        return new LockOptions(ttl, waitLimit, isShared, limit, owner, false, null, label);
    }

    /** How often to renew, at most half of the ttl. A third by default. */
    public LockOptions renewEvery(Duration interval) {
        return new LockOptions(ttl, waitLimit, isShared, limit, owner, true, interval, label);
    }

    /** Shown by LOCK.INFO. */
    public LockOptions label(String text) {
        return new LockOptions(ttl, waitLimit, isShared, limit, owner, renews, renewEvery, text);
    }

    void check() {
        if (ttl == null || ttl.compareTo(SHORTEST) < 0 || ttl.compareTo(LONGEST) > 0) {
            throw new InvalidRequest("the ttl must be from 10 ms to 7 days");
        }
        if (waitLimit != null
                && (waitLimit.isNegative() || waitLimit.compareTo(LONGEST_WAIT) > 0)) {
            throw new InvalidRequest("the wait must be from 0 (try once) to 10000 days");
        }
        if (limit != null && (limit < 1 || limit > 1_000_000)) {
            throw new InvalidRequest("the limit must be from 1 to 1000000");
        }
        if (renewEvery != null
                && (renewEvery.toMillis() < 1 || renewEvery.compareTo(ttl.dividedBy(2)) > 0)) {
            throw new InvalidRequest("renewEvery must be from 1 ms to half of the ttl");
        }
    }
}
