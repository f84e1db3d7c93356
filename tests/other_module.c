/* Another module of the same server, for tests: it calls the commands of ours from a command, from a thread of its own, and
 * from a listener to keyspace events. The context begins with the function by which a module asks for all others. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct Ctx Ctx;
typedef struct String String;
typedef struct Reply Reply;
typedef int Command(Ctx *, String **, int);
typedef int Listener(Ctx *, int, const char *, String *);

static void (*SetModuleAttribs)(Ctx *, const char *, int, int);
static int (*CreateCommand)(Ctx *, const char *, Command *, const char *, int, int, int);
static int (*SubscribeToKeyspaceEvents)(Ctx *, int, Listener *);
static Reply *(*Call)(Ctx *, const char *, const char *, ...);
static void (*FreeCallReply)(Reply *);
static const char *(*CallReplyProto)(Reply *, size_t *);
static int (*ReplyWithCallReply)(Ctx *, Reply *);
static int (*ReplyWithSimpleString)(Ctx *, const char *);
static int (*ReplyWithStringBuffer)(Ctx *, const char *, size_t);
static int (*ReplyWithError)(Ctx *, const char *);
static int (*ReplyWithNull)(Ctx *);
static int (*CallReplyType)(Reply *);
/* Servers before 7.2 do not have it. */
static void (*CallReplyPromiseSetUnblockHandler)(Reply *, void (*)(Ctx *, Reply *, void *), void *);
static String *(*HoldString)(Ctx *, String *);
static void (*FreeString)(Ctx *, String *);
static const char *(*StringPtrLen)(String *, size_t *);
static Ctx *(*GetThreadSafeContext)(void *);
static void (*FreeThreadSafeContext)(Ctx *);
static void (*ThreadSafeContextLock)(Ctx *);
static void (*ThreadSafeContextUnlock)(Ctx *);

enum { OK = 0, ERR = 1, API_VERSION = 1, PROMISE = 12 };
/* GENERIC, EXPIRED, KEY_MISS, MODULE, NEW */
enum { CLASSES = 1 << 2 | 1 << 8 | 1 << 11 | 1 << 13 | 1 << 14 };

/* A command that is called later. */
struct job {
    String **argv;
    int argc;
};

static struct job keep(String **argv, int argc) {
    struct job job = {malloc(argc * sizeof *argv), argc};
    for (int at = 0; at < argc; at++) job.argv[at] = HoldString(NULL, argv[at]);
    return job;
}

static void drop(struct job job) {
    for (int at = 0; at < job.argc; at++) FreeString(NULL, job.argv[at]);
    free(job.argv);
}

static Reply *call(Ctx *ctx, String **argv, int argc) {
    return Call(ctx, StringPtrLen(argv[0], NULL), "!Ev", argv + 1, (size_t)(argc - 1));
}

/* OTHER.CALL command [arg ...]: calls it and passes the reply on. */
static int other_call(Ctx *ctx, String **argv, int argc) {
    Reply *reply = call(ctx, argv + 1, argc - 1);
    if (!reply) return ReplyWithError(ctx, "ERR the call was not possible");
    ReplyWithCallReply(ctx, reply);
    FreeCallReply(reply);
    return OK;
}

/* OTHER.FAIL: counts its runs at the key `runs`, and replies as the server does to a call without a user. */
static int other_fail(Ctx *ctx, String **argv, int argc) {
    (void)argv, (void)argc;
    Reply *reply = Call(ctx, "INCR", "!c", "runs");
    if (reply) FreeCallReply(reply);
    return ReplyWithError(ctx, "ERR cannot run as user");
}

static void *call_in_thread(void *arg) {
    struct job *job = arg;
    Ctx *ctx = GetThreadSafeContext(NULL);
    ThreadSafeContextLock(ctx);
    Reply *reply = call(ctx, job->argv, job->argc);
    if (reply) FreeCallReply(reply);
    drop(*job);
    ThreadSafeContextUnlock(ctx);
    FreeThreadSafeContext(ctx);
    free(job);
    return NULL;
}

/* OTHER.THREAD command [arg ...]: calls it in a thread of this module, which takes the server's lock for it. */
static int other_thread(Ctx *ctx, String **argv, int argc) {
    struct job *job = malloc(sizeof *job);
    *job = keep(argv + 1, argc - 1);
    pthread_t thread;
    pthread_create(&thread, NULL, call_in_thread, job);
    pthread_detach(thread);
    return ReplyWithSimpleString(ctx, "OK");
}

/* What to do at the next event of this name about this key, and what came of it. */
static struct job awaited;
static char *heard;
static size_t heard_length;

