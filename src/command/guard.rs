//! `LOCK.GUARD key token command [arg …]`: runs the command if and only if the token holds the
//! lock at that moment.

use std::ffi::{CStr, c_int};
use std::sync::LazyLock;

use foldhash::HashMap;
use redis_module::raw;

use super::options;
use crate::ffi::{Args, Ctx, api};
use crate::global::Global;
use crate::keyspace::{Opened, decide_deferring_events};
use crate::reply::Failure;

/// The prefix of our own commands.
const OURS: &[u8] = b"lock.";

/// The position of the inner command.
const INNER: usize = 3;

const UNKNOWN: Failure = Failure::Text("ERR the guarded command is unknown to this server");
/// Without COMMAND it is unknown which commands block, and one that blocks would stop the server.
const UNCHECKED: Failure =
    Failure::Text("ERR LOCK.GUARD needs the server's COMMAND command, which is renamed here");

/// What LOCK.GUARD must know about a command.
#[derive(Clone, Copy)]
enum Kind {
    Ordinary,
    /// It may block.
    Blocks,
    Unknown,
}

/// The known commands of the server. Each is looked up once.
static KINDS: LazyLock<Global<HashMap<Vec<u8>, Kind>>> =
    LazyLock::new(|| Global::new(HashMap::default()));

pub fn guard(ctx: Ctx, args: Args<'_>) -> Result<(), Failure> {
    if ctx.is_key_query() {
        report_keys(ctx, args);
        return Ok(());
    }
    let (Some(key), Some(token), Some(command)) = (args.get(1), args.get(2), args.get(INNER))
    else {
        return Err(Failure::Arity);
    };
    let token = options::token(token)?;
    if is_ours(command.bytes()) {
        return Err("ERR LOCK.GUARD cannot run LOCK.* commands".into());
    }
    let name = Name::of(command.bytes()).ok_or(UNKNOWN)?;
    let name = name.c_str();
    match kind_of(ctx, name.to_bytes())? {
        Kind::Unknown => return Err(UNKNOWN),
        Kind::Blocks => return Err("ERR LOCK.GUARD cannot run commands that block".into()),
        Kind::Ordinary => {}
    }
    let own = [Opened::new(ctx, key)?];
    let lock = own[0].lock();
    let (holds, followup) = decide_deferring_events(ctx, &own, |node, now, keyspace| {
        node.table.guards(lock, &token, now, keyspace)
    });
    own[0].close();
    // Before any listener is notified: a listener might end the hold.
    if matches!(holds, Ok(true)) {
        run(ctx, name, args.from(INNER + 1));
    }
    followup.finish(ctx, &own);
    if holds? {
        Ok(())
    } else {
        Err("NOTHELD the token does not hold the lock, the command was not run".into())
    }
}

/// The name of a command in lower case, with a terminating zero.
struct Name([u8; Name::ROOM]);

impl Name {
    /// Longer than the name of any command.
    const ROOM: usize = 128;

    /// None if it cannot be a name: it is too long, or contains a zero.
    fn of(bytes: &[u8]) -> Option<Self> {
        let mut name = [0; Self::ROOM];
        let (_zero, room) = name.split_last_mut()?;
        let room = room.get_mut(..bytes.len())?;
        room.copy_from_slice(bytes);
        room.make_ascii_lowercase();
        (!bytes.contains(&0)).then_some(Self(name))
    }

