package org.redislock;

import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.function.LongSupplier;
import java.util.function.Supplier;
import org.redislock.LockException.Misconfigured;
import org.redislock.LockException.Unavailable;
import org.redislock.Source.Connection;
import org.redislock.Source.ErrorReply;

/** Our own connections, those that wait bounded. Times are in ms. */
final class Link {
    /** In which a healthy server answers. */
    static final long ANSWER = 2_000;
    static final long FOREVER = Long.MAX_VALUE / 2;
    /** Connections that wait in the server's queues. */
    private static final int MAX_WAITING = 100;
    /** Connections that attempts open at the same time: a busy machine opens a few soon. */
    private static final int MAX_OPENING = 10;

    final Source source;
    private final Map<String, Deque<Connection>> idle = new ConcurrentHashMap<>(); // by address
    private final Semaphore waiting = new Semaphore(MAX_WAITING, true);
    private final Semaphore opening = new Semaphore(MAX_OPENING, true);
    private volatile boolean isClosed;
    private volatile long openedAt = millis(); // the last connection

    Link(Source source) {
        this.source = source;
    }

    /** Sends one command, once, and returns the reply. */
    Object call(String key, List<String> words, long limit) throws InterruptedException {
        return ask(key, () -> words, limit, Sending::abandon, false);
    }

    /**
     * The same for a command that is built just before the sending.
     *
     * @param unanswered gets the command if it was sent and no answer came, to abandon it
     * @param isQueued for an attempt, which may have to queue for a connection: a renewal or a
     *     release never does. Its limit is for that, too, but the answer has time
     */
    Object ask(String key, Supplier<List<String>> build, long limit,
            Consumer<Sending> unanswered, boolean isQueued) throws InterruptedException {
        if (isClosed || source.isClosed()) {
            throw new Misconfigured("the client is closed: create another one for locks");
        }
        String address;
        try {
            address = source.address(key);
        } catch (RuntimeException unknown) { // of Lettuce, if no node of a cluster answers
            throw new Unavailable("no node is known for this key: " + unknown.getMessage());
        }
        long end = millis() + limit;
        LongSupplier left = () -> isQueued ? Math.max(1, end - millis()) : limit;
        for (int redirected = 0;; redirected++) {
            try {
                return askAt(address, build, left, unanswered, isQueued);
            } catch (ErrorReply reply) {
                String[] words = reply.getMessage().split(" "); // MOVED slot host:port
                if (!source.isCluster() || !words[0].equals("MOVED") || redirected == 5) {
                    throw LockException.refused(reply.getMessage(), source.followsMaster());
                }
                address = words[2]; // a node that redirects has done nothing
                source.rediscover();
            }
        }
    }

    /** The same on one of the connections that may wait; `turn`: how long to wait for one. */
    Object askWaiting(String key, Supplier<List<String>> build, long turn,
            Consumer<Sending> unanswered) throws InterruptedException {
        long end = millis() + turn;
        if (!waiting.tryAcquire(turn, TimeUnit.MILLISECONDS)) {
            throw new Unavailable(MAX_WAITING + " requests of this client already wait");
        }
        try {
            return ask(key, build, Math.max(0, end - millis()) + ANSWER, unanswered, true);
        } finally {
            waiting.release();
        }
    }

    private Object askAt(String address, Supplier<List<String>> build, LongSupplier left,
            Consumer<Sending> unanswered, boolean isQueued)
            throws ErrorReply, InterruptedException {
        var unused = idle.computeIfAbsent(address, any -> new ConcurrentLinkedDeque<>());
        Connection connection = taken(unused, step(left), isQueued);
        Connection used =
                connection != null ? connection : connected(address, unused, left, isQueued);
        var sending = new Sending(used, begun(() -> used.send(build.get())));
        boolean isAnswered = false;
        try {
            long limit = left.getAsLong();
            Object reply = answer(sending.reply(), isQueued ? Math.max(ANSWER, limit) : limit);
            isAnswered = true;
            keep(unused, used);
            return reply;
        } catch (ErrorReply reply) {
            isAnswered = true;
            if (source.followsMaster() && reply.getMessage().startsWith("READONLY")) {
                used.close();
            } else {
                keep(unused, used);
            }
            throw reply;
        } finally {
            if (!isAnswered) {
                unanswered.accept(sending);
            }
        }
    }

