package org.redislock;

import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The base of everything that this library throws. */
public class LockException extends RuntimeException {
    private static final long serialVersionUID = 1;

    LockException(String message) {
        super(message);
    }

    /** Somebody else holds the lock, and the wait is over. */
    public static final class Busy extends LockException {
        private static final long serialVersionUID = 1;

        Busy(String message) {
            super(message);
        }
    }

    /** The lock was held and is not held any longer. Stop what needs it. */
    public static final class Lost extends LockException {
        private static final long serialVersionUID = 1;

        Lost(String message) {
            super(message);
        }
    }

    /** No server, no answer, or it cannot serve locks now. Trying again later may help. */
    public static class Unavailable extends LockException {
        private static final long serialVersionUID = 1;

        Unavailable(String message) {
            super(message);
        }
    }

    /** The server may have forgotten grants and pauses granting. */
    public static final class Quarantined extends Unavailable {
        private static final long serialVersionUID = 1;
        private final Duration retryAfter;

        Quarantined(String message, Duration retryAfter) {
            super(message);
            this.retryAfter = retryAfter;
        }

        public Duration retryAfter() {
            return retryAfter;
        }
    }

    /** Trying again does not help: the message says what to change on the server or the client. */
    public static final class Misconfigured extends LockException {
        private static final long serialVersionUID = 1;

        Misconfigured(String message) {
            super(message);
        }
    }

    /** The arguments can never be right. */
    public static final class InvalidRequest extends LockException {
        private static final long serialVersionUID = 1;

        InvalidRequest(String message) {
            super(message);
        }
    }

    // ---- inside ----

    /** The server's error reply. Nothing was changed. */
    static final class Refused extends Exception {
        private static final long serialVersionUID = 1;
        final String code;

        Refused(String message) {
            super(message);
            this.code = message.split(" ", 2)[0];
        }
    }

    /** No reply: if it was sent, the command may have been carried out, now or later. */
    static final class NoAnswer extends Exception {
        private static final long serialVersionUID = 1;
        final boolean sent;

        NoAnswer(String message, boolean sent) {
            super(message);
            this.sent = sent;
        }
    }

    private static final Pattern RETRY_IN = Pattern.compile("retry in (\\d+) ms");
    private static final Set<String> TRANSIENT = Set.of(
            "UNBLOCKED", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN",
            "NOREPLICAS", "MISCONF", "OOM", "BUSY");
    private static final Map<String, String> ADVICE = Map.of(
            "READONLY", "this server is a replica: connect to the master",
            "NOPERM", "allow the ACL user +lock.acquire, +lock.macquire, +lock.extend, "
                    + "+lock.mextend, +lock.release, +lock.mrelease, +lock.guard and the keys of "
                    + "its locks",
            "NOAUTH", "give the client a user name and password",
            "WRONGPASS", "check the client's user name and password",
            "CROSSSLOT", "several keys of one lock need a common {hash tag} in a cluster",
            "WRONGTYPE", "the key holds other data: use another name for the lock");

    /** The exception for the user. `followsMaster`: the client finds the new master by itself. */
    static LockException explain(Exception error, boolean followsMaster) {
        if (!(error instanceof Refused refused)) {
            return new Unavailable("no answer from the server: " + error.getMessage());
        }
        String text = refused.getMessage();
        if (text.toLowerCase().contains("unknown command")) {
            return new Misconfigured(
                    "the server has no redislock module: start it with loadmodule redislock.so");
        }
        if (refused.code.equals("NOTHELD")) {
            return new Lost("the lock is not held any longer, the command was not run");
        }
        if (refused.code.equals("QUARANTINE")) {
            Matcher found = RETRY_IN.matcher(text);
            long retryIn = found.find() ? Long.parseLong(found.group(1)) : 100;
            return new Quarantined(text, Duration.ofMillis(retryIn));
        }
        boolean deposed = followsMaster && refused.code.equals("READONLY");
        if (deposed || TRANSIENT.contains(refused.code)) {
            return new Unavailable(text);
        }
        String advice = ADVICE.get(refused.code);
        return new Misconfigured(advice == null ? text : text + ": " + advice);
    }
}
