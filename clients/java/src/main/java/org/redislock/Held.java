package org.redislock;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.redislock.LockException.Lost;

/**
 * A lock that is held: what is known of it, by the clock of this host. Closing releases it. Every
 * entry of an owner is a Held, and is released once.
 */
public final class Held implements AutoCloseable {
    static final ExecutorService THREADS = Executors.newCachedThreadPool(Held::daemon);
    private static final ScheduledThreadPoolExecutor TIMER =
            new ScheduledThreadPoolExecutor(1, Held::daemon);

    static {
        TIMER.setRemoveOnCancelPolicy(true);
    }

    final List<String> keys;
    final LockOptions options;
    final Link link;
    private final String token;
    private final long fence;
    /** Completed at the loss or the release, with the ms of validity that were left. */
    private final CompletableFuture<Long> end;
    private final Held first; // of the entries, knows the rest
    private boolean isReleased; // this entry; changed under the monitor of the first one
    private long ttl;
    private long sent; // when the last confirmed command was sent
    private long validUntil;
    private int entries = 1;
    private Future<?> alarm;
    private Future<?> renewal;

    Held(Link link, List<String> keys, LockOptions options, String token, long fence, long sent) {
        this.link = link;
        this.keys = keys;
        this.options = options;
        this.token = token;
        this.fence = fence;
        this.end = new CompletableFuture<>();
        this.first = this;
        this.ttl = options.ttl().toMillis();
        confirm(sent, ttl);
    }

    private Held(Held first) {
        this.link = first.link;
        this.keys = first.keys;
        this.options = first.options;
        this.token = first.token;
        this.fence = first.fence;
        this.end = first.end;
        this.first = first;
    }

    private static Thread daemon(Runnable work) {
        Thread thread = new Thread(work, "redislock");
        thread.setDaemon(true);
        return thread;
    }

    /** Grows from holder to holder. Show it to the resource that the lock protects. */
    public long fence() {
        return fence;
    }

    /** True from a little before the lock may pass to somebody else. */
    public boolean isLost() {
        long now = BootClock.now();
        synchronized (first) {
            if (!end.isDone() && now >= first.lossAt()) {
                first.finish(first.validUntil - now);
            }
        }
        return end.isDone();
    }

    /** Completed at that moment, with what is left of the validity; and by the release. */
    public CompletionStage<Duration> lost() {
        return end.thenApplyAsync(Duration::ofMillis, THREADS);
    }

    /** How long nobody else is granted the lock. */
    public Duration validFor() {
        synchronized (first) {
            long left = end.isDone() ? 0 : first.validUntil - BootClock.now();
            return Duration.ofMillis(Math.max(0, left));
        }
    }

    /** Throws Lost if the lock is lost. Call it before steps that need the lock. */
    public void check() {
        if (isLost()) {
            throw new Lost("the lock is no longer held");
        }
    }

    /**
     * Runs a command on the server if and only if the lock is held, in one step. It is never sent
     * twice. Of a lock with several names, the first one is checked.
     *
     * @return a String, a Long, null, or a List of them
     */
    public Object guard(String... command) throws InterruptedException {
        check();
        List<String> words = new ArrayList<>(List.of("LOCK.GUARD", keys.get(0), token));
        words.addAll(List.of(command));
        try {
            return link.call(keys.get(0), words, Link.ANSWER);
        } catch (Lost lost) {
            first.finish(0);
            throw lost;
        }
    }

    /**
     * Releases the lock.
     *
     * @return false: it was lost before. What cannot be delivered goes on in the background
     */
    public boolean release() {
        boolean wasHeld = !isLost();
        long until;
        synchronized (first) {
            if (isReleased) {
                return false;
            }
            isReleased = true;
            if (--first.entries > 0) {
                return wasHeld;
            }
            first.finish(0);
            until = Math.max(BootClock.stamp(), first.validUntil) + first.ttl / 50;
        }
        try {
            return release(link, keys, token) && wasHeld;
        } catch (LockException undelivered) {
            THREADS.execute(() -> releaseAll(link, keys, token, until, null));
        } catch (InterruptedException interrupted) {
            THREADS.execute(() -> releaseAll(link, keys, token, until, null));
            Thread.currentThread().interrupt();
        }
        return wasHeld;
    }

    /** Releases; throws Lost if the lock was lost before that. */
    @Override
    public void close() {
        boolean isDone;
        synchronized (first) {
            isDone = isReleased;
        }
        if (!isDone && !release()) {
            throw new Lost("the lock was lost before it was released");
        }
    }

    /** The loss is reported to the holder a little before validity ends. */
    private synchronized long lossAt() {
        return validUntil - ttl / 10;
    }

    private synchronized void finish(long left) {
        for (Future<?> timer : new Future<?>[] {alarm, renewal}) {
            if (timer != null) {
                timer.cancel(false);
            }
        }
        end.complete(Math.max(0, left));
    }