    private static long step(LongSupplier left) {
        return Math.min(ANSWER, left.getAsLong());
    }

    /** A server that is silent on one connection is silent on the others, too: none is left. */
    private static Connection taken(Deque<Connection> unused, long limit, boolean isQueued)
            throws ErrorReply, InterruptedException {
        int leave = isQueued ? 1 : 0;
        for (var next = next(unused, leave); next != null; next = next(unused, leave)) {
            boolean isOpen = false;
            try {
                isOpen = answer(next.isOpen(), limit);
                if (isOpen) {
                    return next;
                }
            } catch (Unavailable silence) {
                closeAll(unused);
            } finally {
                if (!isOpen) {
                    next.close();
                }
            }
        }
        return null;
    }

    /** An attempt leaves one for a release: waiters must not take it from the holder. */
    private static Connection next(Deque<Connection> unused, int leave) {
        synchronized (unused) {
            return unused.size() > leave ? unused.poll() : null;
        }
    }

    private static void closeAll(Deque<Connection> unused) {
        for (var next = unused.poll(); next != null; next = unused.poll()) {
            next.close();
        }
    }

    private Connection connected(
            String address, Deque<Connection> unused, LongSupplier left, boolean isQueued)
            throws ErrorReply, InterruptedException {
        if (isQueued && !opening.tryAcquire(step(left), TimeUnit.MILLISECONDS)) {
            throw new Unavailable("no connection to the server: opening one takes too long");
        }
        try {
            Connection idleSince = taken(unused, step(left), isQueued);
            return idleSince != null ? idleSince : opened(address, unused, step(left));
        } finally {
            if (isQueued) {
                opening.release();
            }
        }
    }

    /** One that is late is kept for the next attempt: opening another one takes as long. */
    private Connection opened(String address, Deque<Connection> unused, long limit)
            throws ErrorReply, InterruptedException {
        var connecting = begun(() -> source.connect(address));
        connecting.thenAccept(any -> openedAt = millis());
        Connection connection = null;
        try {
            connection = answer(connecting, limit);
            return connection;
        } finally {
            if (connection == null) {
                connecting.thenAccept(late -> keep(unused, late));
            }
        }
    }

    /** When a connection was opened last. */
    long openedAt() {
        return openedAt;
    }

    /** For times that are not compared with leases. */
    static long millis() {
        return System.nanoTime() / 1_000_000;
    }

    private void keep(Deque<Connection> unused, Connection connection) {
        if (isClosed || unused.size() >= MAX_WAITING) {
            connection.close();
        } else {
            unused.push(connection);
        }
    }

    /** A command on its way. */
    record Sending(Connection connection, CompletableFuture<Object> reply) {
        /** Is the reply here, and null or an error? */
        boolean isRefused() throws InterruptedException {
            try {
                return reply.isDone() && answer(reply, ANSWER) == null;
            } catch (ErrorReply refused) {
                return true;
            } catch (Unavailable silence) {
                return false;
            }
        }

        void abandon() {
            connection.close();
        }
    }

    void close() {
        isClosed = true;
        idle.values().forEach(Link::closeAll);
        source.close();
    }

    /** What a client throws at once fails the future, too. */
    private static <T> CompletableFuture<T> begun(Supplier<CompletableFuture<T>> begin) {
        try {
            return begin.get();
        } catch (RuntimeException failed) {
            return CompletableFuture.failedFuture(failed);
        }
    }

    private static <T> T answer(CompletableFuture<T> future, long limit)
            throws ErrorReply, InterruptedException {
        try {
            return future.get(Math.max(1, limit), TimeUnit.MILLISECONDS);
        } catch (TimeoutException late) {
            throw new Unavailable("no reply from the server: it takes too long");
        } catch (ExecutionException failed) {
            for (Throwable cause = failed; cause != null; cause = cause.getCause()) {
                if (cause instanceof ErrorReply reply) {
                    throw reply;
                }
            }
            String why = String.valueOf(failed.getCause().getMessage());
            throw new Unavailable("no reply from the server: " + why);
        }
    }
}
