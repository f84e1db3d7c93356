//! `LOCK.ACQUIRE key token ttl-ms [SHARED [LIMIT n]] [BLOCK ms] [ONCE] [FENCE at-least] [MAXHOLD
//! ms] [EPHEMERAL] [OWNER label]`: replies with the fence, or null. With the token `*` it replies
//! with an array: the token that the server made, and the fence.

use redis_module::raw;
use redislock_core::lock::Terms;
use redislock_core::table::{Verdict, Wanted};
use redislock_core::time::{Millis, Wait};
use redislock_core::token::Token;

use super::options::{self, Options};
use crate::clock;
use crate::ffi::{Arg, Args, Ctx};
use crate::keyspace::{Opened, decide};
use crate::reply::{self, Failure, Shape};
use crate::{alarm, node, waiters};

pub fn acquire(ctx: Ctx, args: Args<'_>) -> Result<(), Failure> {
    let (Some(key), Some(token), Some(ttl)) = (args.get(1), args.get(2), args.get(3)) else {
        return Err(Failure::Arity);
    };
    let request = Request::parse(ctx, token, ttl, args, 4, false)?;
    let to_wait_for = || Opened::to_wait_for(ctx, key, &request.terms.token);
    let own = [match request.block.and_then(|_| to_wait_for()) {
        Some(closed) => closed,
        None => Opened::new(ctx, key)?,
    }];
    request.ask(ctx, &own, &[own[0].wanted()], std::iter::once(key))
}

/// A request for one lock or several. All of it is parsed before anything is changed.
pub struct Request {
    terms: Terms,
    /// How long to wait; zero means forever. None if the server does not allow this client to
    /// block.
    block: Option<Millis>,
    shape: Shape,
}

impl Request {
    /// Reads the token, the lease and the options from `options_at` on.
    pub fn parse(
        ctx: Ctx,
        token: Arg<'_>,
        ttl: Arg<'_>,
        args: Args<'_>,
        options_at: usize,
        several: bool,
    ) -> Result<Self, Failure> {
        let options = Options::parse(args, options_at)?;
        let bytes = token.bytes();
        let made_token = (bytes == b"*").then(|| uuid::Uuid::new_v4().to_string());
        if made_token.is_some() && options.once {
            return Err(
                "ERR ONCE cannot be used with token *: each request has a different owner".into(),
            );
        }
        let token = match &made_token {
            Some(made) => {
                Token::new(made.as_bytes()).ok_or(Failure::Text("ERR could not create a token"))?
            }
            None => options::token_of(bytes)?,
        };
        let ttl = options::ttl(ttl)?;
        // Reading them takes 130 instructions. A request that does not wait needs them only for an
        // ephemeral hold: a new one, or one that it re-enters.
        let needs_flags = options.ephemeral || options.block.is_some() || node::has_ties();
        let flags = needs_flags.then(|| ctx.flags());
        let has = |flag| flags.is_some_and(|flags| flags & flag != 0);
        if options.ephemeral && (has(raw::REDISMODULE_CTX_FLAGS_LUA) || !ctx.has_connection()) {
            return Err(
                "ERR EPHEMERAL needs a client connection: scripts and modules have none".into(),
            );
        }
        let terms = Terms {
            token,
            ttl,
            mode: options.mode(),
            once: options.once,
            fence: options.fence,
            max_hold: options.max_hold,
            owner: options.owner.map(Box::from),
            ephemeral: options.ephemeral,
            connection: flags.and_then(|flags| ctx.connection_by(flags)),
        };
        let denied = raw::REDISMODULE_CTX_FLAGS_MULTI
            | raw::REDISMODULE_CTX_FLAGS_LUA
            | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING;
        Ok(Self {
            terms,
            block: options.block.filter(|_| !has(denied)),
            shape: Shape {
                several,
                made_token,
            },
        })
    }

    /// Asks core, and replies or waits.
    pub fn ask<'a>(
        &self,
        ctx: Ctx,
        own: &[Opened<'_>],
        wanted: &[Wanted<'_>],
        keys: impl Iterator<Item = Arg<'a>>,
    ) -> Result<(), Failure> {
        let wait = self.wait();
        let verdict = decide(ctx, own, |node, now, keyspace| {
            node.table.acquire(wanted, &self.terms, wait, now, keyspace)
        });
        match verdict {
            Verdict::Granted(fences) => reply::granted(ctx, &fences, &self.shape),
            Verdict::Busy => ctx.reply_null(),
            Verdict::Waits(id) => {
                waiters::park(ctx, id, self.shape.clone(), keys);
                if let Wait::Until(until) = wait {
                    alarm::wake_at(until);
                }
            }
            Verdict::Denied(denial) => return Err(denial.into()),
        }
        Ok(())
    }

    /// Whether and until when to wait.
    fn wait(&self) -> Wait {
        match self.block {
            None => Wait::No,
            Some(Millis::ZERO) => Wait::Forever,
            Some(block) => Wait::Until(clock::mono().plus(block.to_micros())),
        }
    }
}