    fn c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// The flags of the call: with the caller's rights (C), the checks of a script (S) and of memory
/// (M), errors as replies (E), replicated (!), in the caller's protocol (0).
struct Formats {
    one: &'static CStr,
    two: &'static CStr,
    three: &'static CStr,
    more: &'static CStr,
}

const AS_USER: Formats = Formats {
    one: c"CESM!0s",
    two: c"CESM!0ss",
    three: c"CESM!0sss",
    more: c"CESM!0v",
};
/// For a caller without a user: another module, which may do everything.
const AS_MODULE: Formats = Formats {
    one: c"ESM!0s",
    two: c"ESM!0ss",
    three: c"ESM!0sss",
    more: c"ESM!0v",
};

/// Runs the guarded command and passes its reply on.
fn run(ctx: Ctx, name: &CStr, args: Args<'_>) {
    let mut reply = call(ctx, name, args, &AS_USER);
    if reply.starts_with(NO_USER) && !has_user(ctx) {
        reply = call(ctx, name, args, &AS_MODULE);
    }
    if reply.0.is_null() {
        ctx.reply_error("ERR the guarded command could not be run");
    } else if reply.sent().is_empty() {
        // Valkey loses some errors (of GETDEL and GETSET, for a key of another type). Without a
        // reply, the client would take the next reply for this one.
        ctx.reply_error("ERR the server has lost the reply to the guarded command");
    } else if DENIED.iter().any(|denied| reply.starts_with(denied)) {
        ctx.reply_error("NOPERM the user may not run the guarded command, or not with these keys");
    } else {
        // SAFETY: a valid context and reply.
        unsafe {
            api!(RedisModule_ReplyWithCallReply(ctx.raw(), reply.0));
        }
    }
}

/// Whether the caller certainly has a user. Then the text below is the reply of the command itself:
/// it has run, and must not run again with all rights.
fn has_user(ctx: Ctx) -> bool {
    ctx.has(raw::REDISMODULE_CTX_FLAGS_LUA) || ctx.has_connection()
}

/// The server's error, before it runs anything, if there is no user whose rights it could check.
const NO_USER: &[u8] = b"-ERR cannot run as user";
/// The server's errors if the user lacks rights.
const DENIED: [&[u8]; 2] = [b"-ERR acl verification failed", b"-NOPERM"];

fn call(ctx: Ctx, name: &CStr, args: Args<'_>, formats: &Formats) -> Reply {
    let (ctx, argv, name) = (ctx.raw(), args.raw(), name.as_ptr());
    // The server allocates room for as many arguments as the format has letters; for a vector it
    // allocates twice. SAFETY: a valid context; the formats describe flags, and strings or a vector
    // of strings with its length.
    Reply(unsafe {
        match *argv {
            [one] => api!(RedisModule_Call(ctx, name, formats.one.as_ptr(), one)),
            [one, two] => {
                let format = formats.two.as_ptr();
                api!(RedisModule_Call(ctx, name, format, one, two))
            }
            [one, two, three] => {
                let format = formats.three.as_ptr();
                api!(RedisModule_Call(ctx, name, format, one, two, three))
            }
            _ => {
                let (format, argc) = (formats.more.as_ptr(), argv.len());
                api!(RedisModule_Call(ctx, name, format, argv.as_ptr(), argc))
            }
        }
    })
}

/// The reply to a call; null if there is none.
struct Reply(*mut raw::RedisModuleCallReply);

impl Reply {
    /// The bytes that will be sent.
    fn sent(&self) -> &[u8] {
        if self.0.is_null() {
            return &[];
        }
        let mut len = 0;
        // SAFETY: a valid reply, which owns what it sends as long as it lives.
        unsafe {
            let sent = api!(RedisModule_CallReplyProto(self.0, &raw mut len));
            if sent.is_null() {
                &[]
            } else {
                std::slice::from_raw_parts(sent.cast::<u8>(), len)
            }
        }
    }

    fn starts_with(&self, beginning: &[u8]) -> bool {
        self.sent().starts_with(beginning)
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made in `call`, freed once.
            unsafe { api!(RedisModule_FreeCallReply(self.0)) }
        }
    }
}

/// Tells the server which arguments are keys: the lock, and those of the inner command.
fn report_keys(ctx: Ctx, args: Args<'_>) {
    ctx.key_at(1, super::READ);
    let inner = args.from(INNER);
    // Our own commands are refused later; asking one for its keys would call this function again
    // without end.
    if inner.get(0).is_none_or(|name| is_ours(name.bytes())) {
        return;
    }
    let mut len = 0;
    let mut flags = std::ptr::null_mut();
    // SAFETY: a valid context of a query for keys; what the server allocates is freed here.
    unsafe {
        let argv = inner.raw().as_ptr().cast_mut();
        let argc = inner.len() as c_int;
        let keys = api!(RedisModule_GetCommandKeysWithFlags(
            ctx.raw(),
            argv,
            argc,
            &raw mut len,
            &raw mut flags
        ));
        for at in 0..len.max(0) as usize {
            if keys.is_null() {
                break;
            }
            let flags = if flags.is_null() {
                raw::REDISMODULE_CMD_KEY_RW as c_int
            } else {
                *flags.add(at)
            };
            api!(RedisModule_KeyAtPosWithFlags(
                ctx.raw(),
                *keys.add(at) + INNER as c_int,
                flags
            ));
        }
        if !keys.is_null() {
            api!(RedisModule_Free(keys.cast()));
        }
        if !flags.is_null() {
            api!(RedisModule_Free(flags.cast()));
        }
    }
}

/// Whether a command is one of LOCK.*.
fn is_ours(command: &[u8]) -> bool {
    command
        .get(..OURS.len())
        .is_some_and(|prefix| prefix.eq_ignore_ascii_case(OURS))
}

/// The server's description of a command.
fn kind_of(ctx: Ctx, command: &[u8]) -> Result<Kind, Failure> {
    if let Some(known) = KINDS.with(|known| known.get(command).copied()) {
        return Ok(known);
    }
    let info = ctx.ask(c"COMMAND", &[b"INFO", command]).ok_or(UNCHECKED)?;
    if info.is_empty() {
        return Ok(Kind::Unknown);
    }
    let kind = if info.iter().any(|flag| flag == b"blocking") {
        Kind::Blocks
    } else {
        Kind::Ordinary
    };
    KINDS.with(|known| known.insert(command.to_vec(), kind));
    Ok(kind)
}
