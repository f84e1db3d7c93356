/* A module that does nothing but the calls of the module API that a lock cannot do without.
 * It knows no tokens, leases or fences: what it costs is the least that a lock in a module can
 * cost. With an argument it replicates effects, as for an AOF. It saves as many bytes as a lock
 * whose token is a UUID.
 *
 * BARE.ACQUIRE key token ttl   makes a key of its own type
 * BARE.RELEASE key token       deletes the key
 * BARE.WAIT key token          waits in one queue for all
 * BARE.PASS key token          answers the first that waits
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
static int (*UnblockClient)(Blocked *, void *);

enum { OK = 0, ERR = 1, API_VERSION = 1 };
enum { READ = 1, WRITE = 2, EMPTY = 0, EVENT_OF_MODULE = 1 << 13 };
enum { MOST_WAITING = 1 << 16 };

static Type *type;
static uintptr_t made;
static Blocked *waiting[MOST_WAITING];
static unsigned first, next;
static int replicates_effects;
/* As long as the effect of a lock with a token of 36 bytes. */
static const char effect[64];

/* No part of it occurs twice: it cannot be compressed. */
static const char saved[37] = "abcdefghijklmnopqrstuvwxyz0123456789-";

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

static int acquire(Ctx *ctx, String **argv, int argc) {
    if (argc != 4) return ReplyWithNull(ctx);
    Key *key = OpenKey(ctx, argv[1], READ | WRITE);
    if (KeyType(key) != EMPTY) {
        CloseKey(key);
        return ReplyWithNull(ctx);
    }
    ModuleTypeSetValue(key, type, (void *)++made);
    SignalModifiedKey(ctx, argv[1]);
    /* An effect has another name than the command, and bytes of its own. */
    if (replicates_effects) {
        Replicate(ctx, "bare._apply", "bs", effect, sizeof effect, argv[1]);
    } else {
        ReplicateVerbatim(ctx);
    }
    CloseKey(key);
    NotifyKeyspaceEvent(ctx, EVENT_OF_MODULE, "bare.acquired", argv[1]);
    return ReplyWithLongLong(ctx, (long long)made);
}

static int release(Ctx *ctx, String **argv, int argc) {
    if (argc != 3) return ReplyWithNull(ctx);
    Key *key = OpenKey(ctx, argv[1], READ | WRITE);
    if (KeyType(key) == EMPTY || ModuleTypeGetType(key) != type || !ModuleTypeGetValue(key)) {
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

static int answered(Ctx *ctx, String **argv, int argc) {
    (void)argv, (void)argc;
    return ReplyWithLongLong(ctx, (long long)++made);
}

static int wait(Ctx *ctx, String **argv, int argc) {
    (void)argv;
    if (argc != 3 || next - first == MOST_WAITING) return ReplyWithNull(ctx);
    waiting[next++ % MOST_WAITING] = BlockClient(ctx, answered, answered, NULL, 0);
    return OK;
}

static int pass(Ctx *ctx, String **argv, int argc) {
    (void)argv;
    if (argc != 3 || first == next) return ReplyWithNull(ctx);
    UnblockClient(waiting[first++ % MOST_WAITING], (void *)1);
    return ReplyWithLongLong(ctx, 1);
}

int RedisModule_OnLoad(Ctx *ctx, void **argv, int argc) {
    (void)argv;
    int (*get)(const char *, void *) = (int (*)(const char *, void *))*(void **)ctx;
    int missing = 0;
#define ASK(name) missing |= get("RedisModule_" #name, (void *)&name)
    ASK(SetModuleAttribs), ASK(CreateCommand), ASK(CreateDataType);
    ASK(LoadStringBuffer), ASK(SaveStringBuffer), ASK(Free), ASK(OpenKey), ASK(CloseKey), ASK(KeyType), ASK(ModuleTypeGetType);
    ASK(ModuleTypeGetValue), ASK(ModuleTypeSetValue), ASK(DeleteKey), ASK(SignalModifiedKey);
    ASK(NotifyKeyspaceEvent), ASK(Replicate), ASK(ReplicateVerbatim), ASK(ReplyWithLongLong);
    ASK(ReplyWithNull), ASK(BlockClient), ASK(UnblockClient);
    if (missing) return ERR;
    SetModuleAttribs(ctx, "bare", 1, API_VERSION);
    replicates_effects = argc > 0;
    struct methods methods = {.version = 1, .load = load, .save = save, .free = nothing};
    type = CreateDataType(ctx, "barelocks", 0, &methods);
    if (!type) return ERR;
    int failed = 0;
    failed |= CreateCommand(ctx, "bare.acquire", acquire, "write deny-oom fast", 1, 1, 1);
    failed |= CreateCommand(ctx, "bare.release", release, "write fast", 1, 1, 1);
    failed |= CreateCommand(ctx, "bare._apply", apply, "write fast", 2, 2, 1);
    failed |= CreateCommand(ctx, "bare.wait", wait, "write", 1, 1, 1);
    failed |= CreateCommand(ctx, "bare.pass", pass, "write", 1, 1, 1);
    return failed;
}
