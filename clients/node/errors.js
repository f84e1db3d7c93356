export class LockError extends Error {
    constructor(message, options) {
        super(message, options);
        this.name = new.target.name;
    }
}
export class Busy extends LockError {}
export class Lost extends LockError {
    validFor = 0; // as the reason of a signal: ms until the lock may pass to somebody else
}
export class Unavailable extends LockError {}
export class Quarantined extends Unavailable {
    retryAfter = 100;
}
export class Misconfigured extends LockError {}
export class InvalidRequest extends LockError {}
export class Cancelled extends LockError {}

const TRANSIENT =
    "UNBLOCKED ASK TRYAGAIN CLUSTERDOWN LOADING MASTERDOWN NOREPLICAS MISCONF OOM BUSY";
const ADVICE = {
    READONLY: "this server is a replica: connect to the master",
    MOVED: "this server is part of a cluster: use the client for a cluster",
    NOPERM:
        "allow the ACL user +lock.acquire, +lock.macquire, +lock.extend, +lock.mextend, " +
        "+lock.release, +lock.mrelease, +lock.guard and the keys of its locks",
    NOAUTH: "give the client a user name and password",
    WRONGPASS: "check the client's user name and password",
    CROSSSLOT: "several keys of one lock need a common {hash tag} in a cluster",
    WRONGTYPE: "the key holds other data: use another name for the lock",
};

// The error for an error reply. `followsMaster`: the client finds the new master by itself.
export function refused(text, followsMaster) {
    const code = text.split(" ", 1)[0];
    if (/unknown command/i.test(text))
        return new Misconfigured(
            "the server has no redislock module: start it with loadmodule redislock.so",
        );
    if (code === "NOTHELD") return new Lost("the lock is no longer held, the command was not run");
    if (code === "QUARANTINE") {
        const retryAfter = Number(/retry in (\d+) ms/.exec(text)?.[1] ?? 100);
        return Object.assign(new Quarantined(text), { retryAfter });
    }
    const isElsewhere = code === "READONLY" || code === "MOVED";
    if (TRANSIENT.split(" ").includes(code) || (isElsewhere && followsMaster))
        return new Unavailable(text);
    return new Misconfigured(code in ADVICE ? `${text}: ${ADVICE[code]}` : text);
}
