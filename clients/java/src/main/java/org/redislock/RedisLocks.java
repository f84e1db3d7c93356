package org.redislock;

import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.RedisClusterClient;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.redislock.LockException.Busy;
import org.redislock.LockException.InvalidRequest;
import org.redislock.LockException.Misconfigured;
import org.redislock.LockException.Quarantined;
import org.redislock.LockException.Unavailable;

/** Locks of the redislock module. One object serves a whole program. JedisLocks is for Jedis. */
public final class RedisLocks implements AutoCloseable {
    /** ms without a server after which a wait without limit gives up. */
    private static final long PATIENCE = 30_000;

    private final Link link;

    RedisLocks(Source source) {
        link = new Link(source);
    }

    /** With the resources and options of the client. The URI names one master, or Sentinels. */
    public static RedisLocks of(RedisClient client, RedisURI uri) {
        return new RedisLocks(
                new LettuceSource(client.getResources(), client.getOptions(), uri, null));
    }

    public static RedisLocks of(RedisClusterClient client) {
        return new RedisLocks(
                new LettuceSource(client.getResources(), client.getOptions(), null, client));
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
                || names.stream().anyMatch(name -> name == null || name.isEmpty())) {
            throw new InvalidRequest("a lock has 1 to 1000 names, none empty and none twice");
        }
        List<String> keys = List.copyOf(names);
        Held outer = options.owner() == null ? null : options.owner().covering(link, keys, options);
        if (outer != null) {
            return outer.enterAgain(options.ttl().toMillis());
        }
        Held held = granted(keys, options);
        held.begin();
        if (options.owner() != null) {
            options.owner().holds.add(held);
        }
        return held;
    }

    /** Closes the connections that locks have used. */
    @Override
    public void close() {
        link.close();
    }

    /** Attempt after attempt until the lock is granted or the wait is over. */
    private Held granted(List<String> keys, LockOptions options) throws InterruptedException {
        Duration wait = options.waitLimit();
        Long deadline = wait == null ? null : Link.millis() + wait.toMillis();
        long troubleSince = 0;
        long pause = 50;
        while (true) {
            long began = Link.millis();
            Unavailable trouble;
            try {
                Held held = attempt(keys, options, deadline);
                if (held != null) {
                    return held;
                }
                if (deadline != null && Link.millis() >= deadline - 2) {
                    throw new Busy("another client holds the lock after " + wait);
                }
                trouble = new Unavailable("the server ended the wait early"); // UNBLOCK
            } catch (Unavailable unavailable) {
                trouble = unavailable;
            }
            if (troubleSince == 0 || Link.millis() - began > 3 * Link.ANSWER) { // it was in the queue
                troubleSince = Link.millis();
                pause = 50;
            }
            long rest = trouble instanceof Quarantined quarantined
                    ? quarantined.retryAfter().toMillis()
                    : ThreadLocalRandom.current().nextLong(pause / 2, pause);
            long patient = Math.max(troubleSince, link.openedAt()) + PATIENCE;
            if (Link.millis() + rest >= (deadline == null ? patient : deadline)) {
                throw trouble;
            }
            pause = Math.min(1_000, pause * 2);
            Thread.sleep(rest);
            link.source.rediscover();
        }
    }

    /** One request with a token of its own, which is never used again. Null: busy. */
    private Held attempt(List<String> keys, LockOptions options, Long deadline)
            throws InterruptedException {
        // Servers save a lock whose token is a UUID fastest and in the least room.
        String token = UUID.randomUUID().toString();
        long ttl = options.ttl().toMillis();
        long[] sent = {0};
        Supplier<List<String>> build = () -> {
            sent[0] = BootClock.stamp();
            return acquireCommand(keys, options, token, deadline);
        };
        Consumer<Link.Sending> unanswered = asked -> Held.THREADS.execute(
                () -> Held.releaseAll(link, keys, token, BootClock.stamp() + ttl, asked));
        long left = deadline == null ? Link.FOREVER : Math.max(0, deadline - Link.millis());
        Object reply = Duration.ZERO.equals(options.waitLimit())
                ? link.ask(keys.get(0), build, Link.ANSWER, unanswered, true)
                : link.askWaiting(keys.get(0), build, left, unanswered);
        if (reply == null) {
            return null;
        }
        boolean isSure = false;
        try {
            if (!(Held.each(keys, reply).get(0) instanceof Long fence)
                    || !Held.isFor(keys, reply, fence)) {
                throw new Misconfigured("the server's reply " + reply + " is not a fence");
            }
            var held = new Held(link, keys, options, token, fence, sent[0]);
            // After a wait, the reply does not say when the grant was made: a command sent now does.
            if (held.validFor().toMillis() < ttl / 2 && !held.extend(ttl, Link.ANSWER)) {
                throw new Unavailable("the lease ended before the grant arrived");
            }
            if (held.isLost()) {
                throw new Unavailable("the reply took longer than the lease");
            }
            if (Thread.interrupted()) {
                throw new InterruptedException();
            }
            isSure = true;
            return held;
        } finally {
            if (!isSure) {
                long until = BootClock.stamp() + ttl;
                Held.THREADS.execute(() -> Held.releaseAll(link, keys, token, until, null));
            }
        }
    }

    private static List<String> acquireCommand(
            List<String> keys, LockOptions options, String token, Long deadline) {
        String ttl = Long.toString(options.ttl().toMillis());
        List<String> rest = new ArrayList<>(List.of(ttl, "ONCE"));
        if (options.isShared()) {
            rest.add("SHARED");
        }
        if (options.limit() != null) {
            rest.addAll(List.of("LIMIT", options.limit().toString()));
        }
        if (options.label() != null) {
            rest.addAll(List.of("OWNER", options.label()));
        }
        long left = deadline == null ? 0 : deadline - Link.millis();
        if (deadline == null || left > 0) {
            rest.addAll(List.of("BLOCK", Long.toString(left)));
        }
        return Held.command(keys, "ACQUIRE", token, rest.toArray(String[]::new));
    }
}
