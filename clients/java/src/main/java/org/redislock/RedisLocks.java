package org.redislock;

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.RedisClusterClient;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import org.redislock.LockException.Busy;
import org.redislock.LockException.InvalidRequest;
import org.redislock.LockException.Lost;
import org.redislock.LockException.NoAnswer;
import org.redislock.LockException.Quarantined;
import org.redislock.LockException.Refused;
import org.redislock.LockException.Unavailable;

/** Locks of the redislock module for Lettuce. One object serves a whole program. */
public final class RedisLocks implements AutoCloseable {
    /** ms without a server after which a wait without limit gives up. */
    private static final long PATIENCE = 30_000;
    private static final SecureRandom RANDOM = new SecureRandom();

    private final Link link;

    private RedisLocks(Link link) {
        this.link = link;
    }

    /** With the resources and options of the client. The URI names one master, or Sentinels. */
    public static RedisLocks of(RedisClient client, RedisURI uri) {
        return new RedisLocks(new Link(client, uri));
    }

    public static RedisLocks of(RedisClusterClient client) {
        return new RedisLocks(new Link(client));
    }

    public Held acquire(String name, LockOptions options) throws InterruptedException {
        return acquireAll(name == null ? List.of() : List.of(name), options);
    }

    /**
     * Takes several locks, all or none. In a cluster their names need a common {hash tag}.
     *
     * @throws Busy when the wait is over. Whatever is thrown, nothing is left held
     * @throws InterruptedException when the thread is interrupted, which ends the wait
     */
    public Held acquireAll(List<String> names, LockOptions options) throws InterruptedException {
        options.check();
        if (names.isEmpty() || names.size() > 1_000 || new HashSet<>(names).size() < names.size()
                || names.stream().anyMatch(String::isEmpty)) {
            throw new InvalidRequest("a lock has 1 to 1000 names, none empty and none twice");
        }
        List<String> keys = List.copyOf(names);
        Hold outer = options.owner() == null ? null : options.owner().covering(keys, options);
        if (outer != null) {
            return enterAgain(outer, options);
        }
        Hold hold = granted(keys, options);
        hold.keep();
        if (options.owner() != null) {
            options.owner().add(hold);
        }
        return new Held(hold);
    }

    /** Closes the connections that locks have used. */
    @Override
    public void close() {
        link.close();
    }

    private Held enterAgain(Hold hold, LockOptions options) throws InterruptedException {
        long ttl = Math.max(hold.ttl(), options.ttl().toMillis());
        try {
            if (hold.extend(ttl, Link.ANSWER) && !hold.end.isDone()) {
                hold.enterAgain(ttl);
                return new Held(hold);
            }
        } catch (Refused | NoAnswer error) {
            throw LockException.explain(error, link.followsMaster);
        }
        hold.end.complete(0L);
        throw new Lost("the owner's hold of this lock was lost");
    }

    /** Attempt after attempt until the lock is granted or the wait is over. */
    private Hold granted(List<String> keys, LockOptions options) throws InterruptedException {
        Duration limit = options.waitLimit();
        Long deadline = limit == null ? null : BootClock.now() + limit.toMillis();
        long troubleSince = 0;
        long pause = 50;
        while (true) {
            long began = BootClock.now();
            var attempt = new Attempt(keys, options, deadline);
            Unavailable trouble = attempt.run();
            if (trouble == null) {
                return attempt.hold;
            }
            if (troubleSince == 0 || BootClock.now() - began > 1_000) {
                troubleSince = BootClock.now();
                pause = 50;
            }
            long rest = trouble instanceof Quarantined quarantined
                    ? quarantined.retryAfter().toMillis()
                    : ThreadLocalRandom.current().nextLong(pause / 2, pause);
            if (BootClock.now() + rest >= (deadline == null ? troubleSince + PATIENCE : deadline)) {
                throw trouble;
            }
            pause = Math.min(1_000, pause * 2);
            Thread.sleep(rest);
            link.rediscover();
        }
    }

    /** One request with a token of its own, which is never used again. */
    private final class Attempt {
        private final List<String> keys;
        private final LockOptions options;
        private final Long deadline;
        private final String token;
        private final long ttl;
        private long sent;
        private boolean mayHold;
        private Hold hold;

        Attempt(List<String> keys, LockOptions options, Long deadline) {
            this.keys = keys;
            this.options = options;
            this.deadline = deadline;
            this.ttl = options.ttl().toMillis();
            byte[] secret = new byte[16];
            RANDOM.nextBytes(secret);
            this.token = HexFormat.of().formatHex(secret);
        }

        /** Null: granted. Else why not, if trying again may help; everything else is thrown. */
        Unavailable run() throws InterruptedException {
            try {
                ask();
                if (hold != null) {
                    mayHold = false;
                    return null;
                }
            } catch (Refused | NoAnswer error) {
                mayHold |= error instanceof NoAnswer silence && silence.sent;
                LockException explained = LockException.explain(error, link.followsMaster);
                if (explained instanceof Unavailable unavailable) {
                    return unavailable;
                }
                throw explained;
            } catch (InterruptedException interrupted) {
                mayHold |= sent != 0;
                throw interrupted;
            } finally {
                if (mayHold) {
                    long until = BootClock.now() + ttl;
                    Hold.WORKERS.execute(() -> Hold.releaseAll(link, keys, token, until, false));
                }
            }
            if (deadline != null && BootClock.now() >= deadline - 2 * BootClock.STEP) {
                throw new Busy("somebody else holds the lock after " + options.waitLimit());
            }
            return new Unavailable("the server ended the wait early"); // CLIENT UNBLOCK
        }

        private void ask() throws Refused, NoAnswer, InterruptedException {
            String key = keys.get(0);
            Object reply = Duration.ZERO.equals(options.waitLimit())
                    ? link.ask(key, Link.ANSWER, this::build)
                    : link.askWaiting(key, deadline, this::build);
            if (reply == null) {
                return;
            }
            mayHold = true;
            var made = new Hold(link, keys, options, token, (Long) Hold.asList(reply).get(0), sent);
            if (made.validFor() < ttl / 2) {
                // The reply does not say when the grant was made: a command that is sent now does.
                if (!made.extend(ttl, Link.ANSWER)) {
                    throw new NoAnswer("the lease ended before the grant arrived", true);
                }
            }
            if (made.isLost()) {
                throw new NoAnswer("the answer took longer than the lease", true);
            }
            if (Thread.interrupted()) {
                throw new InterruptedException();
            }
            hold = made;
        }

        private Link.Request build() {
            sent = BootClock.now();
            Long left = deadline == null ? null : Math.max(0, deadline - sent);
            List<String> rest = new ArrayList<>(List.of(Long.toString(ttl), "ONCE"));
            if (options.isShared()) {
                rest.add("SHARED");
            }
            if (options.limit() != null) {
                rest.addAll(List.of("LIMIT", options.limit().toString()));
            }
            if (options.label() != null) {
                rest.addAll(List.of("OWNER", options.label()));
            }
            if (left == null || left >= 1) {
                rest.addAll(List.of("BLOCK", left == null ? "0" : left.toString()));
            }
            List<String> words = Hold.command(keys, "ACQUIRE", token, rest.toArray(String[]::new));
            return new Link.Request(words, left == null ? null : left + Link.ANSWER);
        }
    }
}
