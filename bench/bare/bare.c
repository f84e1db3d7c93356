/* A module that does nothing but the calls of the module API that a fair lock cannot do without.
 * It knows no tokens, leases or fences: what it costs is the least that a lock in a module can
 * cost. With an argument it replicates effects, as for an AOF.
 *
 * BARE.ACQUIRE key token ttl   makes a key of its own type
 * BARE.RELEASE key token       deletes the key
 * BARE.WAIT key token          the same as BARE.ACQUIRE; waits, in one queue for all keys
 * BARE.PASS key token          grants the key to the first that waits, or deletes it
 *
 * A waiter gets its reply at the end of the turn of the event loop. Until then, CLIENT UNBLOCK or
 * CLIENT KILL in the same turn may still end its wait.
 *
 * The context begins with the function by which a module asks for all others. */
#include <stddef.h>
#include <stdint.h>

typedef struct Ctx Ctx;
typedef struct String String;
typedef struct Key Key;
typedef struct Type Type;
typedef struct Io Io;
typedef struct Blocked Blocked;
typedef int Command(Ctx *, String **, int);
typedef struct { uint64_t id, version; } Event;

struct methods {
    uint64_t version;
    void *(*load)(Io *, int);
    void (*save)(Io *, void *);
    void *rewrite;
    void *memory;
    void *digest;
    void (*free)(void *);
};

static void (*SetModuleAttribs)(Ctx *, const char *, int, int);
static int (*CreateCommand)(Ctx *, const char *, Command *, const char *, int, int, int);
static Type *(*CreateDataType)(Ctx *, const char *, int, struct methods *);
static char *(*LoadStringBuffer)(Io *, size_t *);
static void (*SaveStringBuffer)(Io *, const char *, size_t);
static void (*Free)(void *);
static Key *(*OpenKey)(Ctx *, String *, int);
static void (*CloseKey)(Key *);
static int (*KeyType)(Key *);
static Type *(*ModuleTypeGetType)(Key *);
static void *(*ModuleTypeGetValue)(Key *);
static int (*ModuleTypeSetValue)(Key *, Type *, void *);
static int (*DeleteKey)(Key *);
static int (*SignalModifiedKey)(Ctx *, String *);
static int (*NotifyKeyspaceEvent)(Ctx *, int, const char *, String *);
static int (*Replicate)(Ctx *, const char *, const char *, ...);
static int (*ReplicateVerbatim)(Ctx *);
static int (*ReplyWithLongLong)(Ctx *, long long);
static int (*ReplyWithNull)(Ctx *);
static Blocked *(*BlockClient)(Ctx *, Command *, Command *, void (*)(Ctx *, void *), long long);
static Blocked *(*BlockClientOnKeys)(Ctx *, Command *, Command *, void (*)(Ctx *, void *),
                                     long long, String **, int, void *);
static int (*UnblockClient)(Blocked *, void *);
static void (*SetDisconnectCallback)(Blocked *, void (*)(Ctx *, Blocked *));
static void *(*GetBlockedClientPrivateData)(Ctx *);
static Blocked *(*GetBlockedClientHandle)(Ctx *);
static int (*SubscribeToServerEvent)(Ctx *, Event, void (*)(Ctx *, Event, uint64_t, void *));
static int (*GetServerVersion)(void);

enum { OK = 0, ERR = 1, API_VERSION = 1 };
enum { READ = 1, WRITE = 2, EMPTY = 0, EVENT_OF_MODULE = 1 << 13 };
enum { MOST_WAITING = 1 << 16 };
enum { EVENT_LOOP = 15, BEFORE_SLEEP = 0, UNBLOCKS_BEFORE_EVENT = 0x00070200 };

static Type *type;
static uintptr_t made;
/* From first to ready: granted, without a reply yet. From ready to next: they wait. */
static Blocked *waiting[MOST_WAITING];
static unsigned first, ready, next;
static int replicates_effects;
/* Since Redis 7.2, only a client that is blocked on a key can be unblocked at the end of a turn. */
static int blocks_on_keys;
/* As long as the effect of a lock with a token of 36 bytes. */
static const char effect[64];

