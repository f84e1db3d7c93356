package org.redislock;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.redislock.LockException.Misconfigured;
import org.redislock.LockException.NoAnswer;
import org.redislock.LockException.Refused;

/** A lock that was granted: what is known of it, by the clock of this host. Times are in ms. */
final class Hold {
    static final ExecutorService WORKERS = Executors.newCachedThreadPool(Hold::daemon);
    private static final ScheduledExecutorService TIMER =
            Executors.newSingleThreadScheduledExecutor(Hold::daemon);

    final Link link;
    final List<String> keys;
    final LockOptions options;
    final String token;
    final long fence;
    /** Completed at the loss or the release, with the ms of validity that were left. */
    final CompletableFuture<Long> end = new CompletableFuture<>();
    private long ttl;
    private long sent;
    private long validUntil;
    private int entries = 1;
    private volatile boolean isOver;

    Hold(Link link, List<String> keys, LockOptions options, String token, long fence, long sent) {
        this.link = link;
        this.keys = keys;
        this.options = options;
        this.token = token;
        this.fence = fence;
        this.ttl = options.ttl().toMillis();
        confirm(sent, ttl);
    }

    private static Thread daemon(Runnable work) {
        Thread thread = new Thread(work, "redislock");
        thread.setDaemon(true);
        return thread;
    }

    /** The lease began after the sending, so it does not end before this. */
    private synchronized void confirm(long at, long lease) {
        if (isOver || end.isDone()) {
            return; // a loss is final
        }
        sent = Math.max(sent, at);
        validUntil = Math.max(validUntil, at + lease - lease / 100 - 3 - BootClock.STEP);
    }

    /** The holder is told of the loss a little before validity ends. */
    private synchronized long lossAt() {
        return validUntil - ttl / 10;
    }

    boolean isLost() {
        long left = validFor();
        synchronized (this) {
            isOver |= BootClock.now() >= lossAt();
        }
        if (isOver) {
            end.complete(left);
        }
        return end.isDone();
    }

    synchronized long validFor() {
        return end.isDone() ? 0 : Math.max(0, validUntil - BootClock.now());
    }

    synchronized long ttl() {
        return ttl;
    }

    synchronized long validUntil() {
        return validUntil;
    }

    synchronized boolean leave() {
        return --entries == 0;
    }

    synchronized void enterAgain(long longer) {
        ttl = longer;
        entries++;
    }

    /** Sends EXTEND and counts from there. Returns whether this hold is still there. */
    boolean extend(long lease, long limit) throws Refused, NoAnswer, InterruptedException {
        long at = BootClock.now();
        List<String> words = command(keys, "EXTEND", token, Long.toString(lease));
        Object reply = link.ask(keys.get(0), limit, words, limit);
        if (!asList(reply).stream().allMatch(one -> one instanceof Long got && got == fence)) {
            return false;
        }
        confirm(at, lease);
        return true;
    }

    /** Renews until the lock is lost or released. */
    void keep() {
        long now = BootClock.now();
        long next = lossAt();
        if (options.renews()) {
            long every = options.renewEvery() != null ? options.renewEvery().toMillis() : ttl() / 3;
            synchronized (this) {
                next = Math.min(sent + every, next);
            }
        }
        long delay = Math.max(0, next - now);
        TIMER.schedule(() -> WORKERS.execute(this::renew), delay, TimeUnit.MILLISECONDS);
    }

    private void renew() {
        try {
            while (!end.isDone()) {
                long now = BootClock.now();
                if (isLost()) {
                    return;
                }
                if (!options.renews()) {
                    break;
                }
                try {
                    if (extend(ttl(), Math.max(1, Math.min(Link.ANSWER, lossAt() - now)))) {
                        break;
                    }
                    end.complete(0L);
                    return;
                } catch (Refused | NoAnswer | LockException failed) {
                    Thread.sleep(Math.max(1, Math.min(ttl() / 20, lossAt() - BootClock.now())));
                    link.rediscover();
                }
            }
            if (!end.isDone()) {
                keep();
            }
        } catch (InterruptedException ended) {
            end.complete(0L);
        }
    }

    /**
     * RELEASE ALL until it is done or the lease is over: was it held? Null: not known. After a
     * request without an answer (not `granted`), null is not the end: it may still arrive.
     */
    static Boolean releaseAll(
            Link link, List<String> keys, String token, long until, boolean granted) {
        List<String> words = command(keys, "RELEASE", token, "ALL");
        try {
            for (long pause = 50;; pause = Math.min(1_000, pause * 2)) {
                try {
                    Object reply = link.ask(keys.get(0), Link.ANSWER, words, Link.ANSWER);
                    boolean held = asList(reply).stream()
                            .allMatch(one -> one instanceof Long count && count > 0);
                    if (granted || held) {
                        return held;
                    }
                } catch (Refused | NoAnswer failed) {
                    if (LockException.explain(failed, true) instanceof Misconfigured) {
                        return null;
                    }
                }
                if (BootClock.now() + pause > until) {
                    return null;
                }
                Thread.sleep(pause);
                link.rediscover();
            }
        } catch (InterruptedException | LockException ended) {
            return null;
        }
    }

    static List<?> asList(Object reply) {
        return reply instanceof List<?> list ? list : java.util.Collections.singletonList(reply);
    }

    static List<String> command(List<String> keys, String verb, String token, String... rest) {
        List<String> words = new ArrayList<>();
        if (keys.size() == 1) {
            words.add("LOCK." + verb);
        } else {
            words.addAll(List.of("LOCK.M" + verb, Integer.toString(keys.size())));
        }
        words.addAll(keys);
        words.add(token);
        words.addAll(List.of(rest));
        return words;
    }
}
