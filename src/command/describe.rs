//! What COMMAND DOCS, COMMAND GETKEYSANDFLAGS, redis-cli's hints and the ACL know about a command.
//!
//! The arguments are derived from the grammar that LOCK.HELP shows, so the two cannot differ.

use std::ffi::{CStr, CString, c_char, c_int};

use redis_module::raw;

use super::{Command, Keys, create};
use crate::ffi::{Ctx, api};

/// What follows `LOCK.ACQUIRE`.
pub const ACQUIRE: &str = "key token ttl-ms [SHARED] [LIMIT n] [BLOCK ms] [ONCE] [FENCE at-least] \
                           [MAXHOLD ms] [EPHEMERAL] [OWNER label]";
/// What follows `LOCK.MACQUIRE`.
pub const MACQUIRE: &str = "numkeys key [key ...] token ttl-ms [SHARED] [LIMIT n] [BLOCK ms] \
                            [ONCE] [FENCE at-least] [MAXHOLD ms] [EPHEMERAL] [OWNER label]";

const SINCE: &CStr = c"0.1.0";

static VERSION: raw::RedisModuleCommandInfoVersion = raw::RedisModuleCommandInfoVersion {
    version: 1,
    sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
    sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
    sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
};

/// Creates a command and describes it.
pub fn register(ctx: Ctx, command: &Command) -> Result<(), &'static str> {
    let created = create(ctx, command)?;
    let arguments = arguments(command.grammar);
    let mut args: Vec<_> = arguments
        .iter()
        .map(|argument| argument.to_raw(command.keys))
        .collect();
    args.push(END);
    let mut specs = specs(command.keys);
    let info = raw::RedisModuleCommandInfo {
        version: &raw const VERSION,
        summary: command.summary.as_ptr(),
        complexity: command.complexity.as_ptr(),
        since: SINCE.as_ptr(),
        history: std::ptr::null_mut(),
        tips: std::ptr::null(),
        arity: command.arity,
        key_specs: specs.as_mut_ptr(),
        args: if arguments.is_empty() {
            std::ptr::null_mut()
        } else {
            args.as_mut_ptr()
        },
    };
    // SAFETY: a command that was just created; the server copies the description. Only newer
    // servers have categories.
    unsafe {
        if api!(RedisModule_SetCommandInfo(created, &raw const info))
            != raw::REDISMODULE_OK as c_int
        {
            return Err("the description");
        }
        if let Some(set_categories) = raw::RedisModule_SetCommandACLCategories
            && set_categories(created, command.categories.as_ptr()) != raw::REDISMODULE_OK as c_int
        {
            return Err("the ACL categories");
        }
    }
    Ok(())
}

/// One argument of a grammar.
struct Argument {
    /// The keyword, in front of the value or alone.
    token: Option<CString>,
    name: CString,
    /// Whether a value follows the token.
    has_value: bool,
    optional: bool,
    multiple: bool,
}

/// Reads `key token [ALL] [FENCE at-least] [key ...]`.
fn arguments(grammar: &str) -> Vec<Argument> {
    let mut found: Vec<Argument> = Vec::new();
    let mut rest = grammar.trim();
    while !rest.is_empty() {
        let (part, optional, after) = match rest
            .strip_prefix('[')
            .and_then(|inner| inner.split_once(']'))
        {
            Some((inside, after)) => (inside, true, after),
            None => rest
                .split_once(' ')
                .map_or((rest, false, ""), |(word, after)| (word, false, after)),
        };
        rest = after.trim_start();
        let mut words = part.split(' ');
        let first = words.next().unwrap_or_default();
        let second = words.next();
        if second == Some("...") {
            // `key [key ...]` is one argument that repeats; `[arg ...]` is one of its own.
            match found
                .last_mut()
                .filter(|last| last.name.to_bytes() == first.as_bytes())
            {
                Some(last) => last.multiple = true,
                None => found.push(Argument::plain(first, true, true)),
            }
        } else if first.chars().all(char::is_uppercase) {
            found.push(Argument {
                token: CString::new(first).ok(),
                name: text(second.unwrap_or(&first.to_lowercase())),
                has_value: second.is_some(),
                optional,
                multiple: false,
            });
        } else {
            found.push(Argument::plain(first, optional, false));
        }
    }
    found
}

fn text(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

impl Argument {
    fn plain(name: &str, optional: bool, multiple: bool) -> Self {
        Self {
            token: None,
            name: text(name),
            has_value: true,
            optional,
            multiple,
        }
    }

    fn to_raw(&self, keys: Keys) -> raw::RedisModuleCommandArg {
        let is_key = self.name.to_bytes() == b"key";
        let kind = match self.name.to_bytes() {
            _ if !self.has_value => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
            b"key" => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
            b"numkeys" | b"ttl-ms" | b"ms" | b"n" | b"at-least" => {
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER
            }
            _ => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
        };
        let optional = if self.optional {
            raw::REDISMODULE_CMD_ARG_OPTIONAL
        } else {
            0
        };
        let multiple = if self.multiple {
            raw::REDISMODULE_CMD_ARG_MULTIPLE
        } else {
            0
        };
        raw::RedisModuleCommandArg {
            name: self.name.as_ptr(),
            type_: kind,
            key_spec_index: if is_key && !matches!(keys, Keys::None) {
                0
            } else {
                -1
            },
            token: self
                .token
                .as_ref()
                .map_or(std::ptr::null::<c_char>(), |token| token.as_ptr()),
            flags: (optional | multiple) as c_int,
            ..END
        }
    }
}

/// The end of a list of arguments.
const END: raw::RedisModuleCommandArg = raw::RedisModuleCommandArg {
    name: std::ptr::null(),
    type_: raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
    key_spec_index: -1,
    token: std::ptr::null(),
    summary: std::ptr::null(),
    since: std::ptr::null(),
    flags: 0,
    deprecated_since: std::ptr::null(),
    subargs: std::ptr::null_mut(),
    display_text: std::ptr::null(),
};

/// The key specification of a command, and the end of the list.
fn specs(keys: Keys) -> [raw::RedisModuleCommandKeySpec; 2] {
    let (flags, at) = match keys {
        Keys::None => (0, None),
        Keys::First(flags) | Keys::Numbered(flags) => (flags, Some(1)),
        Keys::FromSecond(flags) => (flags, Some(2)),
    };
    // SAFETY: all zeros is a valid value of this C structure: null pointers, zero numbers, the
    // invalid kinds.
    let end: raw::RedisModuleCommandKeySpec = unsafe { std::mem::zeroed() };
    let Some(pos) = at else { return [end, end] };
    let mut spec = end;
    spec.flags = flags.into();
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index = raw::RedisModuleCommandKeySpec__bindgen_ty_1__bindgen_ty_1 { pos };
    match keys {
        Keys::Numbered(_) => {
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
            spec.fk.keynum = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_2 {
                keynumidx: 0,
                firstkey: 1,
                keystep: 1,
            };
        }
        _ => {
            let lastkey = if matches!(keys, Keys::FromSecond(_)) {
                -1
            } else {
                0
            };
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            spec.fk.range = raw::RedisModuleCommandKeySpec__bindgen_ty_2__bindgen_ty_1 {
                lastkey,
                keystep: 1,
                limit: 0,
            };
        }
    }
    [spec, end]
}