/* One value, and so short that a server does not try to compress it. A lock needs about 36 bytes
 * for its token, its fence and the end of its lease: none can be saved or loaded at this cost. */
static const char saved[20];

static void *load(Io *io, int version) {
    (void)version;
    size_t length;
    char *bytes = LoadStringBuffer(io, &length);
    if (!bytes) return NULL;
    Free(bytes);
    return (void *)++made;
}

static void save(Io *io, void *value) {
    (void)value;
    SaveStringBuffer(io, saved, sizeof saved);
}

static void nothing(void *value) { (void)value; }

/* An effect has another name than the command, and bytes of its own. */
static void replicate(Ctx *ctx, String *name) {
    if (replicates_effects) {
        Replicate(ctx, "bare._apply", "bs", effect, sizeof effect, name);
    } else {
        ReplicateVerbatim(ctx);
    }
}

static int take(Ctx *ctx, String *name) {
    Key *key = OpenKey(ctx, name, READ | WRITE);
    int is_free = KeyType(key) == EMPTY;
    if (is_free) {
        ModuleTypeSetValue(key, type, (void *)++made);
        SignalModifiedKey(ctx, name);
        replicate(ctx, name);
    }
    CloseKey(key);
    if (is_free) NotifyKeyspaceEvent(ctx, EVENT_OF_MODULE, "bare.acquired", name);
    return is_free;
}

static int is_held(Key *key) {
    return KeyType(key) != EMPTY && ModuleTypeGetType(key) == type && ModuleTypeGetValue(key);
}

static int acquire(Ctx *ctx, String **argv, int argc) {
    if (argc != 4 || !take(ctx, argv[1])) return ReplyWithNull(ctx);
    return ReplyWithLongLong(ctx, (long long)made);
}

static int release(Ctx *ctx, String **argv, int argc) {
    if (argc != 3) return ReplyWithNull(ctx);
    Key *key = OpenKey(ctx, argv[1], READ | WRITE);
    if (!is_held(key)) {
        CloseKey(key);
        return ReplyWithNull(ctx);
    }
    DeleteKey(key);
    SignalModifiedKey(ctx, argv[1]);
    ReplicateVerbatim(ctx);
    CloseKey(key);
    NotifyKeyspaceEvent(ctx, EVENT_OF_MODULE, "bare.released", argv[1]);
    return ReplyWithLongLong(ctx, 1);
}

static int apply(Ctx *ctx, String **argv, int argc) {
    (void)argv, (void)argc;
    return ReplyWithLongLong(ctx, 1);
}

/* Places at the head of the queue whose waits have ended would fill it. */
static void skip_gone(void) {
    while (ready != next && !waiting[ready % MOST_WAITING]) ready++;
}

/* The server has ended this wait. It frees a client that is blocked on a key by itself. */
static void leave(Ctx *ctx, Blocked *client) {
    (void)ctx;
    for (unsigned place = first; place != next; place++) {
        if (waiting[place % MOST_WAITING] == client) {
            waiting[place % MOST_WAITING] = NULL;
            if (!blocks_on_keys) UnblockClient(client, NULL);
        }
    }
    skip_gone();
}

/* The reply to a waiter; nothing after CLIENT UNBLOCK. Its private data is its place plus one; none
 * before the grant if the client is not blocked on a key. */
static int answer(Ctx *ctx, String **argv, int argc) {
    (void)argv, (void)argc;
    uintptr_t data = (uintptr_t)GetBlockedClientPrivateData(ctx);
    Blocked *client = data ? waiting[(data - 1) % MOST_WAITING] : GetBlockedClientHandle(ctx);
    if (!client) return ReplyWithLongLong(ctx, (long long)++made);
    leave(ctx, client);
    return ReplyWithNull(ctx);
}

/* A new key does not end a wait: the queue decides. */
static int key_is_ready(Ctx *ctx, String **argv, int argc) {
    (void)ctx, (void)argv, (void)argc;
    return ERR;
}

