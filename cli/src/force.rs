//! `redlock force`: an administrator takes a lock away from whoever holds it.

use std::io::{BufRead, IsTerminal, Write};

use serde_json::json;

use crate::args::{Force, key_of};
use crate::exit::{Failure, NOT_HAD};
use crate::merged::{Merged, State, visible};
use crate::status::silent_nodes;
use crate::voice::Voice;

/// Asks, then ends every hold of the lock on every node.
pub async fn force(args: Force, voice: &Voice) -> Result<u8, Failure> {
    let key = key_of(args.key.as_ref(), "its name")?;
    let observer = args.place.observe()?;
    let seen = Merged::of(&observer.lock(&key).await);
    silent_nodes(&seen)?;
    if seen.holders.is_empty() && seen.state == State::Free {
        let value = json!({ "key": key, "forced": 0, "problems": [] });
        voice.result(&format!("{} is free\n", visible(&key)), &value)?;
        return Ok(0);
    }
    if !args.yes && !confirmed(&key, &seen)? {
        return Err(Failure::new(NOT_HAD, "nothing was changed"));
    }
    let answers = observer.force(&key).await;
    let mut forced = 0;
    let mut problems = Vec::new();
    for answer in &answers {
        match &answer.result {
            Ok(0) => {}
            Ok(_) => forced += 1,
            Err(verdict) => problems.push(format!("{}: {verdict}", answer.node)),
        }
    }
    if forced == 0 && !problems.is_empty() {
        return Err(Failure::new(
            NOT_HAD,
            format!(
                "lock {} was not taken away ({})",
                visible(&key),
                problems.join("; ")
            ),
        ));
    }
    let mut text = format!(
        "{} was taken away on {forced} of {} nodes\n",
        visible(&key),
        answers.len()
    );
    for problem in &problems {
        text.push_str(&format!("{}\n", voice.paint.bad(problem)));
    }
    let value = json!({ "key": key, "forced": forced, "problems": problems });
    voice.result(&text, &value)?;
    Ok(0)
}

fn confirmed(key: &str, seen: &Merged) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "nobody is there to be asked: add --yes if the lock is to be taken away",
        ));
    }
    let mut out = std::io::stderr().lock();
    let question = format!(
        "{}: {}. Its holder will not notice before its next renewal. Take it away? [y/N] ",
        visible(key),
        seen.holder_line()
    );
    let asked = out
        .write_all(question.as_bytes())
        .and_then(|()| out.flush());
    asked.map_err(|error| Failure::io("cannot ask", &error))?;
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Failure::io("cannot read the answer", &error))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
