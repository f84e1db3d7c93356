// What can go wrong, for the user and inside.

export class LockError extends Error {
    constructor(message, options) {
        super(message, options);
        this.name = new.target.name;
    }
}
export class Busy extends LockError {}
export class Lost extends LockError {
    constructor(message, validFor = 0) {
        super(message);
        this.validFor = Math.max(0, validFor); // ms until the lock may pass to somebody else
    }
}
export class Unavailable extends LockError {}
export class Quarantined extends Unavailable {
    constructor(message, retryAfter) {
        super(message);
        this.retryAfter = retryAfter;
    }
}
export class Misconfigured extends LockError {}
export class InvalidRequest extends LockError {}
export class Cancelled extends LockError {}

// The server's error reply. Nothing was changed.
export class Refused extends Error {
    constructor(message) {
        super(message);
        this.code = /^[A-Z]+/.exec(message)?.[0] ?? "ERR";
    }
}

// No reply: if it was sent, the command may have been carried out, now or later.
export class NoAnswer extends Error {
    constructor(message, sent) {
        super(message);
        this.sent = sent;
    }
}

const TRANSIENT = new Set([
    "UNBLOCKED",
    "MOVED",
    "ASK",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "NOREPLICAS",
    "MISCONF",
    "OOM",
    "BUSY",
]);
const ADVICE = {
    READONLY: "this server is a replica: connect to the master",
    NOPERM:
        "allow the ACL user +lock.acquire, +lock.macquire, +lock.extend, +lock.mextend, " +
        "+lock.release, +lock.mrelease, +lock.guard and the keys of its locks",
    NOAUTH: "give the client a user name and password",
    WRONGPASS: "check the client's user name and password",
    CROSSSLOT: "several keys of one lock need a common {hash tag} in a cluster",
    WRONGTYPE: "the key holds other data: use another name for the lock",
};

// The error for the user. `followsMaster`: the client finds the new master by itself.
export function explain(error, followsMaster) {
    if (error instanceof NoAnswer)
        return new Unavailable(`no answer from the server: ${error.message}`);
    if (!(error instanceof Refused)) return error;
    const { code, message } = error;
    if (/unknown command/i.test(message)) {
        return new Misconfigured(
            "the server has no redislock module: start it with loadmodule redislock.so",
        );
    }
    if (code === "NOTHELD")
        return new Lost("the lock is not held any longer, the command was not run");
    if (code === "QUARANTINE") {
        return new Quarantined(message, Number(/retry in (\d+) ms/.exec(message)?.[1] ?? 100));
    }
    if (TRANSIENT.has(code) || (code === "READONLY" && followsMaster))
        return new Unavailable(message);
    return new Misconfigured(code in ADVICE ? `${message}: ${ADVICE[code]}` : message);
}