/* OTHER.ON event key command [arg ...]: calls it once, from within the next such event. */
static int other_on(Ctx *ctx, String **argv, int argc) {
    if (awaited.argc) drop(awaited);
    awaited = keep(argv + 1, argc - 1);
    free(heard);
    heard = NULL;
    return ReplyWithSimpleString(ctx, "OK");
}

/* OTHER.HEARD: the reply to that call as it would be sent, or null if there was no such event. */
static int other_heard(Ctx *ctx, String **argv, int argc) {
    (void)argv, (void)argc;
    return heard ? ReplyWithStringBuffer(ctx, heard, heard_length) : ReplyWithNull(ctx);
}

static void note(Reply *reply) {
    const char *sent = CallReplyProto(reply, &heard_length);
    heard = malloc(heard_length);
    memcpy(heard, sent, heard_length);
}

static void on_unblocked(Ctx *ctx, Reply *reply, void *data) {
    (void)ctx, (void)data;
    note(reply);
    FreeCallReply(reply);
}

/* OTHER.WAIT command [arg ...]: calls it and lets it block; OTHER.HEARD has the reply, when there is one. */
static int other_wait(Ctx *ctx, String **argv, int argc) {
    free(heard);
    heard = NULL;
    if (!CallReplyPromiseSetUnblockHandler) return ReplyWithError(ctx, "ERR this server does not let modules wait");
    Reply *reply = Call(ctx, StringPtrLen(argv[1], NULL), "!EKv", argv + 2, (size_t)(argc - 2));
    if (!reply) return ReplyWithError(ctx, "ERR the call was not possible");
    if (CallReplyType(reply) == PROMISE) CallReplyPromiseSetUnblockHandler(reply, on_unblocked, NULL);
    else note(reply);
    FreeCallReply(reply);
    return ReplyWithSimpleString(ctx, "OK");
}

static int same(String *string, const char *bytes, size_t length) {
    size_t own;
    const char *start = StringPtrLen(string, &own);
    return own == length && memcmp(start, bytes, length) == 0;
}

static int listen(Ctx *ctx, int type, const char *event, String *key) {
    (void)type;
    size_t length;
    const char *name = StringPtrLen(key, &length);
    struct job job = awaited;
    if (!job.argc || !same(job.argv[0], event, strlen(event)) || !same(job.argv[1], name, length)) return OK;
    awaited.argc = 0;
    Reply *reply = call(ctx, job.argv + 2, job.argc - 2);
    if (reply) {
        note(reply);
        FreeCallReply(reply);
    }
    drop(job);
    return OK;
}

#define GET(name) \
    if (get("RedisModule_" #name, (void *)&name) != OK) return ERR

int RedisModule_OnLoad(Ctx *ctx, String **argv, int argc) {
    (void)argv, (void)argc;
    int (*get)(const char *, void *) = *(int (**)(const char *, void *))ctx;
    GET(SetModuleAttribs);
    GET(CreateCommand);
    GET(SubscribeToKeyspaceEvents);
    GET(Call);
    GET(FreeCallReply);
    GET(CallReplyProto);
    GET(ReplyWithCallReply);
    GET(ReplyWithSimpleString);
    GET(ReplyWithStringBuffer);
    GET(ReplyWithError);
    GET(ReplyWithNull);
    GET(CallReplyType);
    GET(HoldString);
    GET(FreeString);
    GET(StringPtrLen);
    GET(GetThreadSafeContext);
    GET(FreeThreadSafeContext);
    GET(ThreadSafeContextLock);
    GET(ThreadSafeContextUnlock);
    get("RedisModule_CallReplyPromiseSetUnblockHandler", (void *)&CallReplyPromiseSetUnblockHandler);
    SetModuleAttribs(ctx, "other", 1, API_VERSION);
    if (CreateCommand(ctx, "other.call", other_call, "write", 0, 0, 0) != OK) return ERR;
    if (CreateCommand(ctx, "other.fail", other_fail, "write", 0, 0, 0) != OK) return ERR;
    if (CreateCommand(ctx, "other.thread", other_thread, "write", 0, 0, 0) != OK) return ERR;
    if (CreateCommand(ctx, "other.wait", other_wait, "write", 0, 0, 0) != OK) return ERR;
    if (CreateCommand(ctx, "other.on", other_on, "write", 0, 0, 0) != OK) return ERR;
    if (CreateCommand(ctx, "other.heard", other_heard, "readonly", 0, 0, 0) != OK) return ERR;
    return SubscribeToKeyspaceEvents(ctx, CLASSES, listen);
}
