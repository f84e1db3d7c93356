/** Locks of the redislock module for node-redis and ioredis. All times are in milliseconds. */

/** Of node-redis (createClient, createSentinel, createCluster) or ioredis (Redis, Cluster). */
export interface Client {
    duplicate(...overrides: any[]): any;
}

/** The key of a lock, or several keys that are taken all or none. */
export type Name = string | ReadonlyArray<string>;

export interface LockOptions {
    /** The lease, 10000 by default. It is renewed while the lock is held. */
    ttl?: number;
    /** How long to wait at most. 0 tries once, null (the default) waits until the lock is free. */
    wait?: number | null;
    /** Together with other shared holders. */
    shared?: boolean;
    /** At most so many shared holders: a semaphore. */
    limit?: number;
    /** Enters again what this owner holds. */
    owner?: Owner;
    /** false: no renewal. */
    renew?: boolean;
    /** How often to renew, at most half of the ttl. A third by default. */
    renewEvery?: number;
    /** Shown by LOCK.INFO. */
    label?: string;
    /** Aborting it ends the wait: acquire() rejects with Cancelled and leaves nothing held. */
    signal?: AbortSignal;
}

/** A lock that is held. */
export interface Held {
    /** Grows from holder to holder; exact, below 2^53. Show it to the protected resource. */
    readonly fence: number;
    /** Aborted with a Lost, a little before the lock may pass to somebody else, or by release(). */
    readonly signal: AbortSignal;
    /** True from the moment of that signal. */
    readonly lost: boolean;
    /** For how long nobody else is granted the lock. */
    readonly validFor: number;
    /** Throws Lost if the lock is lost. */
    check(): void;
    /**
     * Runs a command on the server if and only if the lock is held, in one step. Never sent twice.
     * Of a lock with several names, the first one is checked.
     */
    guard<Reply = unknown>(...command: Array<string | Buffer | number>): Promise<Reply>;
    /** False: it was lost before. A release that cannot be delivered goes on in the background. */
    release(): Promise<boolean>;
}

/** Acquiring with the same owner enters again a lock whose keys the owner holds already. */
export class Owner {}

/** Rejects with Busy when the wait is over. Whatever it rejects with, nothing is left held. */
export function acquire(client: Client, name: Name, options?: LockOptions): Promise<Held>;

/**
 * Acquires, runs the work, and releases. Rejects with the error of the work, or with Lost if the
 * lock was lost before the release; an error of the work is the cause of that.
 */
export function withLock<Result>(
    client: Client,
    name: Name,
    options: LockOptions,
    work: (held: Held) => Promise<Result> | Result,
): Promise<Result>;

/** Closes the idle connections that locks of this client have used. */
export function close(client: Client): void;

/** The base of everything that is thrown. */
export class LockError extends Error {}
/** Another client holds the lock, and the wait is over. */
export class Busy extends LockError {}
/** The lock was held and is not held any longer. Stop what needs it. */
export class Lost extends LockError {
    /** As the reason of a signal: how long it is until the lock may pass to somebody else. */
    readonly validFor: number;
}
/** The server could not be reached, or cannot serve locks now. Trying again later may help. */
export class Unavailable extends LockError {}
/** The server may have forgotten grants and pauses granting. */
export class Quarantined extends Unavailable {
    readonly retryAfter: number;
}
/** Trying again does not help: the message says what to change on the server or the client. */
export class Misconfigured extends LockError {}
/** The arguments can never be right. */
export class InvalidRequest extends LockError {}
/** The signal was aborted. */
export class Cancelled extends LockError {}