    /** The lease began after the sending, so it does not end before this. A loss is final. */
    private synchronized void confirm(long at, long lease) {
        if (!end.isDone()) {
            sent = Math.max(sent, at);
            validUntil = Math.max(validUntil, at + lease - lease / 100 - 3 - BootClock.STEP);
        }
    }

    /** Sends EXTEND and counts from there. Returns whether this hold is still there. */
    boolean extend(long lease, long limit) throws InterruptedException {
        long at = BootClock.stamp();
        List<String> words = command(keys, "EXTEND", token, Long.toString(lease));
        if (!isFor(keys, link.call(keys.get(0), words, limit), fence)) {
            return false;
        }
        confirm(at, lease);
        return true;
    }

    /** The signal of the loss has a timer of its own: a renewal without an answer cannot delay it. */
    synchronized void begin() {
        watch();
        if (options.renews()) {
            renewIn(sent + every() - BootClock.stamp());
        }
    }

    private long every() {
        return options.renewEvery() != null ? options.renewEvery().toMillis() : ttl / 3;
    }

    private synchronized void watch() {
        if (!isLost()) {
            long left = lossAt() - BootClock.stamp();
            long delay = Math.min(1_000, Math.max(1, left)); // the host may sleep
            alarm = TIMER.schedule(this::watch, delay, TimeUnit.MILLISECONDS);
        }
    }

    private synchronized void renewIn(long delay) {
        if (!end.isDone()) {
            Runnable work = () -> THREADS.execute(this::renew);
            renewal = TIMER.schedule(work, Math.max(0, delay), TimeUnit.MILLISECONDS);
        }
    }

    private void renew() {
        try {
            long left = lossAt() - BootClock.stamp();
            if (!extend(ttl, Math.max(1, Math.min(Link.ANSWER, left)))) {
                finish(0);
            }
            renewIn(sent + every() - BootClock.stamp());
        } catch (LockException | InterruptedException failed) {
            link.source.rediscover();
            renewIn(ttl / 20);
        }
    }

    /** The owner holds these keys already: make sure of it, and for long enough. */
    Held enterAgain(long longer) throws InterruptedException {
        long lease = Math.max(ttl, longer);
        if (!extend(lease, Link.ANSWER) || end.isDone()) {
            finish(0);
            throw new Lost("the owner's hold of this lock was lost");
        }
        synchronized (this) {
            ttl = lease;
            entries++;
        }
        return new Held(this);
    }

    /**
     * RELEASE ALL until it is done or the lease is over. A request without an answer (`asked`, null
     * after a grant) may still arrive, so null is not the end. But a wait that is released ends
     * with null: once that is here, nothing can come any more.
     */
    static void releaseAll(
            Link link, List<String> keys, String token, long until, Link.Sending asked) {
        long began = BootClock.stamp();
        boolean isDone = false;
        try {
            for (long pause = 50; !isDone; pause = Math.min(1_000, pause * 2)) {
                try {
                    isDone = release(link, keys, token) || asked == null;
                } catch (LockException failed) {
                    link.source.rediscover();
                }
                if (BootClock.stamp() + pause > until) {
                    isDone = true;
                } else if (!isDone) {
                    Thread.sleep(pause);
                    isDone = asked != null && asked.isRefused();
                }
                if (asked != null && (isDone || BootClock.stamp() - began > Link.ANSWER)) {
                    asked.abandon();
                }
            }
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    /** Did it remove a hold of each key? */
    private static boolean release(Link link, List<String> keys, String token)
            throws InterruptedException {
        List<String> words = command(keys, "RELEASE", token, "ALL");
        return each(keys, link.call(keys.get(0), words, Link.ANSWER)).stream()
                .allMatch(one -> one instanceof Long count && count > 0);
    }

    /** Does the reply have this fence for each key? */
    static boolean isFor(List<String> keys, Object reply, long fence) {
        return each(keys, reply).stream().allMatch(one -> one instanceof Long got && got == fence);
    }

    /** The replies for each key. A reply of another form has none of them. */
    static List<?> each(List<String> keys, Object reply) {
        List<?> replies = keys.size() == 1 ? Collections.singletonList(reply)
                : reply instanceof List<?> several ? several : List.of();
        return replies.size() == keys.size() ? replies : Collections.nCopies(keys.size(), null);
    }

    static List<String> command(List<String> keys, String verb, String token, String... rest) {
        List<String> words = new ArrayList<>();
        words.add((keys.size() > 1 ? "LOCK.M" : "LOCK.") + verb);
        if (keys.size() > 1) {
            words.add(Integer.toString(keys.size()));
        }
        words.addAll(keys);
        words.add(token);
        words.addAll(List.of(rest));
        return words;
    }
}
