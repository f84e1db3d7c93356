//! `LOCK.HELP`: the commands, as every command family lists its own.

use super::COMMANDS;
use crate::ffi::{Args, Ctx};
use crate::reply::Failure;

pub fn help(ctx: Ctx, args: Args<'_>) -> Result<(), Failure> {
    if args.len() != 1 {
        return Err(Failure::Arity);
    }
    let shown = || {
        COMMANDS
            .iter()
            .filter(|command| !command.grammar.is_empty())
    };
    ctx.reply_array(1 + 2 * shown().count());
    ctx.reply_status("LOCK.<command> [<arg> [value] ...]. Commands are:");
    for command in shown() {
        let name = command.name.to_str().unwrap_or_default();
        let grammar = format!("{} {}", name.to_ascii_uppercase(), command.grammar);
        ctx.reply_status(grammar.trim_end());
        ctx.reply_status(&format!(
            "    {}",
            command.summary.to_str().unwrap_or_default()
        ));
    }
    Ok(())
}