static int wait(Ctx *ctx, String **argv, int argc) {
    if (argc != 3 || next - first == MOST_WAITING) return ReplyWithNull(ctx);
    if (take(ctx, argv[1])) return ReplyWithLongLong(ctx, (long long)made);
    void *data = (void *)((uintptr_t)next + 1);
    Blocked *client = blocks_on_keys
        ? BlockClientOnKeys(ctx, key_is_ready, answer, NULL, 0, argv + 1, 1, data)
        : BlockClient(ctx, answer, answer, NULL, 0);
    SetDisconnectCallback(client, leave);
    waiting[next++ % MOST_WAITING] = client;
    return OK;
}

static int pass(Ctx *ctx, String **argv, int argc) {
    skip_gone();
    if (argc != 3 || ready == next) return release(ctx, argv, argc);
    Key *key = OpenKey(ctx, argv[1], READ | WRITE);
    int held = is_held(key);
    if (held) {
        SignalModifiedKey(ctx, argv[1]);
        replicate(ctx, argv[1]);
    }
    CloseKey(key);
    if (!held) return ReplyWithNull(ctx);
    NotifyKeyspaceEvent(ctx, EVENT_OF_MODULE, "bare.released", argv[1]);
    NotifyKeyspaceEvent(ctx, EVENT_OF_MODULE, "bare.acquired", argv[1]);
    ready++;
    return ReplyWithLongLong(ctx, 1);
}

/* At the end of a turn, the granted ones get their replies. */
static void on_turn(Ctx *ctx, Event event, uint64_t moment, void *data) {
    (void)ctx, (void)event, (void)data;
    if (moment != BEFORE_SLEEP) return;
    while (first != ready) {
        Blocked *client = waiting[first % MOST_WAITING];
        waiting[first++ % MOST_WAITING] = NULL;
        if (client) UnblockClient(client, (void *)(uintptr_t)first);
    }
}

int RedisModule_OnLoad(Ctx *ctx, void **argv, int argc) {
    (void)argv;
    int (*get)(const char *, void *) = (int (*)(const char *, void *))*(void **)ctx;
    int missing = 0;
#define ASK(name) missing |= get("RedisModule_" #name, (void *)&name)
    ASK(SetModuleAttribs), ASK(CreateCommand), ASK(CreateDataType);
    ASK(LoadStringBuffer), ASK(SaveStringBuffer), ASK(Free);
    ASK(OpenKey), ASK(CloseKey), ASK(KeyType), ASK(ModuleTypeGetType);
    ASK(ModuleTypeGetValue), ASK(ModuleTypeSetValue), ASK(DeleteKey), ASK(SignalModifiedKey);
    ASK(NotifyKeyspaceEvent), ASK(Replicate), ASK(ReplicateVerbatim), ASK(ReplyWithLongLong);
    ASK(ReplyWithNull), ASK(BlockClient), ASK(BlockClientOnKeys), ASK(UnblockClient);
    ASK(SetDisconnectCallback), ASK(GetBlockedClientPrivateData), ASK(GetBlockedClientHandle);
    ASK(SubscribeToServerEvent), ASK(GetServerVersion);
    if (missing) return ERR;
    SetModuleAttribs(ctx, "bare", 1, API_VERSION);
    replicates_effects = argc > 0;
    blocks_on_keys = GetServerVersion() >= UNBLOCKS_BEFORE_EVENT;
    struct methods methods = {.version = 1, .load = load, .save = save, .free = nothing};
    type = CreateDataType(ctx, "barelocks", 0, &methods);
    if (!type) return ERR;
    int failed = SubscribeToServerEvent(ctx, (Event){EVENT_LOOP, 1}, on_turn);
    failed |= CreateCommand(ctx, "bare.acquire", acquire, "write deny-oom fast", 1, 1, 1);
    failed |= CreateCommand(ctx, "bare.release", release, "write fast", 1, 1, 1);
    failed |= CreateCommand(ctx, "bare._apply", apply, "write fast", 2, 2, 1);
    failed |= CreateCommand(ctx, "bare.wait", wait, "write", 1, 1, 1);
    failed |= CreateCommand(ctx, "bare.pass", pass, "write", 1, 1, 1);
    return failed;
}
