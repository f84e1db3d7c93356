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

    final Source source;
    private final Map<String, Deque<Connection>> idle = new ConcurrentHashMap<>(); // by address
    private volatile boolean isClosed;
    private final Semaphore waiting = new Semaphore(MAX_WAITING, true);

    Link(Source source) {
        this.source = source;
    }

    /** Sends one command, once, and returns the reply. */
    Object tell(String key, List<String> words, long limit) throws InterruptedException {
        return ask(key, () -> words, limit, Sending::abandon);
    }

    /**
     * The same for a command that is built just before the sending.
     *
     * @param unanswered gets the command if it was sent and no answer came, to abandon it
     */
    Object ask(String key, Supplier<List<String>> build, long limit, Consumer<Sending> unanswered)
            throws InterruptedException {
        String address = source.address(key);
        for (int redirected = 0;; redirected++) {
            try {
                return askAt(address, build, limit, unanswered);
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
        if (!waiting.tryAcquire(turn, TimeUnit.MILLISECONDS)) {
            throw new Unavailable(MAX_WAITING + " requests of this client already wait");
        }
        try {
            return ask(key, build, turn + ANSWER, unanswered);
        } finally {
            waiting.release();
        }
    }

    private Object askAt(String address, Supplier<List<String>> build, long limit,
            Consumer<Sending> unanswered) throws ErrorReply, InterruptedException {
        if (isClosed || source.isClosed()) {
            throw new Misconfigured("the client is closed: create another one for locks");
        }
        var unused = idle.computeIfAbsent(address, any -> new ConcurrentLinkedDeque<>());
        Connection connection = unused.poll();
        while (connection != null && !connection.isOpen()) {
            connection.close();
            connection = unused.poll();
        }
        if (connection == null) {
            connection = connected(address);
        }
        Connection used = connection;
        var sending = new Sending(used, begun(() -> used.send(build.get())));
        boolean isAnswered = false;
        try {
            Object reply = answer(sending.reply(), limit);
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

    private Connection connected(String address) throws ErrorReply, InterruptedException {
        var connecting = begun(() -> source.connect(address));
        Connection connection = null;
        try {
            connection = answer(connecting, ANSWER);
            return connection;
        } finally {
            if (connection == null) {
                connecting.thenAccept(Connection::close);
            }
        }
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
        for (var unused : idle.values()) {
            for (var next = unused.poll(); next != null; next = unused.poll()) {
                next.close();
            }
        }
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
